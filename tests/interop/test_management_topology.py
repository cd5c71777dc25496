"""Queues, exchanges, bindings and messages over HTTP: the answers are those of RabbitMQ 3.10."""

import base64
import hashlib
import re
from collections.abc import Generator
from typing import Any
from urllib.parse import quote

import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker

from tests.broker_process import BrokerProcess
from tests.management_client import ManagementClient, managed, management_url
from tests.waiting import wait_until

CLASSIC, QUORUM = ({"arguments": {"x-queue-type": kind}} for kind in ("classic", "quorum"))
HOSTILE = ["a/b", "<script>alert(1)</script>", "ü ✓", "%2F", "a?b#c", "x" * 255, '"\\\n']


@pytest.fixture(scope="module")
def managed_broker(tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("management")
    broker = managed(BrokerProcess(str(directory / "data"), str(directory / "log")))
    with broker:
        broker.start()
        yield broker


@pytest.fixture
def api(managed_broker: BrokerProcess) -> Generator[ManagementClient]:
    with ManagementClient(management_url(managed_broker)) as client:
        yield client


def quoted(name: str) -> str:
    return quote(name, safe="")


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_any_kind_come_back_as_they_are(api: ManagementClient, name: str) -> None:
    kept = name.replace("\n", "")  # as in AMQP
    queue, exchange = f"/queues/%2F/{quoted(name)}", f"/exchanges/%2F/{quoted(name)}"
    api.put(queue)
    api.put(queue, status=204)
    api.put(exchange, {"type": "topic"})
    path = f"/bindings/%2F/e/{quoted(kept)}/q/{quoted(kept)}"
    for arguments in ({}, {"x": 1, "y": ["ä", None]}):
        answer = api.request("POST", path, json={"routing_key": kept, "arguments": arguments})
        assert answer.status_code == 201
        one = f"/bindings/%2F/e/{quoted(kept)}/q/{answer.headers['location']}"
        assert api.get(one)["arguments"] == arguments
        assert api.get(one)["routing_key"] == kept
        api.delete(one)
        api.expect(404, "DELETE", one)
    assert api.get(f"/queues/%2F/{quoted(kept)}")["name"] == kept
    assert kept in [row["name"] for row in api.get("/queues")]
    api.delete(f"/queues/%2F/{quoted(kept)}")
    api.delete(f"/exchanges/%2F/{quoted(kept)}")


def test_what_differs_is_refused_and_says_why(api: ManagementClient) -> None:
    api.put("/queues/%2F/args", {"arguments": {"x-max-length": 5}})
    for body, part in (
        ({"arguments": {"x-max-length": 6}}, "inequivalent arg 'x-max-length' for queue 'args'"),
        ({"arguments": {"x-max-length": "6"}}, "inequivalent arg 'x-max-length'"),
        ({"durable": "nope"}, "Expected `bool`"),
        ({"arguments": 5}, "arguments"),
        ({"arguments": {"x": 1 << 70}}, "64 bits"),
        ({"arguments": {str(number): 1 for number in range(20_000)}}, "17408 entries"),
        ([], "an object"),
    ):
        found = api.put("/queues/%2F/args", body, status=400)
        assert part in found["reason"], body
    assert api.expect(400, "PUT", "/queues/%2F/args", data="{")["reason"] == "not_json"
    api.put(f"/queues/%2F/{'x' * 256}", status=400)
    api.put("/queues/%2F/amq.x", status=401)
    api.put("/queues/nothing/x", status=404)
    api.put("/exchanges/%2F/e", {"type": "nothing"}, status=400)
    api.delete("/exchanges/%2F/amq.topic", status=401)
    api.delete("/queues/%2F/args")


def test_a_queue_without_a_type_has_that_of_its_virtual_host(api: ManagementClient) -> None:
    """The default type holds for queues that can be of it, also for a declare of an existing queue,
    as in RabbitMQ 4.0.5.
    """

    def declared(name: str, **body: Any) -> str:
        api.expect(201, "PUT", f"/queues/typed/{name}", body)
        row = api.get(f"/queues/typed/{name}")
        assert row["type"] == row["arguments"].get("x-queue-type", "classic")
        return str(row["type"])

    api.put("/vhosts/typed")
    assert api.get("/vhosts/typed")["default_queue_type"] == "classic"
    assert declared("before") == "classic"
    api.put("/vhosts/typed", {"default_queue_type": "quorum"}, 204)
    assert api.get("/vhosts/typed")["default_queue_type"] == "quorum"
    assert declared("lasting", durable=True) == "quorum"
    assert declared("lasting too") == "quorum"
    assert declared("leaving", auto_delete=True) == "classic"
    assert declared("named", arguments={"x-queue-type": "classic"}) == "classic"
    api.put("/queues/typed/lasting", {"durable": True}, 204)
    # A declaration without a type is one of the default type, also of a queue that exists.
    for name, body in (("before", {}), ("before", QUORUM), ("named", {}), ("lasting", CLASSIC)):
        refused = api.put(f"/queues/typed/{name}", body, 400)
        assert "inequivalent arg 'x-queue-type' for queue" in refused["reason"]
    api.put("/queues/typed/before", CLASSIC, 204)
    api.put("/vhosts/typed", {"description": "kept"}, 204)
    (exported,) = (one for one in api.get("/definitions")["vhosts"] if one["name"] == "typed")
    assert exported["default_queue_type"] == exported["metadata"]["default_queue_type"] == "quorum"
    for wrong in ("stream", "lazy"):
        api.put("/vhosts/typed", {"default_queue_type": wrong}, 400)
        api.put("/vhosts/other", {"default_queue_type": wrong}, 400)
    api.put("/vhosts/typed", {"default_queue_type": "undefined"}, 204)
    assert declared("after", durable=True) == "classic"
    api.put("/queues/typed/before", {}, 204)
    api.put("/queues/typed/lasting", {}, 400)
    api.put("/queues/typed/lasting", QUORUM, 204)
    api.delete("/vhosts/typed")


def test_an_answer_does_not_wait_for_a_body_that_it_does_not_need(api: ManagementClient) -> None:
    """A server that leaves bodies unread is stuck with the next request on the connection."""
    for _ in range(3):
        api.put("/queues/nothing/x", {"arguments": {"x": "y" * 50_000}}, status=404)
        api.expect(405, "PUT", "/whoami", {"a": "b"})
        assert api.get("/whoami")["name"] == "guest"
    with api.as_user("guest", "wrong") as wrong:
        for _ in range(2):
            wrong.expect(401, "PUT", "/queues/%2F/x", {"arguments": {"x": "y" * 500_000}})
    assert "large" not in [row["name"] for row in api.get("/queues")]


def test_a_message_is_published_and_got(api: ManagementClient) -> None:
    api.put("/queues/%2F/got")
    path = "/exchanges/%2F/amq.default/publish"
    headers = {"n": 1, "t": {"deep": [1, "x"]}}
    properties = {"delivery_mode": 2, "headers": headers, "message_id": "m", "timestamp": 5}
    message: dict[str, Any] = {
        "properties": properties,
        "routing_key": "got",
        "payload_encoding": "string",
    }
    assert api.post(path, {**message, "payload": "hällo"}) == {"routed": True}
    assert api.post(path, {**message, "payload": "x", "routing_key": "no"}) == {"routed": False}
    unnamed = api.url + "/api/exchanges/%2F//publish"  # as rabbitmqadmin of the second generation
    assert api.session.post(unnamed, json={**message, "payload": ""}, timeout=60).status_code == 200
    api.post("/queues/%2F/got/get", {"count": 2, "ackmode": "ack_requeue_false"})
    assert api.post(path, {**message, "payload": "hällo"}) == {"routed": True}
    binary = {**message, "payload": "/wA=", "payload_encoding": "base64"}
    assert api.post(path, binary) == {"routed": True}
    asked = {"count": 5, "ackmode": "ack_requeue_true", "encoding": "auto"}
    for redelivered in (False, True):
        first, second = api.post("/queues/%2F/got/get", asked)
        assert first == {
            "payload": "hällo",
            "payload_bytes": 6,
            "payload_encoding": "string",
            "properties": properties,
            "exchange": "",
            "routing_key": "got",
            "message_count": 1,
            "redelivered": redelivered,
        }
        assert (second["payload"], second["payload_encoding"]) == ("/wA=", "base64")
    cut = {"count": 1, "ackmode": "reject_requeue_true", "encoding": "auto", "truncate": 1}
    assert api.post("/queues/%2F/got/get", cut)[0]["payload"] == "h"
    gone = {**asked, "ackmode": "ack_requeue_false", "count": 1}
    assert api.post("/queues/%2F/got/get", gone)[0]["payload"] == "hällo"
    assert api.get("/queues/%2F/got")["messages_ready"] == 1
    api.delete("/queues/%2F/got/contents")
    assert api.post("/queues/%2F/got/get", asked) == []
    refused: tuple[dict[str, Any], ...] = (
        {**message, "payload": "#", "payload_encoding": "base64"},
        {**message, "payload": "x", "properties": {"priority": "x"}},
        {**message, "payload": "x", "properties": {"user_id": "other"}},
        {**message, "payload": "x", "properties": {"expiration": "x"}},
        {**message, "payload": "x", "routing_key": "x" * 256},
        {**message, "payload": "x", "properties": {"headers": {"h": "x" * (1 << 17)}}},
        {"properties": {}},
    )
    for wrong in refused:
        assert api.post(path, wrong, status=400)["error"] == "bad_request", wrong
    api.post("/exchanges/%2F/nothing/publish", {**message, "payload": ""}, status=404)
    api.post("/queues/%2F/got/get", {"count": 1, "encoding": "auto"}, status=400)
    api.delete("/queues/%2F/got")


def test_a_consumer_without_a_limit_is_listed_with_none(
    api: ManagementClient, managed_broker: Any
) -> None:
    """The server's own limit is not what its client asked for."""
    with pika.BlockingConnection(pika.URLParameters(managed_broker.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("unlimited", exclusive=True)
        channel.basic_consume("unlimited", lambda *_: None)
        assert [one["prefetch_count"] for one in api.get("/consumers/%2F")] == [0]
        assert [one["prefetch_count"] for one in api.get("/channels")] == [0]


def test_clients_are_listed_and_closed(api: ManagementClient, managed_broker: Any) -> None:
    parameters = pika.URLParameters(managed_broker.url)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("listed", exclusive=True)
        channel.basic_qos(prefetch_count=7)
        channel.basic_consume("listed", lambda *_: None, consumer_tag="<b>tag</b>")
        [listed] = api.get("/connections")
        assert (listed["user"], listed["vhost"], listed["state"]) == ("guest", "/", "running")
        assert listed["client_properties"]["product"] == "Pika Python Client Library"
        [row] = api.get(f"/connections/{quoted(listed['name'])}/channels")
        assert (row["confirm"], row["prefetch_count"], row["consumer_count"]) == (True, 7, 1)
        assert api.get(f"/channels/{quoted(row['name'])}")["number"] == 1
        [consumer] = api.get("/consumers/%2F")
        assert (consumer["consumer_tag"], consumer["prefetch_count"]) == ("<b>tag</b>", 7)
        queue = api.get("/queues/%2F/listed")
        assert queue["consumer_details"] == [consumer]
        assert queue["owner_pid_details"]["name"] == listed["name"]
        api.delete("/queues/%2F/listed", status=400)  # it is another's
        for path in ("/connections/nothing", "/channels/nothing", "/connections/nothing/channels"):
            api.expect(404, "GET", path)
        reason = {"X-Reason": "because ü".encode()}
        api.delete(f"/connections/{quoted(listed['name'])}", headers=reason)
        with pytest.raises(ConnectionClosedByBroker) as closed:
            connection.process_data_events(30)
        assert (closed.value.reply_code, closed.value.reply_text) == (
            320,
            "CONNECTION_FORCED - because ü",
        )
    wait_until(lambda: api.get("/connections") == [])


def test_a_quorum_queue_says_who_leads_it(api: ManagementClient) -> None:
    for name, kind in (("led", "quorum"), ("plain", "classic")):
        body = {"durable": True, "arguments": {"x-queue-type": kind}}
        api.put(f"/queues/%2F/{name}", body)
    (row,) = api.get("/queues/quorum/%2F/led/status")
    node = api.get("/overview")["node"]
    assert row == {"Node Name": node, "Raft State": "leader", "Membership": "voter"}
    failed = api.expect(503, "GET", "/queues/quorum/%2F/plain/status")
    assert failed == {"status": "failed", "reason": "classic_queue_not_supported"}
    api.expect(404, "GET", "/queues/quorum/%2F/none/status")
    api.expect(404, "GET", "/queues/quorum/none/led/status")
    for name in ("led", "plain"):
        api.delete(f"/queues/%2F/{name}")


def test_the_hash_of_a_password_is_one_that_a_user_can_be_set_with(api: ManagementClient) -> None:
    secret = "a/b %+"
    by_path = api.get(f"/auth/hash_password/{quote(secret, safe='')}")["ok"]
    by_body = api.post("/auth/hash_password", {"password": secret})["ok"]
    assert by_path != by_body  # each has a salt of its own
    for found in (by_path, by_body):
        raw = base64.b64decode(found, validate=True)
        assert raw[4:] == hashlib.sha256(raw[:4] + secret.encode()).digest()
        api.put("/users/hashed", {"password_hash": found, "tags": "management"})
        with ManagementClient(api.url, "hashed", secret) as theirs:
            assert theirs.get("/whoami")["name"] == "hashed"
            theirs.expect(401, "GET", "/auth/hash_password/x")
        api.delete("/users/hashed")
    api.expect(400, "POST", "/auth/hash_password", {"password": 5})


def test_health_checks_say_what_is_wrong(api: ManagementClient, managed_broker: Any) -> None:
    for check in (
        "alarms",
        "local-alarms",
        "virtual-hosts",
        "node-is-quorum-critical",
        "node-is-mirror-sync-critical",
        "is-in-service",
        "metadata-store/initialized",
        "metadata-store/initialized/with-data",
        "quorum-queues-without-elected-leaders/all-vhosts/",
        "quorum-queues-without-elected-leaders/all-vhosts/pattern/^a",
        "quorum-queues-without-elected-leaders/vhost/%2F/",
        "quorum-queues-without-elected-leaders/vhost/%2F/pattern/.*",
        "certificate-expiration/1/months",
        f"port-listener/{managed_broker.port}",
        "protocol-listener/amqp",
        "protocol-listener/http",
    ):
        assert api.get(f"/health/checks/{check}")["status"] == "ok"
    assert api.expect(503, "GET", "/health/checks/port-listener/1")["missing"] == 1
    assert api.expect(503, "GET", "/health/checks/protocol-listener/mqtt")["missing"] == "mqtt"
    leaders = "quorum-queues-without-elected-leaders"
    api.expect(404, "GET", f"/health/checks/{leaders}/vhost/none")
    for check in (
        "port-listener/x",
        "certificate-expiration/1/hours",
        f"{leaders}/all-vhosts/pattern/%28",
    ):
        api.expect(400, "GET", f"/health/checks/{check}")
    assert api.get("/aliveness-test/%2F") == {"status": "ok"}
    assert api.get("/queues/%2F/aliveness-test")["messages"] == 0
    api.delete("/queues/%2F/aliveness-test")


def test_the_overview_adds_up(api: ManagementClient) -> None:
    found = api.get("/overview")
    assert found["object_totals"]["exchanges"] == len(api.get("/exchanges"))
    assert {row["protocol"] for row in found["listeners"]} == {"amqp", "http"}
    [node] = api.get("/nodes")
    assert node["name"] == found["node"]
    assert node["mem_used"] > 0
    assert api.get(f"/nodes/{node['name']}/memory")["memory"]["total"]["rss"] > 0
    assert api.get("/queues?page=1&page_size=1&columns=name")["page_size"] == 1


def test_what_has_left_is_told_by_queue_and_reason(
    api: ManagementClient, managed_broker: BrokerProcess
) -> None:
    api.put("/vhosts/short")
    api.put("/queues/short/two", {"arguments": {"x-max-length": 2}})
    message = {"properties": {}, "routing_key": "two", "payload": "x", "payload_encoding": "string"}
    for _ in range(5):
        api.expect(200, "POST", "/exchanges/short/amq.default/publish", message)
    got = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    api.expect(200, "POST", "/queues/short/two/get", got)
    assert api.get("/queues/short/two")["messages_left"] == {"acked": 1, "maxlen": 3}
    api.delete("/queues/short/two")
    assert api.get("/vhosts/short")["messages_left"] == {
        "acked": 1,
        "maxlen": 3,
        "queue_deleted": 1,
    }
    overview = api.get("/overview")
    assert overview["messages_left"]["queue_deleted"] >= 1
    assert overview["messages_dead_lettered"] == {}
    wait_until(lambda: "short two queue_deleted=1" in managed_broker.log_tail())
    lines = [line for line in managed_broker.log_tail().splitlines() if "messages left" in line]
    # One line has the sum of a second: the five publishes may be in two.
    assert sum(map(int, re.findall(r"two maxlen=(\d+)", "\n".join(lines)))) == 3
    assert not any("acked" in line for line in lines)
    api.delete("/vhosts/short")


def test_what_has_no_effect_is_noted_and_what_cannot_act_is_refused(api: ManagementClient) -> None:
    def put(path: str, body: Any) -> str:
        answer = api.request("PUT", path, json=body)
        assert answer.status_code in (201, 204), answer.text
        return str(answer.headers.get("x-amqpstore-notes", ""))

    noted = put("/queues/%2F/noted", {"arguments": {"x-queue-leader-locator": "balanced"}})
    assert noted.startswith("argument of a queue 'x-queue-leader-locator' has no effect: ")
    assert api.get("/queues/%2F/noted")["notes"] == [noted]
    assert put("/queues/%2F/noted", {"arguments": {}}) == ""
    assert "'e\\u2028' has no effect" in put(
        "/exchanges/%2F/noted", {"type": "fanout", "arguments": {"e\u2028": 1}}
    )
    assert len(api.get("/exchanges/%2F/noted")["notes"]) == 1
    definition = {"pattern": "^no", "definition": {"ha-mode": "all", "max-length": 5}}
    assert "'ha-mode' has no effect" in put("/policies/%2F/noted", definition)
    assert len(api.get("/policies/%2F/noted")["notes"]) == 1
    assert not any("notes" in one for one in api.get("/definitions")["policies"])
    for path, body, right in (
        ("/queues/%2F/x", {"arguments": {"x-max-lenght": 5}}, "x-max-length"),
        ("/exchanges/%2F/x", {"type": "topic", "arguments": {"alternate-exchnage": "a"}}, "altern"),
        ("/policies/%2F/x", {"pattern": "x", "definition": {"max-lenght": 5}}, "max-length"),
        ("/vhost-limits/%2F/max-queue", {"value": 5}, "max-queues"),
    ):
        assert f"is '{right}" in api.put(path, body, 400)["reason"]
    definitions = {
        "policies": [
            {"vhost": "/", "name": "s", "pattern": "^s", "definition": {"max-age": "7D"}},
            {"vhost": "/", "name": "l", "pattern": "^l", "definition": {"max-lenght": 7}},
        ],
        "queues": [
            {"vhost": "/", "name": "lost", "arguments": {"x-delayed-retry-min": 7}},
            {"vhost": "/", "name": 7},
            {"vhost": "/", "name": "came"},
        ],
    }
    left_out = api.expect(400, "POST", "/definitions", definitions)["reason"]
    for part in ("policy 'l'", "is 'max-length' meant?", "queue 'lost'", "$.queues[1].name"):
        assert part in left_out
    api.delete("/queues/%2F/came")
    api.delete("/policies/%2F/s")
    api.expect(404, "GET", "/policies/%2F/l")
    for path in ("/queues/%2F/noted", "/exchanges/%2F/noted", "/policies/%2F/noted"):
        api.delete(path)


def test_a_virtual_host_is_protected_from_deletion(api: ManagementClient) -> None:
    """A protected virtual host cannot be deleted, as in RabbitMQ 4.1."""
    api.put("/vhosts/kept", {"protected_from_deletion": True})
    assert api.get("/vhosts/kept")["protected_from_deletion"] is True
    assert api.get("/vhosts/kept")["metadata"]["protected_from_deletion"] is True
    refused = api.expect(412, "DELETE", "/vhosts/kept")
    assert "protected from deletion" in refused["reason"]
    api.put("/vhosts/kept", {"description": "still"}, 204)
    (exported,) = (one for one in api.get("/definitions")["vhosts"] if one["name"] == "kept")
    assert exported["metadata"]["protected_from_deletion"] is True
    api.expect(204, "DELETE", "/vhosts/kept/deletion/protection")
    assert api.get("/vhosts/kept")["protected_from_deletion"] is False
    assert api.request("POST", "/definitions", json={"vhosts": [exported]}).status_code == 204
    api.expect(412, "DELETE", "/vhosts/kept")
    api.expect(204, "DELETE", "/vhosts/kept/deletion/protection")
    api.expect(204, "POST", "/vhosts/kept/deletion/protection")
    api.expect(412, "DELETE", "/vhosts/kept")
    api.put("/vhosts/kept", {"protected_from_deletion": False}, 204)
    api.delete("/vhosts/kept")
    api.expect(404, "POST", "/vhosts/kept/deletion/protection")


def test_a_parameter_is_what_its_component_says(api: ManagementClient) -> None:
    """Operator policies and limits can be set as parameters; what only a plug-in of RabbitMQ would
    read is refused, as RabbitMQ does without it, and an import without it says so.
    """
    policy = {"pattern": "^p", "definition": {"max-length": 1}, "priority": 2, "apply-to": "queues"}
    policy_path, limits = "/parameters/operator_policy/%2F/p", "/parameters/vhost-limits/%2F/limits"
    for status in (201, 204):
        api.put(policy_path, {"value": policy}, status)
        api.put(limits, {"value": {"max-queues": 500}}, status)
    assert api.get("/operator-policies/%2F/p") == {"vhost": "/", "name": "p", **policy}
    assert api.get("/vhost-limits/%2F") == [{"vhost": "/", "value": {"max-queues": 500}}]
    exported = api.get("/definitions")["parameters"]
    assert exported == api.get("/parameters")
    assert [row["component"] for row in exported] == ["operator_policy", "vhost-limits"]
    for path, value, reason in (
        ("shovel/%2F/s", {"src-uri": "amqp://"}, "component shovel not found"),
        ("policy/%2F/p", policy, "policies may not be set using this method"),
        ("operator_policy/%2F/p", {"pattern": "x"}, "missing required field `definition`"),
        (
            "operator_policy/%2F/p",
            {**policy, "definition": {"x": 1}},
            "Validation failed\n\nno operator policy key 'x'",
        ),
        ("vhost-limits/%2F/limits", {"max-x": 1}, "no limit of a virtual host 'max-x'"),
        ("vhost-limits/%2F/limits", 7, "Expected `object`"),
        ("vhost-limits/%2F/limits", {"max-queues": 1 << 63}, "64 bits"),
        ("vhost-limits/%2F/other", {"max-queues": 1}, "the only parameter"),
    ):
        assert reason in api.put(f"/parameters/{path}", {"value": value}, 400)["reason"]
    api.put("/parameters/shovel/nowhere/s", {"value": {}}, 404)
    shovel = {"component": "shovel", "vhost": "/", "name": "s", "value": {}}
    queue = {"name": "beside it", "vhost": "/", "durable": True}
    content = {"parameters": [*exported, shovel], "queues": [queue]}
    refusal = api.post("/definitions", content, 400)["reason"]
    assert refusal == "left out: parameter 's' in vhost '/': component 'shovel' not found"
    api.delete("/queues/%2F/beside%20it")
    assert api.get("/parameters") == exported
    for row in exported:
        assert api.get(f"/parameters/{row['component']}") == [row]
    for path in (policy_path, limits):
        component = path.split("/")[2]
        # A name other than that of the existing parameter.
        api.expect(404, "DELETE", f"/parameters/{component}/%2F/none")
        assert api.get("/parameters") == exported
        api.put("/vhosts/parameters")
        assert api.get(f"/parameters/{component}/parameters") == []
        api.delete("/vhosts/parameters")
        api.delete(path)
        exported = api.get("/parameters")
        api.expect(404, "DELETE", path)
        api.expect(404, "GET", path)
    assert api.get("/operator-policies") == []
    assert api.get("/vhost-limits") == [{"vhost": "/", "value": {}}]


def test_a_global_parameter_is_set_and_cleared(api: ManagementClient) -> None:
    path = "/global-parameters/made"
    for method in ("GET", "DELETE"):
        api.expect(404, method, path)
    api.put(path, {"value": None}, 400)
    for status, value in ((201, "first"), (204, {"a": [1]})):
        api.put(path, {"value": value}, status)
        assert api.get(path) == {"name": "made", "value": value}
    assert api.get(path) in api.get("/global-parameters")
    (own,) = [one for one in api.get("/global-parameters") if one["name"] == "internal_cluster_id"]
    assert own == api.get("/global-parameters/internal_cluster_id")
    assert own["value"].startswith("amqpstore-cluster-id-")
    assert own not in api.get("/definitions")["global_parameters"]
    api.delete(path)
    api.expect(404, "GET", path)


def test_what_rabbitmq_refuses_is_refused(api: ManagementClient) -> None:
    for key in ("dead-letter-exchange", "alternate-exchange"):
        policy = {"pattern": "^p", "definition": {key: "x"}}
        reason = api.put("/operator-policies/%2F/p", policy, 400)["reason"]
        assert reason.startswith(f"Validation failed\n\nno operator policy key '{key}'")
        api.put("/policies/%2F/p", policy, 201)
        api.delete("/policies/%2F/p")
    reason = api.put("/policies/%2F/p", {"pattern": "(", "definition": {"expires": 1}}, 400)
    assert reason["reason"].startswith("Validation failed\n\n")
    policy = {"pattern": "^p", "definition": {"overflow": "reject-publish", "max-length": 1}}
    api.put("/operator-policies/%2F/p", policy, 201)
    api.delete("/operator-policies/%2F/p")
    api.expect(404, "PUT", "/policies/none/p", json=policy)
    for flag in api.get("/feature-flags"):
        assert (flag["state"], flag["stability"]) == ("enabled", "required")
        answer = api.request("PUT", f"/feature-flags/{flag['name']}/enable", json={})
        assert "is always on" in answer.headers["x-amqpstore-notes"]
    assert "unsupported" in api.put("/feature-flags/nope/enable", {}, 400)["reason"]


def test_a_request_that_changes_nothing_says_so(api: ManagementClient) -> None:
    api.put("/queues/%2F/q", {}, 201)
    for method, path, body in (
        ("PUT", "/feature-flags/stream_queue/enable", {}),
        ("DELETE", "/reset", None),
        ("DELETE", "/reset/any", None),
        ("POST", "/rebalance/queues", {}),
        ("POST", "/vhosts/%2F/start/any", {}),
        ("POST", "/queues/%2F/q/actions", {"action": "sync"}),
    ):
        answer = api.request(method, path, json=body)
        assert answer.status_code == 204
        assert answer.headers["x-amqpstore-notes"].startswith("the request has no effect: ")


def test_the_default_virtual_host_always_has_an_entry_of_limits(api: ManagementClient) -> None:
    """Clients of RabbitMQ expect it, as that keeps one once limits were set and removed."""
    empty = [{"vhost": "/", "value": {}}]
    for path in ("/vhost-limits", "/vhost-limits/%2F"):
        assert api.get(path) == empty
        api.put("/vhost-limits/%2F/max-queues", {"value": 300}, 204)
        assert api.get(path) == [{"vhost": "/", "value": {"max-queues": 300}}]
        api.delete("/vhost-limits/%2F/max-queues")
        assert api.get(path) == empty


def test_definitions_have_what_is_transient_too(api: ManagementClient) -> None:
    api.put("/queues/%2F/passing", {"durable": False})
    api.put("/exchanges/%2F/passing", {"type": "fanout", "durable": False})
    api.post("/bindings/%2F/e/passing/q/passing", {"routing_key": "k"}, 201)
    for path in ("/definitions", "/definitions/%2F"):
        exported = api.get(path)
        for kind in ("queues", "exchanges"):
            (one,) = [row for row in exported[kind] if row["name"] == "passing"]
            assert one["durable"] is False
        (binding,) = [row for row in exported["bindings"] if row["source"] == "passing"]
        assert binding["destination"] == "passing"
    api.delete("/queues/%2F/passing")
    api.delete("/exchanges/%2F/passing")
    api.post("/definitions", api.get("/definitions") | exported_with_vhost(exported), 204)
    assert [row["routing_key"] for row in api.get("/queues/%2F/passing/bindings")] == [
        "passing",
        "k",
    ]
    api.delete("/queues/%2F/passing")
    api.delete("/exchanges/%2F/passing")


def exported_with_vhost(exported: dict[str, Any]) -> dict[str, Any]:
    """Return the definitions of one virtual host in the form of those of all virtual hosts."""
    return {
        kind: [{**row, "vhost": "/"} for row in exported[kind]]
        for kind in ("queues", "exchanges", "bindings")
    }


def test_the_node_answers_to_the_name_that_rabbitmq_would_have(api: ManagementClient) -> None:
    (node,) = api.get("/nodes")
    alias = f"rabbit@{node['name'].partition('@')[2]}"
    for path in ("", "/memory", "/memory/relative"):
        assert set(api.get(f"/nodes/{alias}{path}")) == set(api.get(f"/nodes/{node['name']}{path}"))
    api.expect(404, "GET", "/nodes/rabbit@elsewhere")
