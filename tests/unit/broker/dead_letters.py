"""Tools of the tests of dead letters: queues whose messages die, and ways in which they do."""

from typing import Any

from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client

DEAD: dict[str, Any] = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}


def with_dead_queue() -> SimulatedBroker:
    """A broker with the queue that dead letters go to."""
    simulated = SimulatedBroker()
    simulated.queue("dead")
    return simulated


def die(simulated: SimulatedBroker, body: str, *, queue: str = "q", **properties: Any) -> None:
    """Publish a message to a queue, and reject it."""
    client = Client(simulated)
    client.publish("", queue, body, **properties)
    simulated.settle()
    reject(simulated, client, queue)


def reject(simulated: SimulatedBroker, client: Client, queue: str) -> None:
    """Reject what is at the head of a queue."""
    body = client.get(queue)
    assert body is not None
    client.reject(body)
    simulated.settle()


def deaths(simulated: SimulatedBroker, queue: str = "dead") -> list[tuple[Any, ...]]:
    """Reason, queue and count of each death of the only message in a queue."""
    (headers,) = simulated.headers(queue)
    return [(one["reason"], one["queue"], one["count"]) for one in headers["x-death"]]
