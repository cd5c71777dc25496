"""Calls that a dead letter costs, which must not grow back."""

from __future__ import annotations

import pytest

from tests.call_baselines import Baselines, Calls
from tests.calls import Counts
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client

COUNT = 200


@pytest.mark.parametrize("queues", [1, 5])
def test_a_dead_letter_costs_no_more_calls_than_it_did(
    queues: int, call_baselines: Baselines
) -> None:
    """The messages differ in all their properties, and die in one queue after another."""
    simulated = SimulatedBroker()
    for number in range(queues):
        after = f"q{number + 1}"
        simulated.queue(
            f"q{number}",
            message_ttl=0 if number else 10,
            dead_letter_exchange="",
            dead_letter_routing_key=after,
        )
    simulated.queue(f"q{queues}")
    client = Client(simulated)
    for number in range(COUNT):
        headers = {"number": number, "type": "order"}
        client.publish("", "q0", f"{number}", headers=headers, message_id=f"id-{number}")
    simulated.settle()
    counts = Counts()
    with counts:
        simulated.pass_time(10)
    assert len(simulated.ready(f"q{queues}")) == COUNT
    name = f"a death, in one of {queues} queues"
    call_baselines.check(name, Calls.of(counts, COUNT * queues), counts)
