"""A delivered message can be published again: x-death gives way where it would be too large."""

from __future__ import annotations

from typing import Any

import pytest

from amqpstore_server.broker.messages.shortening import shortened
from amqpstore_server.broker.work.limits import BROKER_LIMITS
from amqpstore_server.protocol.bounds import MAX_ENTRIES
from amqpstore_server.protocol.content import (
    BasicProperties,
    decode_content_header,
    decode_properties,
    encode_properties,
)
from amqpstore_server.protocol.field_table import OWN_HEADERS
from tests.content_header import encode_content_header
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.dead_letters import DEAD, die, with_dead_queue
from tests.unit.broker.simulated import Client


@pytest.fixture
def simulated() -> SimulatedBroker:
    return with_dead_queue()


def encoded(headers: dict[str, Any]) -> bytes:
    return encode_properties(BasicProperties(headers=headers, delivery_mode=2))


def headers_of(raw: bytes) -> dict[str, Any]:
    return decode_properties(raw).headers or {}


DEATHS = [{"queue": f"q{number}", "count": 1} for number in range(100)]


@pytest.mark.parametrize("most", [120, 500, 1000, 3000])
def test_the_oldest_deaths_give_way_and_the_header_says_how_many(most: int) -> None:
    raw = encoded({"own": "kept", "x-death": DEATHS})
    assert len(raw) > most
    found = shortened(raw, most)
    assert most - 60 < len(found) <= most
    headers = headers_of(found)
    left = len(headers["x-death"])
    assert headers == {"own": "kept", "x-death": DEATHS[:left], "x-death-omitted": 100 - left}
    again = headers_of(shortened(found, most - 40))
    assert len(again["x-death"]) + again["x-death-omitted"] == 100


def test_the_first_and_the_last_death_go_last_and_what_a_client_wrote_stays() -> None:
    first = {name: "x" * 20 for name in OWN_HEADERS if "-death-" in name and "omit" not in name}
    raw = encoded({"own": "x" * 1000, "x-death": DEATHS, **first})
    headers = headers_of(shortened(raw, 1100))
    assert headers == {"own": "x" * 1000, "x-death": [], "x-death-omitted": 100}
    raw = encoded({"own": "x" * 1000})
    assert shortened(raw, 100) == raw


@pytest.mark.parametrize("entries", [MAX_ENTRIES, MAX_ENTRIES - 10, MAX_ENTRIES - 100])
def test_a_letter_of_many_entries_can_be_published_again(
    simulated: SimulatedBroker, entries: int
) -> None:
    headers: dict[str, Any] = {"list": [None] * (entries - 1)}
    simulated.queue("q", **DEAD)
    for _ in range(3):
        die(simulated, "a", headers=headers)
        (headers,) = simulated.headers("dead")
        raw = encode_content_header(60, 1, encoded(headers))
        assert decode_content_header(raw).body_size == 1
        client = Client(simulated)
        assert client.get("dead") == "a"
        client.ack("a")
    assert headers["x-last-death-queue"] == "q"


def test_routing_keys_beyond_number_are_left_out_with_their_deaths(
    simulated: SimulatedBroker,
) -> None:
    """Each death lists all of them."""
    for queue, exchange in (("r", "x"), ("s", "y")):
        simulated.exchange(exchange)
        simulated.queue(queue, message_ttl=10, dead_letter_exchange=exchange)
    simulated.bind("x", "s")
    simulated.bind("y", "dead")
    keys = [f"k{number}" for number in range(6000)]
    Client(simulated).publish("", "r", "a", headers={"CC": keys})
    simulated.pass_time(10)
    simulated.pass_time(10)
    (headers,) = simulated.headers("dead")
    assert headers["CC"] == keys
    assert [death["queue"] for death in headers["x-death"]] == ["s"]
    assert headers["x-death-omitted"] == 1


def test_deaths_that_a_client_wrote_are_read_up_to_a_limit(simulated: SimulatedBroker) -> None:
    simulated.queue("q", **DEAD)
    written = [{"queue": f"q{number}", "reason": "expired"} for number in range(4000)]
    die(simulated, "a", headers={"x-death": written})
    (headers,) = simulated.headers("dead")
    assert len(headers["x-death"]) == BROKER_LIMITS.max_deaths
