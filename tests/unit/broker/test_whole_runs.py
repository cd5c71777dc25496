"""Limits in messages and in bytes are exact, and their work is done for whole runs at once."""

from itertools import accumulate, pairwise
from typing import Any

import pytest

from amqpstore import Run
from amqpstore_server.broker.queues.consumer import Consumer
from amqpstore_server.broker.rules.policy import Policy
from tests.simulated_broker import SimulatedBroker, ack_until
from tests.unit.broker.simulated import Client

COUNT = 200
SIZES = [1 + number * 7 % 50 for number in range(COUNT)]
BODIES = [f"{number:03}".ljust(size, ".") for number, size in enumerate(SIZES)]
BYTES = [len(body) for body in BODIES]


def left_by(limit_bytes: int) -> list[str]:
    """Return the messages that a limit leaves: as many of the last ones as fit."""
    sizes = accumulate(reversed(BYTES))
    return BODIES[COUNT - sum(size <= limit_bytes for size in sizes) :]


def runs_of(simulated: SimulatedBroker, monkeypatch: pytest.MonkeyPatch, method: str) -> list[int]:
    """List the counts of messages in the runs that a method of the store's withdrawals returns."""
    found: list[int] = []
    withdrawals = simulated.store.withdrawals
    returned = getattr(withdrawals, method)

    def counted(*arguments: Any, **options: Any) -> Any:
        run = returned(*arguments, **options)
        found.append(run.count)
        return run

    monkeypatch.setattr(withdrawals, method, counted)
    return found


def limit(simulated: SimulatedBroker, definition: dict[str, Any]) -> None:
    """Have a policy for the queue from now on."""
    policy = Policy("p", "^q$", definition=definition)
    simulated.vhost.policy_settings.define([policy], operator=False)
    simulated.settle()


@pytest.mark.parametrize("moves_on", [False, True])
@pytest.mark.parametrize("limit_bytes", [0, 3, 500, 2500, sum(BYTES) - 1])
def test_a_limit_in_bytes_drops_whole_runs_and_no_message_too_many(
    simulated: SimulatedBroker, monkeypatch: pytest.MonkeyPatch, limit_bytes: int, moves_on: bool
) -> None:
    dead: dict[str, Any] = (
        {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"} if moves_on else {}
    )
    queue = simulated.queue("q", **dead)
    simulated.queue("dead")
    Client(simulated).publish("", "q", *BODIES)
    simulated.settle()
    dropped = runs_of(simulated, monkeypatch, "withdraw")
    limit(simulated, {"max-length-bytes": limit_bytes})
    left = left_by(limit_bytes)
    assert queue.backlog.ready_bytes == sum(map(len, left)) <= limit_bytes
    assert sum(dropped) >= COUNT - len(left)
    assert len(dropped) <= 8
    monkeypatch.undo()
    assert simulated.ready("q") == left
    assert simulated.ready("dead") == (BODIES[: COUNT - len(left)] if moves_on else [])


@pytest.mark.parametrize("count", [0, 1, 150])
def test_a_limit_in_messages_drops_whole_runs(
    simulated: SimulatedBroker, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    simulated.queue("q")
    Client(simulated).publish("", "q", *BODIES)
    simulated.settle()
    dropped = runs_of(simulated, monkeypatch, "withdraw_first")
    limit(simulated, {"max-length": count})
    assert dropped == [COUNT - count]
    assert simulated.ready("q") == BODIES[COUNT - count :]


@pytest.mark.parametrize("window_bytes", [1, 100, 1000])
def test_a_prefetch_in_bytes_hands_out_whole_runs(
    simulated: SimulatedBroker, window_bytes: int
) -> None:
    deliveries: list[list[str]] = []

    class Counting(Client):
        def deliver(self, consumer: Consumer, first_tag: int, run: Run) -> None:
            super().deliver(consumer, first_tag, run)
            deliveries.append([message.body.decode() for message in run.messages or ()])

    simulated.queue("q")
    client = Counting(simulated)
    client.publish("", "q", *BODIES)
    client.consume("q", "a", prefetch_size=window_bytes)
    simulated.settle()
    while sum(map(len, deliveries)) < COUNT:
        ack_until(client.channel, 0)
        simulated.settle()
    assert [body for part in deliveries for body in part] == BODIES
    for part, following in pairwise(deliveries):
        # As many as fit, and one that is larger than the window by itself.
        size = sum(map(len, part))
        assert size <= window_bytes or len(part) == 1
        assert size + len(following[0]) > window_bytes
