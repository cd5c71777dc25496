"""Tracing with an unchanged client on a real broker: the firehose, and the event exchange."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from amqpstore_tools.__main__ import main
from tests.broker_process import BrokerProcess
from tests.interop.pika_client import wait_until
from tests.management_client import ManagementClient, managed, management_url

NODE = f"amqpstore@{socket.gethostname()}"


class Traced:
    """A broker, and a watcher of one of its exchanges."""

    def __init__(self, directory: Path, broker: BrokerProcess) -> None:
        self.data = str(directory / "data")
        self.broker = broker
        self._connections: list[pika.BlockingConnection] = []
        self.connection = self.connect()
        self.channel = self.connection.channel()

    def connect(self, **more: Any) -> pika.BlockingConnection:
        parameters = pika.ConnectionParameters("127.0.0.1", self.broker.port, **more)
        self._connections.append(pika.BlockingConnection(parameters))
        return self._connections[-1]

    def close(self) -> None:
        for connection in self._connections:
            if connection.is_open:
                connection.close()

    def name_of(self, connection: pika.BlockingConnection) -> str:
        """The name that the broker gives a connection."""
        ours = connection._impl._transport._sock.getsockname()  # type: ignore[attr-defined]
        return f"127.0.0.1:{ours[1]} -> 127.0.0.1:{self.broker.port}"

    def watch(self, exchange: str, key: str = "#") -> "Watcher":
        return Watcher(self.connection.channel(), exchange, key)


class Watcher:
    """Messages that arrive from an exchange: routing key, body and headers."""

    def __init__(self, channel: BlockingChannel, exchange: str, key: str) -> None:
        self._channel = channel
        self.seen: list[tuple[str, bytes, dict[str, Any]]] = []
        self.properties: list[pika.BasicProperties] = []
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, exchange, key)
        channel.basic_consume(queue, self._arrived, auto_ack=True)

    def _arrived(
        self, _: BlockingChannel, method: Any, properties: pika.BasicProperties, body: bytes
    ) -> None:
        self.seen.append((method.routing_key, body, dict(properties.headers or {})))
        self.properties.append(properties)

    def keys(self, count: int) -> list[str]:
        """The routing keys of the first ones, once they are there."""
        wait_until(self._channel, lambda: len(self.seen) >= count)
        return [key for key, _, _ in self.seen[:count]]

    def first(self, key: str, **wanted: object) -> dict[str, Any]:
        """The headers of the first one with a routing key and some headers, once it is there."""

        def found() -> list[dict[str, Any]]:
            return [
                headers
                for its_key, _, headers in self.seen
                if its_key == key and wanted.items() <= headers.items()
            ]

        wait_until(self._channel, lambda: bool(found()))
        return found()[0]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, BrokerProcess]]:
    directory = tmp_path_factory.mktemp("traced")
    with managed(BrokerProcess(str(directory / "data"), str(directory / "log"))) as broker:
        broker.start()
        yield directory, broker


@pytest.fixture
def traced(running: tuple[Path, BrokerProcess]) -> Iterator[Traced]:
    traced = Traced(*running)
    try:
        yield traced
    finally:
        assert main(["vhosts", "trace", "/", "off", "--data", traced.data]) == 0
        traced.close()


def test_the_firehose_has_what_clients_publish_and_get(traced: Traced) -> None:
    watcher = traced.watch("amq.rabbitmq.trace")
    connection = traced.connect()
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    channel.basic_publish("", "q", b"before")
    channel.queue_purge("q")
    trace = ("vhosts", "trace", "/", "on", "--data", traced.data)
    assert main(list(trace)) == 0
    properties = pika.BasicProperties(delivery_mode=2, headers={"h": 1, "BCC": ["nowhere"]})
    channel.basic_publish("", "q", b"body", properties)
    common = {
        "exchange_name": "",
        "routing_keys": ["q", "nowhere"],
        "properties": {"headers": {"h": 1}, "delivery_mode": 2},
        "node": NODE,
        "vhost": "/",
        "connection": traced.name_of(connection),
        "channel": 1,
        "user": "guest",
    }
    assert watcher.first("publish.") == {**common, "routed_queues": ["q"]}
    channel.basic_get("q")
    assert watcher.first("deliver.q") == {**common, "redelivered": 0}
    connection.close()
    assert watcher.seen[0][1] == b"body"
    again = traced.connect().channel()
    again.basic_consume("q", lambda *_: None)
    assert watcher.first("deliver.q", redelivered=1)["connection"] != common["connection"]
    assert main([*trace[:3], "off", *trace[4:]]) == 0
    again.basic_publish("", "q", b"after")
    again.queue_declare("q", passive=True)
    assert b"after" not in [body for _, body, _ in watcher.seen]
    assert watcher.properties[0].delivery_mode is None
    assert main(["vhosts", "trace", "none", "on", "--data", traced.data]) == 1


def test_columns_of_publishes_to_many_queues_are_all_copied(traced: Traced) -> None:
    watcher = traced.watch("amq.rabbitmq.trace", "publish.#")
    assert main(["vhosts", "trace", "/", "on", "--data", traced.data]) == 0
    channel = traced.connect().channel()
    for number in range(10):
        channel.queue_declare(f"q{number}")
    for number in range(500):
        channel.basic_publish("", f"q{number % 10}", str(number).encode())
    assert watcher.keys(500) == ["publish."] * 500
    assert [int(body) for _, body, _ in watcher.seen] == list(range(500))


def test_a_trace_that_nobody_reads_stops_nobody(traced: Traced) -> None:
    traced.channel.queue_declare("unread")
    traced.channel.queue_bind("unread", "amq.rabbitmq.trace", "#")
    traced.channel.queue_declare("short", arguments={"x-max-length": 10})
    traced.channel.queue_bind("short", "amq.rabbitmq.trace", "#")
    assert main(["vhosts", "trace", "/", "on", "--data", traced.data]) == 0
    channel = traced.connect().channel()
    channel.confirm_delivery()
    channel.queue_declare("filled")
    for _ in range(100):
        channel.basic_publish("", "filled", b"x" * 1000)
    asked = traced.channel.queue_declare

    def counts() -> tuple[int, ...]:
        names = ("filled", "unread", "short")
        return tuple(asked(name, passive=True).method.message_count for name in names)

    wait_until(traced.channel, lambda: counts() == (100, 100, 10))


def test_clients_and_what_they_declare_are_events(traced: Traced) -> None:
    watcher = traced.watch("amq.rabbitmq.event")
    properties = {"connection_name": "mine"}
    connection = traced.connect(client_properties=properties)
    name = traced.name_of(connection)
    channel = connection.channel()
    channel.queue_declare("told", durable=True, arguments={"x-max-length": 5})
    channel.queue_bind("told", "amq.topic", "a.#")
    tag = channel.basic_consume("told", lambda *_: None)
    channel.basic_cancel(tag)
    channel.queue_delete("told")
    connection.close()
    login = watcher.first("user.authentication.success", connection_name=name)
    assert (login["name"], login["auth_mechanism"], login["ssl"]) == ("guest", "PLAIN", False)
    created = watcher.first("connection.created", name=name)
    assert created["user_provided_name"] == "mine"
    assert (created["vhost"], created["user"], created["node"]) == ("/", "guest", NODE)
    assert created["client_properties"]["product"] == "Pika Python Client Library"
    assert (created["peer_host"], created["port"]) == ("127.0.0.1", traced.broker.port)
    assert watcher.first("channel.created", connection=name)["number"] == 1
    queue = watcher.first("queue.created", name="told")
    assert (queue["durable"], queue["arguments"]) == (True, {"x-max-length": 5})
    assert queue["user_who_performed_action"] == "guest"
    binding = watcher.first("binding.created", destination_name="told")
    assert (binding["source_name"], binding["routing_key"]) == ("amq.topic", "a.#")
    assert watcher.first("consumer.created", queue="told")["consumer_tag"] == tag
    watcher.first("consumer.deleted", consumer_tag=tag)
    watcher.first("binding.deleted", destination_name="told")
    watcher.first("queue.deleted", name="told")
    watcher.first("channel.closed", connection=name)
    assert watcher.first("connection.closed", name=name)["user_provided_name"] == "mine"
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        traced.connect(credentials=pika.PlainCredentials("guest", "wrong"))
    refused = watcher.first("user.authentication.failure")
    assert refused["error"] == "user 'guest' - invalid credentials"


def test_what_operators_do_are_events(traced: Traced, tmp_path: Path) -> None:
    with ManagementClient(management_url(traced.broker)) as api:
        api.get("/whoami")  # a login is an event, too
        operators_are_watched(traced, api, tmp_path)


def operators_are_watched(traced: Traced, api: ManagementClient, tmp_path: Path) -> None:
    watcher = traced.watch("amq.rabbitmq.event")

    def types(*arguments: str) -> None:
        assert main([*arguments, "--data", traced.data]) == 0

    password = tmp_path / "password"
    password.write_text("one\n")
    read = ("--password-file", str(password))
    types("users", "add", "bob", *read)
    types("users", "change", "bob", "--tag", "monitoring", "--tag", "management")
    password.write_text("two\n")
    types("users", "change", "bob", *read)
    with api.as_user("bob", "two") as bob:
        assert bob.get("/whoami")["tags"] == ["management", "monitoring"]
    types("vhosts", "add", "v1")
    types("vhosts", "trace", "v1", "on")
    api.put("/vhosts/v1", {"description": "first", "tracing": True}, 204)
    api.put("/global-parameters/g", {"value": {"a": [1]}})
    api.delete("/global-parameters/g")
    types("vhosts", "set-limits", "v1", '{"max-queues": 5}')
    types("vhosts", "set-limits", "v1", "{}")
    types("users", "set-limits", "bob", '{"max-connections": 5}')
    patterns = ("--configure", "c", "--write", "w", "--read", "r", "--vhost", "v1")
    types("permissions", "set", "bob", *patterns)
    topics = ("--write", "^a", "--read", "^b", "--vhost", "v1")
    types("permissions", "set-topic", "bob", "amq.topic", *topics)
    types("permissions", "clear-topic", "bob", "--vhost", "v1")
    types("permissions", "clear", "bob", "--vhost", "v1")
    types("policies", "set", "p", "^q", '{"max-length": 10}', "--vhost", "v1")
    types("policies", "clear", "p", "--vhost", "v1")
    types("policies", "set", "o", "^q", '{"max-length": 9}', "--vhost", "v1", "--operator")
    types("policies", "clear", "o", "--vhost", "v1", "--operator")
    types("users", "delete", "bob")
    types("vhosts", "delete", "v1")
    expected = [
        "user.created",
        "user.tags.set",
        "user.password.changed",
        "user.authentication.success",
        "vhost.created",
        "vhost.updated",
        "vhost.updated",
        "parameter.set",
        "parameter.cleared",
        "parameter.set",
        "vhost.limits.set",
        "parameter.cleared",
        "vhost.limits.cleared",
        "user.limits.set",
        "permission.created",
        "topic.permission.created",
        "topic.permission.deleted",
        "permission.deleted",
        "policy.set",
        "policy.cleared",
        "parameter.set",
        "policy.set",
        "parameter.cleared",
        "operator.policy.cleared",
        "user.deleted",
        "vhost.deleted",
    ]
    own = ["binding.created", "consumer.created"]
    assert watcher.keys(len(own) + len(expected)) == own + expected
    assert watcher.first("user.tags.set")["tags"] == ["monitoring", "management"]
    assert watcher.first("policy.set")["definition"] == {"max-length": 10}
    updated = watcher.first("vhost.updated", description="first")
    assert (updated["name"], updated["tracing"]) == ("v1", True)
    assert watcher.first("parameter.set", component="global")["value"] == {"a": [1]}
    assert watcher.first("parameter.cleared", component="global")["name"] == "g"
    limits = watcher.first("vhost.limits.set")
    assert (limits["name"], limits["max-queues"]) == ("limits", 5)
    assert watcher.first("permission.created")["configure"] == "c"


def test_the_api_explains_and_tells_where_a_message_came_from(traced: Traced) -> None:
    traced.channel.queue_declare("shown", durable=True)
    traced.channel.queue_bind("shown", "amq.headers", arguments={"x-match": "all", "eu": True})
    with ManagementClient(management_url(traced.broker)) as api:
        body = {"routing_key": "k", "headers": {"eu": True}}
        explanation = api.post("/exchanges/%2F/amq.headers/explain", body)
        assert [queue["name"] for queue in explanation["queues"]] == ["shown"]
        explanation = api.post("/exchanges/%2F/amq.default/explain", {"routing_key": "shown"})
        assert [queue["name"] for queue in explanation["queues"]] == ["shown"]
        api.expect(400, "POST", "/exchanges/%2F/x/explain", {"properties": {"colour": 1}})
        traced.channel.confirm_delivery()
        persistent = pika.BasicProperties(delivery_mode=2)
        traced.channel.basic_publish("", "shown", b"body", persistent)
        provenance = api.get("/queues/%2F/shown/messages/1/provenance")
        (trail,) = provenance["trail"]
        assert [step["what"] for step in trail["steps"]] == ["enqueued"]
        assert trail["route_now"]["queues"][0]["name"] == "shown"
        assert api.get(f"/messages/{trail['id']}/provenance")["trail"][0]["body_bytes"] == 4

        def ack(channel: BlockingChannel, method: Any, _properties: object, _body: bytes) -> None:
            channel.basic_ack(method.delivery_tag)

        traced.channel.basic_consume("shown", ack, consumer_tag="worker")

        def clients() -> list[tuple[str, str, str, str | None]]:
            found = api.get("/queues/%2F/shown/messages/1/provenance")["clients"]
            return [
                (one["what"], one["user"], one["connection"], one["consumer_tag"]) for one in found
            ]

        wait_until(traced.channel, lambda: len(clients()) == 3)
        name = traced.name_of(traced.connection)
        assert clients() == [
            ("published", "guest", name, None),
            ("delivered", "guest", name, "worker"),
            ("acked", "guest", name, "worker"),
        ]
        api.expect(404, "GET", "/queues/%2F/shown/messages/99/provenance")
        api.expect(400, "GET", "/queues/%2F/shown/messages/x/provenance")
        api.expect(400, "GET", "/messages/x/provenance")
        with api.as_user("guest", "wrong") as nobody:
            nobody.expect(401, "GET", f"/messages/{trail['id']}/provenance")
