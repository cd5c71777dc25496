"""Messages that a request took are settled in steps, between which others are served."""

from __future__ import annotations

import pytest

from amqpstore_server.broker.channels import unacked
from amqpstore_server.management.resources.publishing import settling
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client

BODIES = [f"{number:02}" for number in range(60)]


@pytest.mark.parametrize(
    ("mode", "ready"),
    [
        ("ack_requeue_false", []),
        ("reject_requeue_false", []),
        ("ack_requeue_true", BODIES),
        ("reject_requeue_true", BODIES),
    ],
)
def test_very_many_are_settled_in_steps(
    monkeypatch: pytest.MonkeyPatch, mode: str, ready: list[str]
) -> None:
    monkeypatch.setattr(unacked, "AT_ONCE", 10)
    simulated = SimulatedBroker()
    queue = simulated.queue("q")
    client = Client(simulated)
    for body in BODIES:
        client.publish("", "q", body, message_id=body)
    simulated.settle()
    while client.get("q"):
        pass
    left = [queue.unacked_count for _ in settling(client.channel, len(BODIES), mode) or ()]
    assert left[-4:] == [40, 30, 20, 10]
    simulated.settle()
    assert (queue.unacked_count, simulated.ready("q")) == (0, ready)
