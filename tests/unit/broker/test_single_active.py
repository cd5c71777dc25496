"""Tests of who follows a single active consumer, and of what quorum queues do differently."""

from typing import Any

import pytest

from amqpstore_server.protocol.content import decode_properties
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client, publish


def test_the_highest_priority_follows_a_single_active_consumer_and_then_the_oldest(
    simulated: SimulatedBroker,
) -> None:
    simulated.queue("q", single_active_consumer=True)
    client = Client(simulated)
    for tag, priority in (("a", 0), ("b", 0), ("c", 10), ("d", 10), ("e", 3)):
        client.consume("q", tag, no_ack=True, priority=priority)
    for number, tag in enumerate("acdeb"):
        publish(simulated, "q", f"{number}")
        assert client.got[number:] == [(tag, f"{number}")]
        client.channel.cancel(tag)
        simulated.settle()


def test_in_a_classic_queue_the_active_consumer_stays(simulated: SimulatedBroker) -> None:
    simulated.queue("q", single_active_consumer=True)
    client = Client(simulated)
    client.consume("q", "a", no_ack=True)
    client.consume("q", "b", no_ack=True, priority=10)
    publish(simulated, "q", "1")
    assert client.got == [("a", "1")]


def test_in_a_quorum_queue_the_highest_priority_takes_over_from_who_has_settled(
    simulated: SimulatedBroker,
) -> None:
    simulated.queue("q", single_active_consumer=True, queue_type="quorum")
    client = Client(simulated)
    client.consume("q", "a", prefetch=10)
    publish(simulated, "q", "1", "2")
    client.consume("q", "b", prefetch=10, priority=5)
    client.consume("q", "c", prefetch=10, priority=7)
    publish(simulated, "q", "3")
    assert client.got == [("a", "1"), ("a", "2")]
    client.ack("1")
    simulated.settle()
    assert client.bodies("c") == []
    client.ack("2")
    simulated.settle()
    assert client.bodies("c") == ["3"]
    publish(simulated, "q", "4")
    assert client.bodies("c") == ["3", "4"]
    client.channel.cancel("c")
    publish(simulated, "q", "5")
    assert client.bodies("b") == ["5"]


@pytest.mark.parametrize(
    ("arguments", "counted"),
    [
        ({"queue_type": "quorum", "delivery_limit": -1}, True),
        ({"queue_type": "quorum"}, True),
        ({"delivery_limit": 5}, True),
        ({}, False),
    ],
)
def test_a_quorum_queue_counts_deliveries_whatever_its_limit(
    simulated: SimulatedBroker, arguments: dict[str, Any], counted: bool
) -> None:
    simulated.queue("q", **arguments)
    publish(simulated, "q", "a")
    client = Client(simulated)
    for deliveries in range(3):
        got = client.channel.get(simulated.vhost.queue("q"), no_ack=False)
        assert got is not None
        tag, run = got
        assert run.messages
        (message,) = run.messages
        headers = decode_properties(message.envelope.properties).headers or {}
        assert headers.get("x-delivery-count") == (deliveries or None if counted else None)
        client.channel.reject(tag, requeue=True)
        simulated.settle()
