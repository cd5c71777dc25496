"""Fields of the management API that programs read: what is there is right, and what says nothing
here is absent.
"""

import json
import time
from collections.abc import Generator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pika
import pytest
import requests
from pika.adapters.blocking_connection import BlockingChannel

from amqpstore_server.administration.definitions import MAX_VALUE_BYTES
from amqpstore_server.broker.definitions.global_parameters import MAX_GLOBAL_PARAMETERS
from tests.broker_process import BrokerProcess
from tests.format.document import table
from tests.management_client import PASSWORD, ManagementClient, managed, management_url
from tests.waiting import wait_until

START_S = 1_700_000_000
BODIES = [b"x" * size for size in (100, 200, 300, 400, 500)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("fields")
    process = managed(BrokerProcess(str(directory / "data"), str(directory / "log")))
    process.environment["AMQPSTORE_METRICS_LISTEN"] = ""
    with process:
        process.start()
        yield process


@pytest.fixture
def api(broker: BrokerProcess) -> Generator[ManagementClient]:
    with ManagementClient(management_url(broker)) as client:
        yield client


@pytest.fixture
def channel(broker: BrokerProcess) -> Generator[BlockingChannel]:
    client = pika.URLParameters(broker.url)
    client.client_properties = {"connection_name": "billing", "built": datetime(2021, 5, 5)}
    with pika.BlockingConnection(client) as connection:
        yield connection.channel()


def metrics(api: ManagementClient, path: str) -> dict[str, float]:
    """Return the samples of metrics by name and labels."""
    answer = requests.get(f"{api.url}{path}", auth=("guest", "guest"), timeout=60)
    assert answer.status_code == 200
    lines = [line for line in answer.text.splitlines() if line and not line.startswith("#")]
    found = [line.rpartition(" ") for line in lines]
    assert len({name for name, _, _ in found}) == len(found), "a sample twice"
    return {name: float(value) for name, _, value in found}


def publish(channel: BlockingChannel, queue: str, **properties: Any) -> None:
    for number, body in enumerate(BODIES):
        of_one = pika.BasicProperties(timestamp=START_S + number, **properties)
        channel.basic_publish("", queue, body, of_one)


def test_the_bytes_of_what_waits_and_of_what_is_unacked(
    api: ManagementClient, channel: BlockingChannel
) -> None:
    channel.queue_declare("sized", durable=True)
    publish(channel, "sized", delivery_mode=2)
    publish(channel, "sized")
    for _ in range(2):
        channel.basic_get("sized")
    row = api.get("/queues/%2F/sized")
    assert row["message_bytes"] == 3000
    assert row["message_bytes_unacknowledged"] == 300
    assert row["message_bytes_ready"] == 2700
    assert (row["messages_persistent"], row["message_bytes_persistent"]) == (5, 1500)
    assert (row["messages_ram"], row["message_bytes_ram"]) == (10, 3000)
    assert (row["messages_ready_ram"], row["messages_unacknowledged_ram"]) == (8, 2)
    assert (row["messages_paged_out"], row["message_bytes_paged_out"]) == (0, 0)
    assert row["head_message_timestamp"] == START_S + 2
    listed = api.get("/queues", sort="message_bytes", sort_reverse="true", columns="message_bytes")
    assert listed[0] == {"message_bytes": 3000}
    label = '{queue="sized",vhost="/"}'
    samples = metrics(api, "/metrics/per-object")
    for name, value in (
        ("messages_bytes", 3000),
        ("messages_ready_bytes", 2700),
        ("messages_unacked_bytes", 300),
        ("messages_persistent", 5),
        ("messages_persistent_bytes", 1500),
        ("messages_ram_bytes", 3000),
    ):
        assert samples[f"rabbitmq_queue_{name}{label}"] == value
    wait_until(
        lambda: metrics(api, "/metrics")["rabbitmq_queue_messages_bytes"] == 3000, "the sums"
    )


def test_clients_say_who_they_are_and_what_they_asked_for(
    api: ManagementClient, channel: BlockingChannel
) -> None:
    channel.queue_declare("taken")
    channel.basic_qos(prefetch_count=7)
    asked = {"app": "mine", "x-priority": 3, "since": datetime(2021, 5, 5), "raw": b"\x80\xff"}
    channel.basic_consume("taken", print, arguments=asked)
    (connection,) = api.get("/connections")
    assert connection["user_provided_name"] == "billing"
    built = int(datetime(2021, 5, 5, tzinfo=UTC).timestamp())
    assert connection["client_properties"]["built"] == built
    (consumer,) = api.get("/consumers")
    raw = "Not UTF-8, base64 is: gP8="
    assert consumer["arguments"] == {"app": "mine", "x-priority": 3, "since": built, "raw": raw}
    found = metrics(api, "/metrics/detailed?family=channel_metrics")
    (prefetch,) = [value for name, value in found.items() if "_detailed_consumer_prefetch{" in name]
    assert prefetch == 7


def test_times_and_bytes_of_a_dead_letter_are_numbers_and_what_rabbitmq_writes(
    api: ManagementClient, channel: BlockingChannel
) -> None:
    dying = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"}
    channel.queue_declare("letters")
    channel.queue_declare("dying", arguments=dying)
    headers: dict[str, Any] = {
        "bin": b"\x80\xff" * 60,
        "at": datetime(2021, 5, 5),
        "in": [{"at": b"\xff"}],
    }
    channel.basic_publish("", "dying", b"x", pika.BasicProperties(headers=headers))
    fetched, _, _ = channel.basic_get("dying")
    before = int(time.time())
    channel.basic_reject(fetched.delivery_tag, requeue=False)  # type: ignore[arg-type,union-attr]
    wait_until(lambda: api.get("/queues/%2F/letters")["messages"] == 1, "the dead letter")
    asked = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    (got,) = api.post("/queues/%2F/letters/get", asked)
    (browsed,) = api.get("/queues/%2F/letters/messages")["messages"]
    assert got["properties"]["headers"] == browsed["properties"]["headers"]
    shown = got["properties"]["headers"]
    assert before <= shown["x-death"][0]["time"] <= time.time()
    assert shown["at"] == 1620172800
    assert shown["bin"].startswith("Not UTF-8, base64 is: gP+A/4D/")
    assert max(map(len, shown["bin"].split(": ")[1].split("\n"))) == 76
    assert shown["in"] == [{"at": "Not UTF-8, base64 is: /w=="}]


def test_the_node_and_the_overview(api: ManagementClient, channel: BlockingChannel) -> None:
    channel.queue_declare("counted", durable=True)
    publish(channel, "counted", delivery_mode=2)
    wait_until(
        lambda: api.get("/overview")["message_stats"]["disk_writes"] >= len(BODIES), "the disk"
    )
    stats = api.get("/overview")["message_stats"]
    assert stats["disk_reads"] >= 0
    assert {"disk_reads_details", "disk_writes_details"} <= stats.keys()
    (node,) = api.get("/nodes")
    for name in ("mem_used", "fd_used", "sockets_used", "disk_free", "proc_used", "gc_num"):
        assert node[name] > 0, name
        assert isinstance(node[f"{name}_details"]["rate"], float), name
    for name in ("io_sync_count", "io_write_count", "io_write_bytes", "io_sync_avg_time"):
        assert node[name] > 0, name
    for name in ("connection_created", "channel_created", "queue_created", "queue_declared"):
        assert node[name] > 0, name
    assert node["proc_used"] < node["proc_total"]
    assert node["sockets_used"] < node["sockets_total"]


def test_a_quorum_queue_has_its_one_member(api: ManagementClient) -> None:
    api.put("/queues/%2F/agreed", {"arguments": {"x-queue-type": "quorum"}})
    row = api.get("/queues/%2F/agreed")
    node = row["node"]
    assert (row["leader"], row["members"], row["online"]) == (node, [node], [node])
    assert row["delivery_limit"] == 20
    api.put("/queues/%2F/plain")
    assert (
        not {"leader", "members", "online", "delivery_limit"} & api.get("/queues/%2F/plain").keys()
    )


def test_what_says_nothing_here_is_absent(api: ManagementClient, channel: BlockingChannel) -> None:
    """Each field in the table of PROTOCOL.md is in no row of the API."""
    channel.queue_declare("rows")
    api.put("/queues/%2F/led", {"arguments": {"x-queue-type": "quorum"}})
    (connection,) = api.get("/connections")
    (open_channel,) = api.get("/channels")
    (node,) = api.get("/nodes")
    paths = {
        "/api/queues/VHOST/NAME": "/queues/%2F/rows",
        "/api/queues/quorum/VHOST/NAME/status": "/queues/quorum/%2F/led/status",
        "/api/connections/NAME": f"/connections/{quote(connection['name'], safe='')}",
        "/api/channels/NAME": f"/channels/{quote(open_channel['name'], safe='')}",
        "/api/nodes/NODE": f"/nodes/{node['name']}",
    }
    with open("server/PROTOCOL.md", encoding="utf-8") as file:
        rows = table(file.read(), "Fields of the management API that are not there")
    assert {row.cells["where"].strip("`") for row in rows} == paths.keys()
    for row in rows:
        assert row.cells["why"]
        fields = {field.strip(" `") for field in row.cells["fields"].split(",")}
        answer = api.get(paths[row.cells["where"].strip("`")])
        answer = answer[0] if isinstance(answer, list) else answer
        assert fields
        assert not fields & answer.keys(), row.cells


@pytest.mark.parametrize(
    "key", ["orders.*", "#", "a/b", "a b", "a+b", "a%2Fb", "a:b", "ü", "~", ""]
)
def test_a_binding_is_named_as_it_is_listed_or_by_its_key(api: ManagementClient, key: str) -> None:
    api.request("PUT", "/queues/%2F/bound", json={})
    base = "/bindings/%2F/e/amq.topic/q/bound"
    for spelled in (
        lambda listed: listed,
        lambda listed: quote(listed, safe="~"),
        lambda _listed: quote(key, safe="") or "~",
    ):
        api.request("POST", base, json={"routing_key": key})
        (row,) = api.get(base)
        api.delete(f"{base}/{spelled(row['properties_key'])}")
        assert api.get(base) == []


def test_a_binding_is_the_one_that_its_key_spells(api: ManagementClient) -> None:
    """A path that could mean two bindings means the one whose key it spells literally."""
    api.request("PUT", "/queues/%2F/bound", json={})
    base = "/bindings/%2F/e/amq.topic/q/bound"
    for key in ("a b", "a%20b"):
        api.request("POST", base, json={"routing_key": key})
    api.request("POST", base, json={"routing_key": "a b", "arguments": {"x": 1}})
    api.delete(f"{base}/{quote('a%20b', safe='')}")
    left = api.get(base)
    assert {(row["routing_key"], bool(row["arguments"])) for row in left} == {
        ("a%20b", False),
        ("a b", True),
    }
    (with_arguments,) = [row for row in left if row["arguments"]]
    # A routing key alone does not name a binding with arguments.
    api.expect(404, "DELETE", f"{base}/a%20b%20c")
    api.delete(f"{base}/{with_arguments['properties_key']}")
    api.delete(f"{base}/a%2520b")


def test_the_name_of_the_cluster_is_a_label_of_the_metrics(api: ManagementClient) -> None:
    api.put("/cluster-name", {"name": "orders-prod"}, 204)
    named = [one for one in metrics(api, "/metrics") if one.startswith("rabbitmq_identity_info")]
    parameters = {row["name"]: row["value"] for row in api.get("/global-parameters")}
    assert 'rabbitmq_cluster="orders-prod"' in named[0]
    assert f'rabbitmq_cluster_permanent_id="{parameters["internal_cluster_id"]}"' in named[0]
    of_all = metrics(api, "/metrics/detailed?family=queue_coarse_metrics")
    assert named[0] in of_all


def test_per_object_has_the_node_and_detailed_says_what_there_is_not(
    api: ManagementClient, channel: BlockingChannel
) -> None:
    channel.queue_declare("seen")
    sums, single = metrics(api, "/metrics"), metrics(api, "/metrics/per-object")
    names = {name.partition("{")[0] for name in single}
    missing = {name.partition("{")[0] for name in sums} - names
    assert missing == set(), "a scraper of the one lacks what the other has"
    for family, name in (
        ("node_metrics", "process_max_fds"),
        ("node_coarse_metrics", "process_resident_memory_bytes"),
        ("node_persister_metrics", "io_sync_ops_total"),
        ("connection_churn_metrics", "connections_opened_total"),
        ("channel_metrics", "channel_consumers"),
        ("auth_attempt_metrics", "auth_attempts_total"),
        ("alarm_metrics", "alarms_memory_used_watermark"),
    ):
        samples = metrics(api, f"/metrics/detailed?family={family}")
        assert any(one.startswith(f"rabbitmq_detailed_{name}") for one in samples), family
        assert not any("unknown" in one for one in samples)
    samples = metrics(api, "/metrics/detailed?family=ra_metrics&family=node_metrics")
    assert samples['amqpstore_metrics_unknown_family{family="ra_metrics"}'] == 1
    assert json.dumps(api.get("/overview"))  # nothing that JSON does not have


def test_parameters_have_a_number_and_a_size(api: ManagementClient) -> None:
    """Parameters are kept in memory, and listed together, so both are limited."""
    large = "x" * MAX_VALUE_BYTES
    for path, body in (
        ("/global-parameters/large", {"value": {"a": large}}),
        ("/policies/%2F/large", {"pattern": "^x", "definition": {"queue-mode": large}}),
        ("/vhosts/large", {"description": large}),
        ("/users/large", {**PASSWORD, "tags": large}),
    ):
        answer = api.expect(400, "PUT", path, body)
        assert str(MAX_VALUE_BYTES) in answer["reason"]
    some = [{"name": f"p{number}", "value": 1} for number in range(MAX_GLOBAL_PARAMETERS)]
    api.request("POST", "/definitions", json={"global_parameters": some})
    before = len(api.get("/global-parameters"))
    assert before > MAX_GLOBAL_PARAMETERS  # those that there is room for came in
    api.expect(400, "PUT", "/global-parameters/more", {"value": 1})
    api.expect(204, "PUT", "/global-parameters/p0", {"value": 2})
    api.delete("/global-parameters/p0")
    api.put("/global-parameters/more", {"value": 1})
    assert len(api.get("/global-parameters")) == before
