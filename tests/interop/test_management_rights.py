"""Rights over HTTP: each verb needs its tag, and permissions where it works."""

import re
from collections.abc import Generator
from typing import Any
from urllib.parse import quote

import pika
import pytest

from amqpstore_server.management.needs import Needs
from amqpstore_server.management.resources import ROUTES
from amqpstore_server.management.routes import ApiRoute
from tests.broker_process import BrokerProcess
from tests.management_client import PASSWORD, ManagementClient, managed, management_url
from tests.waiting import wait_until

ALL = {"configure": ".*", "write": ".*", "read": ".*"}
NOTHING = {"configure": "^$", "write": "^$", "read": "^$"}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Generator[ManagementClient]:
    directory = tmp_path_factory.mktemp("management")
    broker = managed(BrokerProcess(str(directory / "data"), str(directory / "log")))
    with broker:
        broker.start()
        with ManagementClient(management_url(broker)) as client:
            client.put("/vhosts/other")
            for tag in ("none", "management", "policymaker", "monitoring", "administrator"):
                body = {**PASSWORD, "tags": "" if tag == "none" else tag}
                client.put(f"/users/{tag}", body)
                client.put(f"/permissions/%2F/{tag}", ALL)
            client.put("/users/poor", {**PASSWORD, "tags": "management"})
            client.put("/permissions/%2F/poor", NOTHING)
            client.put("/queues/other/secret")
            client.put("/queues/%2F/own")
            policy = {"pattern": "x", "definition": {"max-length": 1}}
            for vhost in ("%2F", "other"):
                for kind in ("policies", "operator-policies"):
                    client.put(f"/{kind}/{vhost}/p", policy)
                client.put(f"/vhost-limits/{vhost}/max-queues", {"value": 100}, 204)
            yield client


@pytest.mark.parametrize(
    ("user", "path", "status"),
    [
        ("none", "/whoami", 401),
        ("management", "/whoami", 200),
        ("management", "/queues/%2F/own", 200),
        ("management", "/queues/other/secret", 401),
        ("management", "/users", 401),
        ("management", "/nodes", 401),
        ("management", "/policies", 401),
        ("management", "/definitions", 401),
        ("policymaker", "/policies/%2F", 200),
        ("policymaker", "/policies/other", 401),
        ("policymaker", "/users", 401),
        ("monitoring", "/queues/other/secret", 200),
        ("monitoring", "/nodes", 200),
        ("monitoring", "/users", 401),
        ("administrator", "/users", 200),
        ("administrator", "/definitions", 200),
    ],
)
def test_what_may_be_seen(api: ManagementClient, user: str, path: str, status: int) -> None:
    with api.as_user(user) as client:
        client.expect(status, "GET", path)


def test_lists_have_what_may_be_seen(api: ManagementClient) -> None:
    with api.as_user("management") as client:
        assert [row["name"] for row in client.get("/queues")] == ["own"]
        assert [row["name"] for row in client.get("/vhosts")] == ["/"]
        for path in ("/bindings", "/exchanges", "/vhost-limits"):
            assert {row["vhost"] for row in client.get(path)} == {"/"}, path
        assert client.get("/overview")["object_totals"]["queues"] == 1
    with api.as_user("policymaker") as client:
        for path in (
            "/policies",
            "/operator-policies",
            "/parameters",
            "/parameters/operator_policy",
        ):
            assert {row["vhost"] for row in client.get(path)} == {"/"}, path
    with api.as_user("monitoring") as client:
        assert {row["name"] for row in client.get("/queues")} == {"own", "secret"}
        for path in ("/bindings", "/exchanges", "/vhost-limits"):
            assert {row["vhost"] for row in client.get(path)} == {"/", "other"}, path


READS = ("/messages", "/purge", "/provenance", "/aliveness-test/")
"""Paths that need permissions in the virtual host even of users who may see everything."""


def refuses(route: ApiRoute, user: str) -> bool:
    """Tell whether a route has to refuse a user who has no permission in its virtual host."""
    is_monitor = user == "monitoring"
    match route.needs:
        case Needs.ADMINISTRATOR:
            return True
        case Needs.MONITORING:
            return not is_monitor
        case Needs.POLICYMAKER:
            # Not even the sight of it, without the tag.
            return user != "policymaker" or "{vhost}" in route.path
        case Needs.VHOST:
            sees = is_monitor and route.method == "GET"
            return not sees or any(part in route.path for part in READS)
    return route.method == "DELETE" and "username" in route.path


@pytest.mark.parametrize("user", ["management", "policymaker", "monitoring"])
def test_each_route_refuses_who_lacks_its_tag_or_the_permission(
    api: ManagementClient, user: str
) -> None:
    values = {"vhost": "other", "queue": "secret", "name": "secret", "kind": "q", "user": "guest"}
    values |= {"source": "amq.topic", "destination": "secret", "exchange": "amq.topic"}
    with api.as_user(user) as client:
        for route in ROUTES:
            path = re.sub(r"{(\w+)}", lambda found: values.get(found[1], "1"), route.path)
            if not path.startswith("/api/"):
                continue
            body: dict[str, Any] = {} if route.method == "GET" else {"json": {}}
            answer = client.request(route.method, path.removeprefix("/api"), **body)
            what = f"{route.method} {path}: {answer.status_code} {answer.text[:200]}"
            assert (answer.status_code == 401) is refuses(route, user), what
    assert {row["name"] for row in api.get("/queues/other")} == {"secret"}


def test_the_sight_of_all_does_not_make_a_policymaker_of_all(api: ManagementClient) -> None:
    body = {**PASSWORD, "tags": "policymaker,monitoring"}
    api.put("/users/both", body)
    api.put("/permissions/%2F/both", ALL)
    with api.as_user("both") as client:
        client.get("/queues/other")
        client.get("/policies/%2F")
        client.expect(401, "GET", "/policies/other")
    api.delete("/users/both")


def test_clients_of_others_are_seen_and_closed_by_nobody_else(api: ManagementClient) -> None:
    login = pika.PlainCredentials("administrator", "password")
    broker = pika.ConnectionParameters("127.0.0.1", amqp_port(api), credentials=login)
    with pika.BlockingConnection(broker) as connection:
        connection.channel().basic_consume("own", lambda *_: None)
        wait_until(lambda: api.get("/connections"))
        (row,) = api.get("/connections")
        (channel,) = api.get("/channels")
        of_it = f"/connections/{quote(row['name'])}"
        for user in ("management", "policymaker"):
            with api.as_user(user) as client:
                assert client.get("/connections") == client.get("/channels") == []
                assert client.get("/vhosts/%2F/connections") == []
                assert client.get("/overview")["object_totals"]["connections"] == 0
                for path in (of_it, f"{of_it}/channels", f"/channels/{quote(channel['name'])}"):
                    client.expect(401, "GET", path)
        for user in ("management", "policymaker", "monitoring"):
            with api.as_user(user) as client:
                client.delete(of_it, status=401)
                client.delete("/connections/username/administrator", status=401)
        with api.as_user("monitoring") as client:
            assert client.get(of_it)["user"] == "administrator"
        connection.process_data_events(0)
        assert connection.is_open


def test_consumers_are_seen_where_the_virtual_host_is(api: ManagementClient) -> None:
    other = pika.ConnectionParameters("127.0.0.1", amqp_port(api), virtual_host="other")
    with pika.BlockingConnection(other) as connection:
        connection.channel().basic_consume("secret", lambda *_: None)
        with api.as_user("monitoring") as monitor, api.as_user("management") as client:
            wait_until(lambda: monitor.get("/consumers"))
            assert [row["queue"]["vhost"] for row in monitor.get("/consumers")] == ["other"]
            assert client.get("/consumers") == []
            client.expect(401, "GET", "/consumers/other")


def amqp_port(api: ManagementClient) -> int:
    (port,) = (
        one["port"] for one in api.get("/overview")["listeners"] if one["protocol"] == "amqp"
    )
    return int(port)


@pytest.mark.parametrize("user", ["management", "policymaker", "monitoring"])
def test_what_takes_an_administrator(api: ManagementClient, user: str) -> None:
    with api.as_user(user) as client:
        for method, path in (
            ("PUT", "/users/new"),
            ("DELETE", "/users/guest"),
            ("POST", "/users/bulk-delete"),
            ("PUT", "/vhosts/new"),
            ("DELETE", "/vhosts/other"),
            ("PUT", f"/permissions/other/{user}"),
            ("PUT", "/operator-policies/%2F/p"),
            ("PUT", "/vhost-limits/%2F/max-queues"),
            ("PUT", "/user-limits/guest/max-connections"),
            ("POST", "/definitions"),
            ("PUT", "/cluster-name"),
            ("DELETE", "/connections/username/guest"),
            ("PUT", "/queues/other/new"),
            ("DELETE", "/queues/other/secret"),
            ("DELETE", "/queues/other/secret/contents"),
            ("POST", "/queues/other/secret/get"),
            ("POST", "/exchanges/other/amq.default/publish"),
        ):
            client.expect(401, method, path, {})


def test_permissions_count_as_they_do_for_amqp(api: ManagementClient) -> None:
    message = {"routing_key": "own", "payload": "x", "payload_encoding": "string"}
    got = {"ackmode": "ack_requeue_false"}
    with api.as_user("poor") as client:
        client.put("/queues/%2F/new", status=401)
        client.delete("/queues/%2F/own", status=401)
        client.delete("/queues/%2F/own/contents", status=401)
        client.post("/exchanges/%2F/amq.default/publish", message, status=401)
        client.post("/queues/%2F/own/get", got, status=401)
        for path in ("messages", "messages/1/provenance", "purge"):
            client.expect(401, "GET", f"/queues/%2F/own/{path}")
        client.post("/bindings/%2F/e/amq.topic/q/own", {"routing_key": "x"}, status=401)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_a_page_of_another_site_changes_nothing(
    api: ManagementClient, headers: dict[str, str]
) -> None:
    for method, path in (("PUT", "/queues/%2F/forged"), ("DELETE", "/queues/%2F/own")):
        api.expect(403, method, path, {}, headers=headers)
    assert [row["name"] for row in api.get("/queues/%2F")] == ["own"]
    own = {"origin": api.url, "sec-fetch-site": "same-origin"}
    api.expect(204, "PUT", "/queues/%2F/own", {}, headers=own)
