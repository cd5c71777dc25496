"""Tests of the table of names for messages: each header and property with an effect has it."""

from collections.abc import Callable
from typing import Any

import pytest

from amqpstore_server.broker.definitions.accepted import TABLE, NameScope, Treatment
from amqpstore_server.broker.exchanges.replay import REPLAY_EXCHANGE
from tests.simulated_broker import START_MS, SimulatedBroker
from tests.unit.broker.simulated import Client

Seen = Callable[[SimulatedBroker, Client, dict[str, Any]], object]
"""Publishes a message with these properties, and returns what can be seen of its effect."""


def in_queues(broker: SimulatedBroker, client: Client, properties: dict[str, Any]) -> object:
    client.publish("", "q", "one", **properties)
    broker.settle()
    return {name: broker.ready(name) for name in ("q", "r")}


def delayed(broker: SimulatedBroker, client: Client, properties: dict[str, Any]) -> object:
    broker.exchange("later", "x-delayed-message", x_delayed_type="fanout")
    broker.bind("later", "q")
    client.publish("later", "", "one", **properties)
    broker.settle()
    return broker.ready("q")


def history(broker: SimulatedBroker, client: Client, properties: dict[str, Any]) -> object:
    broker.exchange("recent", "x-recent-history")
    client.publish("recent", "", "one", **properties)
    broker.bind("recent", "q")
    broker.settle()
    return broker.ready("q")


def replayed(broker: SimulatedBroker, client: Client, properties: dict[str, Any]) -> object:
    broker.queue("kept", history_length=9)
    for body in "abc":
        client.publish("", "kept", body, message_id=body)
        broker.settle()
        client.get("kept")
        client.ack(body)
        broker.pass_time(10)
    client.publish(REPLAY_EXCHANGE, "kept", "replay", **properties)
    broker.settle()
    return {name: broker.ready(name) for name in ("kept", "q", "r")}


def deaths(broker: SimulatedBroker, client: Client, properties: dict[str, Any]) -> object:
    broker.queue("dying", dead_letter_exchange="", dead_letter_routing_key="q")
    client.publish("", "dying", "one", **properties)
    broker.settle()
    client.get("dying")
    client.reject("one")
    broker.settle()
    return broker.headers("q")[0]["x-death"][0]["count"]


def after_a_restart(broker: SimulatedBroker, client: Client, properties: dict[str, Any]) -> object:
    client.publish("", "q", "one", **properties)
    broker.settle()
    broker.restart()
    return broker.ready("q")


def after_a_minute(broker: SimulatedBroker, client: Client, properties: dict[str, Any]) -> object:
    client.publish("", "q", "one", **properties)
    broker.settle()
    broker.pass_time(60_000)
    broker.settle()
    return broker.ready("q")


def by_priority(broker: SimulatedBroker, client: Client, properties: dict[str, Any]) -> object:
    broker.queue("by-priority", max_priority=9)
    client.publish("", "by-priority", "first")
    client.publish("", "by-priority", "one", **properties)
    broker.settle()
    return client.get("by-priority")


def death(queue: str) -> dict[str, Any]:
    return {
        "queue": queue,
        "reason": "rejected",
        "count": 7,
        "exchange": "",
        "routing-keys": [queue],
    }


HEADERS: dict[str, tuple[Seen, Any]] = {
    "CC": (in_queues, ["r"]),
    "BCC": (in_queues, ["r"]),
    "x-delay": (delayed, 1000),
    "x-recent-history-no-store": (history, True),
    "x-replay-to": (replayed, "r"),
    "x-from": (replayed, START_MS + 10),
    "x-to": (replayed, START_MS + 10),
    "x-limit": (replayed, 1),
    "x-message-id": (replayed, "b"),
    "x-death": (deaths, [death("dying")]),
}
PROPERTIES: dict[str, tuple[Seen, Any]] = {
    "delivery-mode": (after_a_restart, 1),
    "expiration": (after_a_minute, "1000"),
    "headers": (in_queues, {"CC": ["r"]}),
    "priority": (by_priority, 5),
}


def acting(scope: NameScope) -> set[str]:
    return {name for name, rule in TABLE[scope].items() if rule.treatment is Treatment.ACTS}


def seen(probe: Seen, properties: dict[str, Any]) -> object:
    broker = SimulatedBroker()
    for name in ("q", "r"):
        broker.queue(name)
    return probe(broker, Client(broker), properties)


def test_each_header_and_property_that_acts_is_tried() -> None:
    assert set(HEADERS) == acting(NameScope.HEADER)
    # What these two do is seen on connections: see tests of direct replies, and of `user-id`.
    assert {*PROPERTIES, "reply-to", "user-id"} == acting(NameScope.PROPERTY)


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_acts_changes_what_becomes_of_its_message(name: str) -> None:
    probe, value = HEADERS[name]
    assert seen(probe, {"headers": {name: value}}) != seen(probe, {"headers": {"mine": 1}})


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_property_that_acts_changes_what_becomes_of_its_message(name: str) -> None:
    probe, value = PROPERTIES[name]
    assert seen(probe, {name.replace("-", "_"): value}) != seen(probe, {})


@pytest.mark.parametrize(
    "name",
    sorted({*TABLE[NameScope.HEADER]} - acting(NameScope.HEADER) | {"x-delai", "cc", "x-anything"}),
)
def test_any_other_header_changes_nothing(name: str) -> None:
    for probe in (in_queues, after_a_minute, after_a_restart):
        assert seen(probe, {"headers": {name: "r"}}) == seen(probe, {})
