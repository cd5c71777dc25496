"""Tests of the explanation why a message would go where it goes."""

import json
from typing import Any

import pytest

from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.routing import explaining
from amqpstore_server.broker.routing.explaining import Explanation, explain
from amqpstore_server.protocol.content import BasicProperties
from tests.simulated_broker import SimulatedBroker


@pytest.fixture
def simulated() -> SimulatedBroker:
    simulated = SimulatedBroker()
    simulated.queue("a")
    simulated.queue("b", dead_letter_exchange="morgue", dead_letter_routing_key="b")
    return simulated


def explained(
    simulated: SimulatedBroker, exchange: str, key: str, **properties: Any
) -> Explanation:
    found = explain(simulated.vhost.router, exchange, key, BasicProperties(**properties))
    json.dumps(found)
    return found


def reasons(found: Explanation) -> list[tuple[str, str, str, str]]:
    """Exchange, binding key, destination and reason of each match."""
    return [
        (step["exchange"], match["binding_key"], match["name"], match["why"])
        for step in found["steps"]
        for match in step["matches"]
    ]


def test_each_type_says_why(simulated: SimulatedBroker) -> None:
    simulated.bind("amq.direct", "a", "k")
    simulated.bind("amq.fanout", "a", "any")
    simulated.bind("amq.topic", "a", "x.#")
    simulated.bind("amq.topic", "b", "y.#")
    simulated.bind("amq.topic", "a", "x.y")
    simulated.bind("amq.headers", "a", "", **{"x-match": "any", "h": 1, "i": 2})
    simulated.exchange("hash", "x-consistent-hash")
    simulated.bind("hash", "a", "3")
    simulated.exchange("random", "x-random")
    simulated.bind("random", "a")
    assert reasons(explained(simulated, "amq.direct", "k")) == [
        ("amq.direct", "k", "a", "the binding key is the routing key")
    ]
    assert reasons(explained(simulated, "amq.fanout", "k")) == [
        ("amq.fanout", "any", "a", "a fanout exchange sends everything to all that is bound")
    ]
    assert reasons(explained(simulated, "amq.topic", "x.y")) == [
        ("amq.topic", "x.#", "a", "the binding key is a pattern that matches the routing key"),
        ("amq.topic", "x.y", "a", "the binding key is the routing key"),
    ]
    assert reasons(explained(simulated, "amq.headers", "", headers={"h": 1, "i": 3})) == [
        ("amq.headers", "", "a", "x-match any: 1 of 2 headers match: 'h'")
    ]
    ((_, _, _, why),) = reasons(explained(simulated, "hash", "k"))
    assert why.startswith("the hash of the routing key falls on slot ")
    assert why.endswith("its weight is 3 of 3")
    ((_, _, _, why),) = reasons(explained(simulated, "random", "k"))
    assert why.startswith("drawn at random from 1 destinations")


def test_ways_through_exchanges_are_named(simulated: SimulatedBroker) -> None:
    simulated.exchange("first", "topic", alternate_exchange="lost")
    simulated.exchange("second")
    simulated.exchange("lost")
    simulated.vhost.bindings.bind(simulated.vhost.exchange("second"), "first", "x", {})
    simulated.bind("first", "a", "x")
    simulated.bind("second", "a")
    simulated.bind("lost", "b")
    explanation = explained(simulated, "first", "x")
    assert [(step["exchange"], step["from"], step["by"]) for step in explanation["steps"]] == [
        ("first", None, "publish"),
        ("second", 0, "binding"),
    ]
    assert [match["is_repeated"] for step in explanation["steps"] for match in step["matches"]] == [
        False,
        False,
        True,
    ]
    assert [queue["name"] for queue in explanation["queues"]] == ["a"]
    explanation = explained(simulated, "first", "y")
    assert explanation["steps"][0]["alternate"] == "lost"
    assert explanation["steps"][1]["by"] == "alternate"
    (queue,) = explanation["queues"]
    assert (queue["dead_letter_exchange"], queue["dead_letter_routing_key"]) == ("morgue", "b")


def test_the_default_exchange_and_further_keys(simulated: SimulatedBroker) -> None:
    found = explained(simulated, "", "a", headers={"CC": ["nowhere"], "BCC": ["b"]})
    assert found["routing_keys"] == ["a", "nowhere", "b"]
    assert [name for _, _, name, _ in reasons(found)] == ["a", "b"]
    assert found["is_routed"]
    assert not explained(simulated, "", "nowhere")["is_routed"]
    with pytest.raises(PreconditionFailedError, match="header CC"):
        explained(simulated, "", "a", headers={"CC": "b"})


def test_a_delayed_message_waits_before_it_is_routed(simulated: SimulatedBroker) -> None:
    simulated.exchange("late", "x-delayed-message", x_delayed_type="direct")
    simulated.bind("late", "a", "k")
    found = explained(simulated, "late", "k", headers={"x-delay": 500})
    (queue,) = found["queues"]
    assert queue["is_own"]
    assert queue["later"] == ["a"]
    assert "waits 500 ms" in reasons(found)[0][3]
    assert [queue["name"] for queue in explained(simulated, "late", "k")["queues"]] == ["a"]


def test_what_is_refused_says_so(simulated: SimulatedBroker) -> None:
    assert explained(simulated, "none", "k")["refused"] == "no exchange 'none' in vhost '/'"
    assert "request to replay" in explained(simulated, "amq.replay", "a")["refused"]


def test_it_is_bounded(simulated: SimulatedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explaining, "MAX_MATCHES", 3)
    monkeypatch.setattr(explaining, "MAX_QUEUES", 2)
    for number in range(5):
        simulated.queue(f"q{number}")
        simulated.bind("amq.fanout", f"q{number}")
    found = explained(simulated, "amq.fanout", "")
    assert len(reasons(found)) == 3
    assert found["matches_left_out"] == 2
    assert len(found["queues"]) == 2
    assert found["queues_left_out"] == 3
