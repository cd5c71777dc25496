"""Requests and comparisons of clients of RabbitMQ's API: Flower of Celery, the Go client of
Terraform, the Java client, and the Rust client of `rabbitmqadmin`'s second generation, which
refuses answers that lack a number.
"""

import base64
import http.client
from collections.abc import Generator
from urllib.parse import urlparse

import pika
import pika.exceptions
import pytest

from tests.broker_process import BrokerProcess
from tests.management_client import ManagementClient, managed, management_url

ALL = {"configure": ".*", "write": ".*", "read": ".*"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("management")
    with managed(BrokerProcess(str(directory / "data"), str(directory / "log"))) as broker:
        broker.start()
        yield broker


@pytest.fixture(scope="module")
def api(broker: BrokerProcess) -> Generator[ManagementClient]:
    with ManagementClient(management_url(broker)) as client:
        yield client


def status_line(api: ManagementClient, method: str, path: str, body: str = "{}") -> str:
    """The status of an answer as the Go client shows it."""
    url = urlparse(api.url)
    assert url.hostname
    connection = http.client.HTTPConnection(url.hostname, url.port or 0, timeout=60)
    login = base64.b64encode(b"guest:guest").decode()
    headers = {"authorization": f"Basic {login}", "content-type": "application/json"}
    connection.request(method, f"/api{path}", body, headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return f"{answer.status} {answer.reason}"


def test_a_status_has_its_phrase(api: ManagementClient) -> None:
    assert status_line(api, "PUT", "/queues/%2F/phrased") == "201 Created"
    assert status_line(api, "PUT", "/queues/%2F/phrased") == "204 No Content"
    assert status_line(api, "GET", "/queues/%2F/phrased") == "200 OK"
    assert status_line(api, "GET", "/queues/%2F/nothing") == "404 Not Found"
    assert status_line(api, "PUT", "/queues/%2F/phrased", "x") == "400 Bad Request"
    # On a connection that is used again, as on the first of it.
    for _ in range(2):
        assert api.request("DELETE", "/queues/%2F/phrased").reason in ("No Content", "Not Found")


def test_a_body_that_looks_like_a_head_is_left_alone(api: ManagementClient) -> None:
    name = "HTTP%2F1.1%20200%20"
    api.put(f"/queues/%2F/{name}")
    assert api.get(f"/queues/%2F/{name}", columns="name") == {"name": "HTTP/1.1 200 "}
    api.delete(f"/queues/%2F/{name}")


def test_flower_finds_the_queues_of_celery(api: ManagementClient) -> None:
    api.put("/queues/%2F/celery")
    # As it puts the path of the default virtual host together.
    for path in ("/queues//", "/queues/%2F"):
        (row,) = [row for row in api.get(path) if row["name"] == "celery"]
        shown = ("messages", "messages_ready", "messages_unacknowledged", "consumers")
        assert [row[name] for name in shown] == [0, 0, 0, 0]


def test_any_tag_is_kept(api: ManagementClient) -> None:
    """The Java client compares tags; a user with unknown tags only may not log in."""
    for status, tags in ((201, ["original", "management"]), (204, ["own"])):
        api.put("/users/tagged", {"password": "s3krE7", "tags": ",".join(tags)}, status)
        assert api.get("/users/tagged")["tags"] == tags
    with api.as_user("tagged", "s3krE7") as tagged:
        tagged.expect(401, "GET", "/whoami")
    api.delete("/users/tagged")


def test_the_permissions_of_no_virtual_host_are_not_found(api: ManagementClient) -> None:
    for path in ("/vhosts/none", "/users/none"):
        for kind in ("permissions", "topic-permissions"):
            assert api.expect(404, "GET", f"{path}/{kind}")["reason"] == "Not Found"


def test_topic_permissions_come_in_any_order(api: ManagementClient) -> None:
    """Terraform creates what does not depend on each other at the same time."""
    api.put("/users/temporary", {"password": "s3krE7", "tags": "management"})
    body = {"exchange": "amq.topic", "write": "log.*", "read": "log.*"}
    row = {"user": "temporary", "vhost": "/", **body}
    api.put("/topic-permissions/%2F/temporary", body)
    assert api.get("/users/temporary/topic-permissions") == [row]
    # A topic permission is a restriction, and lets no user in.
    assert "temporary" in [user["name"] for user in api.get("/users/without-permissions")]
    with api.as_user("temporary", "s3krE7") as temporary:
        temporary.expect(401, "GET", "/queues/%2F")
        api.put("/permissions/%2F/temporary", ALL)
        temporary.get("/queues/%2F")
    api.delete("/permissions/%2F/temporary")
    assert api.get("/topic-permissions/%2F/temporary") == [row]
    # A whole definition file of it comes back, too.
    exported = api.get("/definitions")
    assert row in exported["topic_permissions"]
    assert "temporary" not in [one["user"] for one in exported["permissions"]]
    api.delete("/topic-permissions/%2F/temporary")
    api.expect(404, "GET", "/topic-permissions/%2F/temporary")
    api.post("/definitions", exported, 204)
    assert api.get("/topic-permissions/%2F/temporary") == [row]
    api.expect(404, "GET", "/permissions/%2F/temporary")
    api.delete("/users/temporary")
    assert api.get("/topic-permissions") == []


def test_a_consumer_s_timeout_is_the_one_in_force(
    broker: BrokerProcess, api: ManagementClient
) -> None:
    api.put("/queues/%2F/default")
    api.put("/queues/%2F/patient", {"arguments": {"x-consumer-timeout": 7_200_000}})
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        for queue, arguments in (
            ("default", {}),
            ("patient", {}),
            ("patient", {"x-consumer-timeout": 60_000}),
        ):
            channel.basic_consume(queue, lambda *_: None, arguments=arguments)
        rows = api.get("/consumers/%2F")
        found = sorted((row["queue"]["name"], row["consumer_timeout"]) for row in rows)
    assert found == [("default", 1_800_000), ("patient", 60_000), ("patient", 7_200_000)]


def test_an_address_of_direct_replies_is_nowhere(
    api: ManagementClient, broker: BrokerProcess
) -> None:
    """A client that sees such an address could forge replies."""
    queues = api.get("/overview")["object_totals"]["queues"]
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("requests", exclusive=True)
        channel.basic_consume("amq.rabbitmq.reply-to", lambda *_: None, auto_ack=True)
        properties = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to")
        channel.basic_publish("", "requests", b"", properties)
        channel.exchange_declare(
            "later", "x-delayed-message", arguments={"x-delayed-type": "fanout"}
        )
        got = channel.basic_get("requests", auto_ack=True)[1]
        assert got is not None
        address = str(got.reply_to)
        # A declare of either is a question, and declares nothing.
        assert channel.queue_declare(address).method.consumer_count == 1
        assert channel.queue_declare("amq.rabbitmq.reply-to").method.message_count == 0
        lists = ("/queues", "/consumers", "/connections", "/channels", "/bindings", "/definitions")
        for path in lists:
            shown = str(api.get(path))
            assert address not in shown, path
            assert path == "/channels" or "amq.rabbitmq.reply-to" not in shown, path
        assert api.get("/overview")["object_totals"]["queues"] == queues + 1
        text = api.request("GET", "/metrics/per-object").text
        assert address not in text
        assert api.request("GET", f"/queues/%2F/{address}").status_code == 404
        assert api.request("GET", f"/queues/%2F/{address}/messages").status_code == 404
        for refused in ("queue_purge", "queue_delete", "basic_get"):
            other = connection.channel()
            if refused == "queue_delete":
                other.queue_delete(address)  # as of any that is not there
                continue
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="404"):
                getattr(other, refused)(address)
        channel.exchange_delete("later")
        assert channel.queue_declare(address).method.consumer_count == 1


def test_a_node_s_memory_has_every_part(api: ManagementClient) -> None:
    node = api.get("/overview")["node"]
    memory = api.get(f"/nodes/{node}/memory")["memory"]
    assert memory.pop("strategy") == "rss"
    total = memory.pop("total")
    # RabbitMQ 4.0.5 has 26.
    assert len(memory) == 26
    assert all(type(part) is int and part >= 0 for part in memory.values())
    assert sum(memory.values()) == total["rss"] == total["allocated"] == total["erlang"]
    relative = api.get(f"/nodes/{node}/memory/relative")["memory"]
    assert relative.pop("total") == 100
    assert relative.keys() == memory.keys()
    assert 100 <= sum(relative.values()) <= 102
    for path in ("memory", "memory/relative"):
        api.expect(404, "GET", f"/nodes/none/{path}")


def test_logins_are_counted(api: ManagementClient) -> None:
    node = api.get("/overview")["node"]

    def counts() -> dict[str, tuple[int, ...]]:
        columns = ("", "_succeeded", "_failed")
        return {
            row["protocol"]: tuple(row[f"auth_attempts{column}"] for column in columns)
            for row in api.get(f"/auth/attempts/{node}")
        }

    before = counts()
    assert before.keys() == {"amqp091", "http"}
    with api.as_user("guest", "wrong") as wrong:
        for _ in range(2):
            wrong.expect(401, "GET", "/whoami")
    tried, right, failed = before["http"]
    # An answer counts its own request.
    assert counts()["http"] == (tried + 3, right + 1, failed + 2)
    api.expect(404, "GET", "/auth/attempts/none")
