"""Acks that are overdue: whose timeout applies, when it is noticed, and what it costs."""

from typing import Any

import pytest

from amqpstore_server.broker.work.ack_timeouts import TagNotes
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client

DEFAULT_MS = 1_800_000


def look_until_late(simulated: SimulatedBroker, client: Client, step_ms: int, most_ms: int) -> int:
    """Look every `step_ms` as the broker does; return after how many ms the client is told."""
    for ms in range(0, most_ms, step_ms):
        simulated.broker.close_late_channels()
        if any(told.startswith("late") for told in client.told):
            return ms
        simulated.pass_time(step_ms)
    return -1


@pytest.mark.parametrize(
    ("of_queue", "of_consumer", "expected_ms"),
    [
        ({}, None, DEFAULT_MS),
        ({"consumer_timeout": 60_000}, None, 60_000),
        ({"consumer_timeout": 60_000}, 20_000, 20_000),
        ({}, 20_000, 20_000),
        ({"consumer_timeout": 0}, None, 0),
        ({"consumer_timeout": 60_000}, 0, 0),
    ],
)
def test_the_nearest_timeout_applies(
    simulated: SimulatedBroker,
    of_queue: dict[str, Any],
    of_consumer: int | None,
    expected_ms: int,
) -> None:
    simulated.queue("q", **of_queue)
    client = Client(simulated)
    client.consume("q", "c", timeout_ms=of_consumer)
    client.publish("", "q", "m")
    simulated.settle()
    found_ms = look_until_late(simulated, client, 1000, DEFAULT_MS * 9 // 8)
    if not expected_ms:
        assert found_ms == -1
        return
    assert expected_ms <= found_ms <= expected_ms * 33 / 32 + 2000
    assert f"late by {expected_ms}" in client.told


def test_who_acks_in_time_is_never_late(simulated: SimulatedBroker) -> None:
    simulated.queue("q", consumer_timeout=10_000)
    client = Client(simulated)
    client.consume("q", "c")
    client.publish("", "q", "0")
    for number in range(100):
        client.publish("", "q", str(number + 1))
        simulated.settle()
        assert look_until_late(simulated, client, 1000, 4000) == -1
        client.ack(str(number))


def test_a_fetched_message_counts_and_a_closed_channel_does_not(
    simulated: SimulatedBroker,
) -> None:
    simulated.queue("q", consumer_timeout=10_000)
    client, gone = Client(simulated), Client(simulated)
    client.publish("", "q", "a", "b")
    simulated.settle()
    assert (client.get("q"), gone.get("q")) == ("a", "b")
    gone.channel.close()
    assert look_until_late(simulated, client, 1000, 20_000) >= 10_000
    assert "late by 10000" not in gone.told


def test_channels_without_acks_are_not_looked_at(simulated: SimulatedBroker) -> None:
    simulated.queue("q")
    client = Client(simulated)
    client.consume("q", "c", no_ack=True)
    client.publish("", "q", "a")
    assert not simulated.broker.services.ack_timeouts.channels
    client.consume("q", "d")
    assert len(simulated.broker.services.ack_timeouts.channels) == 1
    client.channel.close()
    assert not simulated.broker.services.ack_timeouts.channels


def test_notes_are_few_however_many_messages_there_are() -> None:
    notes = TagNotes()
    for now_ms in range(0, DEFAULT_MS, 1000):
        assert notes.age_ms(1, now_ms) <= now_ms
        notes.add(2 + now_ms, now_ms, DEFAULT_MS // 32)
    assert len(notes._notes) <= 33
    assert notes.age_ms(1, DEFAULT_MS) == DEFAULT_MS


def test_a_note_never_makes_a_tag_older_than_it_is() -> None:
    notes = TagNotes()
    notes.add(5, 1000, 0)
    assert notes.age_ms(4, 3000) == 2000
    assert notes.age_ms(5, 3000) == 0
    notes.add(9, 3000, 0)
    assert notes.age_ms(5, 4000) == 1000
