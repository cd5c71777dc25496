"""The event exchange tells what happens once, with RabbitMQ's keys, while a queue is bound."""

from typing import Any

import pytest

from amqpstore_server.amqp.arguments import plain
from amqpstore_server.broker.broker import Defined
from amqpstore_server.broker.channels import consumer_events, event_messages
from amqpstore_server.broker.errors import AccessRefusedError
from amqpstore_server.broker.queues.consumer import ConsumerOptions
from amqpstore_server.broker.work.events import EVENT_EXCHANGE, BrokerEvent, Headers
from amqpstore_server.protocol.content import decode_properties
from tests.simulated_broker import START_MS, SimulatedBroker
from tests.unit.broker.simulated import Client


class Heard(SimulatedBroker):
    """A broker with a queue `events` for all events."""

    def __init__(self) -> None:
        super().__init__()
        self.queue("events", durable=False)
        self.bind(EVENT_EXCHANGE, "events", "#")
        self.heard()

    def heard(self) -> list[tuple[str, dict[str, Any]]]:
        """The routing key and headers of each event since the last call."""
        self.settle()
        found = []
        for part in self.store.stored.browse(self.vhost.queue("events").priorities.lowest):
            for message in part:
                properties = decode_properties(message.envelope.properties)
                assert (message.body, properties.delivery_mode) == (b"", 2)
                headers = plain(properties.headers or {})
                assert headers.pop("timestamp_in_ms") == START_MS
                assert properties.timestamp == START_MS // 1000
                found.append((message.envelope.routing_key, headers))
        self.vhost.queue("events").backlog.purge()
        return found

    def keys(self) -> list[str]:
        return [key for key, _ in self.heard()]


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.mark.parametrize("is_bound", [False, True])
def test_no_event_of_a_consumer_is_made_unless_somebody_listens(
    monkeypatch: pytest.MonkeyPatch, is_bound: bool
) -> None:
    simulated = Heard() if is_bound else SimulatedBroker()
    simulated.queue("q")
    made: list[str] = []

    def make(key: str, headers: Headers) -> BrokerEvent:
        made.append(key)
        return BrokerEvent(key, headers)

    monkeypatch.setattr(consumer_events, "BrokerEvent", make)
    client = Client(simulated)
    client.consume("q", "a")
    client.channel.close()
    assert made == (["consumer.created", "consumer.deleted"] if is_bound else [])


NOBODY = {"vhost": "/", "user_who_performed_action": "rmq-internal"}


def test_queues_exchanges_and_bindings(heard: Heard) -> None:
    heard.queue("q", max_length=5)
    heard.exchange("e", "topic")
    heard.bind("e", "q", "k", a=1)
    binding = {
        "source_name": "e",
        "source_kind": "exchange",
        "destination_name": "q",
        "destination_kind": "queue",
        "routing_key": "k",
        "arguments": {"a": 1},
        **NOBODY,
    }
    assert heard.heard() == [
        (
            "queue.created",
            {
                "name": "q",
                "durable": True,
                "auto_delete": False,
                "exclusive": False,
                "owner_pid": "",
                "arguments": {"x-max-length": 5},
                **NOBODY,
            },
        ),
        (
            "exchange.created",
            {
                "name": "e",
                "type": "topic",
                "durable": True,
                "auto_delete": False,
                "internal": False,
                "arguments": {},
                "policy": "",
                **NOBODY,
            },
        ),
        ("binding.created", binding),
    ]
    # Again, and nothing has changed.
    heard.queue("q", max_length=5)
    heard.bind("e", "q", "k", a=1)
    heard.vhost.exchange_definitions.delete("e", if_unused=False)
    assert (
        heard.heard()
        == [
            ("exchange.deleted", {"name": "e", **NOBODY}),
            ("binding.deleted", binding),
        ]
        or heard.keys() == []
    )
    heard.vhost.delete_queue(heard.vhost.queue("q"))
    assert heard.heard() == [("queue.deleted", {"name": "q", **NOBODY})]


def test_consumers_come_and_go(heard: Heard) -> None:
    heard.queue("q")
    client = Client(heard)
    heard.heard()
    client.channel.consume(heard.vhost.queue("q"), "one", ConsumerOptions(), {"x-priority": 1})
    ((key, headers),) = heard.heard()
    assert (key, headers["arguments"], headers["ack_required"]) == (
        "consumer.created",
        {"x-priority": 1},
        True,
    )
    client.consume("q", "two")
    client.channel.cancel("one")
    heard.vhost.delete_queue(heard.vhost.queue("q"))
    assert heard.keys() == [
        "consumer.created",
        "consumer.deleted",
        "queue.deleted",
        "consumer.deleted",
    ]
    heard.queue("r")
    client.consume("r", "three")
    client.channel.close()
    assert heard.keys() == ["queue.created", "consumer.created", "consumer.deleted"]


def test_nothing_is_made_while_nobody_listens() -> None:
    simulated = SimulatedBroker()
    simulated.queue("q")
    simulated.bind("amq.topic", "q", "k")
    assert not simulated.services.agenda.background
    assert not simulated.services.events.is_heard


def test_many_events_are_published_a_few_at_a_time(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = object()
    for number in range(3 * event_messages.AT_ONCE):
        heard.vhost.declare_queue(
            f"q{number}",
            durable=False,
            exclusive=True,
            auto_delete=False,
            arguments={},
            connection=owner,
        )
    counts = []
    queue = heard.vhost.queue("events")
    while heard.broker.pumping.has_work:
        before = queue.ready_count
        heard.broker.pumping.pump()
        counts.append(queue.ready_count - before)
    assert max(counts) == event_messages.AT_ONCE
    assert sum(counts) == 3 * event_messages.AT_ONCE
    heard.vhost.owned_queues.end(owner)
    assert heard.keys().count("queue.deleted") == 3 * event_messages.AT_ONCE


def test_events_do_not_beget_events(heard: Heard) -> None:
    heard.vhost.declare_queue(
        "passing",
        durable=False,
        exclusive=False,
        auto_delete=True,
        arguments={"x-expires": 1000},
        connection=None,
    )
    heard.bind(EVENT_EXCHANGE, "passing", "#")
    heard.pass_time(1001)
    # Its binding and itself are told once, and the turns come to an end.
    keys = [key for key, _ in _without_time(heard)]
    assert keys == ["queue.created", "binding.created", "binding.deleted", "queue.deleted"]


def _without_time(heard: Heard) -> list[tuple[str, dict[str, Any]]]:
    heard.settle()
    return [
        (message.envelope.routing_key, {})
        for part in heard.store.stored.browse(heard.vhost.queue("events").priorities.lowest)
        for message in part
    ]


def test_clients_cannot_publish_there(heard: Heard) -> None:
    with pytest.raises(AccessRefusedError, match="internal"):
        Client(heard).publish(EVENT_EXCHANGE, "queue.created", "forged")


def test_headers_that_are_too_large_are_left_out(heard: Heard) -> None:
    heard.services.events.happened(
        "", BrokerEvent("queue.created", {"name": "q", "arguments": {"a": "x" * 50_000}})
    )
    ((_, headers),) = heard.heard()
    assert headers == {"name": "q", "user_who_performed_action": "rmq-internal"}


def test_only_the_default_virtual_host_has_it(heard: Heard) -> None:
    heard.broker.define(Defined(["other"]))
    assert EVENT_EXCHANGE not in heard.broker.vhost("other").exchanges
    heard.broker.vhost("other").declare_queue(
        "q", durable=True, exclusive=False, auto_delete=False, arguments={}, connection=None
    )
    ((key, headers),) = heard.heard()
    assert (key, headers["vhost"]) == ("queue.created", "other")
