"""Consumers that end together, with their channel."""

import pytest

from amqpstore_server.broker.queues.queue import Queue
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client

BODIES = ["0", "1", "2"]


def test_their_queues_look_at_them_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may have tens of thousands, and its end is not done in steps."""
    simulated = SimulatedBroker()
    used: list[str] = []
    noted = Queue.used

    def count(queue: Queue) -> None:
        used.append(queue.name)
        noted(queue)

    client, other = Client(simulated), Client(simulated)
    for name in "qr":
        simulated.queue(name)
        for number in range(10):
            client.consume(name, f"{name}{number}", priority=number % 3)
        other.consume(name, name)
    simulated.vhost.declare_queue(
        "gone", durable=False, exclusive=False, auto_delete=True, arguments={}, connection=None
    )
    client.consume("gone", "gone")
    monkeypatch.setattr(Queue, "used", count)
    client.channel.close()
    assert used == ["q", "r"]
    assert [len(simulated.vhost.queue(name).consumers) for name in "qr"] == [1, 1]
    assert "gone" not in simulated.vhost.queues
    other.publish("", "q", *BODIES)
    simulated.settle()
    assert other.bodies("q") == BODIES
