"""The firehose: what is published and delivered is copied, once, with RabbitMQ's headers."""

from typing import Any

import pytest

from amqpstore_server.amqp.arguments import plain
from amqpstore_server.broker.channels.branches import Xid
from amqpstore_server.broker.channels.channel import Channel
from amqpstore_server.broker.channels.confirms import Flags
from amqpstore_server.broker.channels.firehose import AT_ONCE, TRACE_EXCHANGE, Origin
from amqpstore_server.broker.errors import AccessRefusedError
from amqpstore_server.broker.rights.permissions import ALL, Access
from amqpstore_server.protocol.content import decode_properties
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client, labelled

ORIGIN = Origin("1.2.3.4:5 -> 6.7.8.9:5672", 3, "anna")


class Traced(SimulatedBroker):
    """A broker whose firehose is on, with a queue `trace` for its copies."""

    def __init__(self) -> None:
        super().__init__()
        self.queue("trace", durable=False)
        self.bind(TRACE_EXCHANGE, "trace", "#")
        self.queue("q")
        self.vhost.firehose.is_on = True

    def client(self) -> Client:
        client = Client(self)
        client.channel = Channel(self.vhost, client, client, origin=ORIGIN)
        return client

    def copies(self) -> list[tuple[str, str, dict[str, Any]]]:
        """The routing key, body and headers of each copy since the last call."""
        self.settle()
        store_queue = self.vhost.queue("trace").priorities.lowest
        found = [
            (
                message.envelope.routing_key,
                message.body.decode(),
                plain(decode_properties(message.envelope.properties).headers or {}),
            )
            for part in self.store.stored.browse(store_queue)
            for message in part
        ]
        self.vhost.queue("trace").backlog.purge()
        return found

    def keys(self) -> list[str]:
        return [f"{key} {body}" for key, body, _ in self.copies()]


@pytest.fixture
def traced() -> Traced:
    return Traced()


def test_the_headers_are_those_of_rabbitmq(traced: Traced) -> None:
    client = traced.client()
    traced.bind("amq.topic", "q", "a.*")
    headers = {"h": 1, "CC": ["a.c"], "BCC": ["a.d"]}
    client.publish("amq.topic", "a.b", "x", headers=headers, priority=3, message_id="m")
    properties = {
        "headers": {"h": 1, "CC": ["a.c"]},
        "delivery_mode": 2,
        "priority": 3,
        "message_id": "m",
    }
    common = {
        "exchange_name": "amq.topic",
        "routing_keys": ["a.b", "a.c", "a.d"],
        "properties": properties,
        "node": "amqpstore@localhost",
        "vhost": "/",
        "connection": ORIGIN.connection,
        "channel": 3,
        "user": "anna",
    }
    assert traced.copies() == [("publish.amq.topic", "x", {**common, "routed_queues": ["q"]})]
    assert client.get("q") == "x"
    assert traced.copies() == [("deliver.q", "x", {**common, "redelivered": 0})]
    client.requeue("x")
    client.consume("q", "tag")
    assert traced.copies() == [("deliver.q", "x", {**common, "redelivered": 1})]


def test_what_goes_nowhere_is_copied_too(traced: Traced) -> None:
    traced.client().publish("amq.fanout", "k", "lost")
    ((key, _, headers),) = traced.copies()
    assert (key, headers["routed_queues"]) == ("publish.amq.fanout", [])


def test_nothing_is_copied_while_it_is_off(traced: Traced) -> None:
    client = traced.client()
    traced.vhost.firehose.is_on = False
    client.publish("", "q", "x")
    client.get("q")
    assert traced.keys() == []
    assert not traced.services.agenda.background


def test_copies_are_not_copied_nor_what_becomes_of_them(traced: Traced) -> None:
    traced.queue("morgue")
    traced.queue("short", max_length=1, dead_letter_exchange="", dead_letter_routing_key="morgue")
    traced.bind(TRACE_EXCHANGE, "short", "publish.#")
    client = traced.client()
    client.consume("trace", "watcher", no_ack=True)
    client.publish("", "q", "one")
    client.publish("", "q", "two")
    traced.settle()
    assert traced.ready("morgue") == ["one"]
    client.consume("morgue", "other", no_ack=True)
    traced.settle()
    assert client.bodies("other") == ["one"]
    assert client.bodies("watcher") == ["one", "two"]
    assert traced.keys() == []


def test_a_transaction_is_copied_when_it_is_committed(traced: Traced) -> None:
    client = traced.client()
    client.channel.select_transactions()
    for body in ("one", "two"):
        client.channel.publish(*labelled("", "q", body, message_id=f"id {body}"), Flags())
    client.channel.publish(*labelled("amq.fanout", "q", "three"), Flags())
    assert traced.keys() == []
    client.channel.commit()
    copies = traced.copies()
    assert [
        (key, body, headers["properties"].get("message_id")) for key, body, headers in copies
    ] == [
        ("publish.", "one", "id one"),
        ("publish.", "two", "id two"),
        ("publish.amq.fanout", "three", None),
    ]
    client.channel.publish(*labelled("", "q", "four"), Flags())
    client.channel.rollback()
    assert traced.keys() == []


def test_a_prepared_branch_is_copied_when_it_is_committed(traced: Traced) -> None:
    client = traced.client()
    access = Access("anna", "/", dict(ALL))
    xid = Xid(1, b"global", b"")
    branches = traced.vhost.branches
    client.channel.select_branches()
    branches.start(client.channel, access, xid, join=False, resume=False)
    client.channel.publish(*labelled("", "q", "one", delivery_mode=2), Flags())
    branches.end(client.channel, access, xid, fail=False, suspend=False)
    for _ in branches.preparing(access, xid, lambda _: None):
        pass
    assert traced.keys() == []
    traced.restart()
    traced.vhost.firehose.is_on = True
    traced.queue("trace", durable=False)
    traced.bind(TRACE_EXCHANGE, "trace", "#")
    for _ in traced.vhost.branches.committing(access, xid, lambda _: None, one_phase=False):
        pass
    ((key, body, headers),) = traced.copies()
    assert (key, body, headers["user"], headers["channel"]) == ("publish.", "one", "anna", 0)


def test_clients_cannot_publish_there_before_or_after_a_copy(traced: Traced) -> None:
    client = traced.client()
    for _ in range(2):
        with pytest.raises(AccessRefusedError, match="internal"):
            client.publish(TRACE_EXCHANGE, "publish.", "forged")
        client.publish("", "q", "x")
        traced.settle()
    assert traced.keys() == ["publish. x", "publish. x"]


def test_long_names_and_headers_fit(traced: Traced) -> None:
    client = traced.client()
    name = "é" * 127
    traced.queue(name)
    client.publish("", name, "x", headers={"long": "x" * 60_000})
    ((key, _, headers),) = traced.copies()
    assert (key, headers["is_cut"]) == ("publish.", True)
    assert "headers" not in headers["properties"]
    client.get(name)
    ((key, _, _),) = traced.copies()
    assert key == "deliver." + "é" * 123


def test_a_full_disk_costs_the_copies_and_nothing_else(traced: Traced) -> None:
    traced.queue("kept", queue_type="quorum")
    traced.bind(TRACE_EXCHANGE, "kept", "#")
    client = traced.client()
    client.publish("", "q", "one")
    traced.settle()
    client.get("q")
    traced.fill_disk()
    traced.settle()
    traced.free_disk()
    client.publish("", "q", "two")
    assert traced.keys() == ["publish. one", "publish. two"]


def test_many_copies_leave_others_their_turn_and_keep_up(traced: Traced) -> None:
    client = traced.client()
    count = 8 * AT_ONCE
    client.channel.publish(*labelled("", "q", *map(str, range(count))), Flags())
    counts = turns(traced)
    assert sum(counts) == count
    assert max(counts) == counts[0]
    assert counts[0] == count // 4
    assert [int(body) for _, body, _ in traced.copies()] == list(range(count))


@pytest.mark.parametrize("alike", [True, False])
def test_the_copies_of_a_large_transaction_are_made_in_several_turns(
    traced: Traced, *, alike: bool
) -> None:
    for name in ("q1", "q2"):
        traced.queue(name)
    client = traced.client()
    client.channel.select_transactions()
    count = 3 * AT_ONCE
    if alike:
        client.channel.publish(*labelled("", "q", *map(str, range(count))), Flags())
    else:
        for number in range(count):
            client.channel.publish(*labelled("", f"q{number % 2 + 1}", str(number)), Flags())
    client.channel.commit()
    counts = turns(traced)
    assert sum(counts) == count
    assert max(counts) <= AT_ONCE // 2
    if alike:
        assert [int(body) for _, body, _ in traced.copies()] == list(range(count))


def turns(traced: Traced) -> list[int]:
    """Have turns until all is done, and return how many copies were made in each."""
    queue = traced.vhost.queue("trace")
    counts = []
    while traced.broker.pumping.has_work:
        before = queue.ready_count
        traced.broker.pumping.pump()
        counts.append(queue.ready_count - before)
    return counts


def test_an_error_in_it_does_not_end_it(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    client = traced.client()
    with monkeypatch.context() as broken:
        broken.setattr(traced.vhost.router, "own_routes", lambda _: 1 / 0)
        client.publish("", "q", "one")
        traced.settle()
    client.publish("", "q", "two")
    assert traced.keys() == ["publish. two"]


def test_it_is_off_after_a_start(traced: Traced) -> None:
    traced.settle()
    traced.restart()
    assert not traced.vhost.firehose.is_on
