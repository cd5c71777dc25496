"""How many calls a dead letter costs, which must not grow back."""

from __future__ import annotations

import pytest

from tests.calls import Counts
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client

COUNT = 200
CEILINGS = {1: (124.3, 115.1), 5: (76.4, 102.8)}
"""By the number of queues that a message dies in, calls for each of these deaths: of Python
functions, and of built-in ones. Lower them when the broker needs less.
"""


@pytest.mark.parametrize("queues", CEILINGS)
def test_a_dead_letter_costs_no_more_calls_than_it_did(queues: int) -> None:
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
    moves = COUNT * queues
    python, built_in = counts.python.total() / moves, counts.built_in.total() / moves
    most_python, most_built_in = CEILINGS[queues]
    assert python <= most_python, counts.python.most_common(20)
    assert built_in <= most_built_in, counts.built_in.most_common(20)
