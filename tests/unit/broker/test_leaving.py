"""One ack or reject may move very many messages to another queue: they leave in several turns."""

from __future__ import annotations

import pytest

from amqpstore_server.broker.limits import BROKER_LIMITS
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client

COST = 1000
OWN = 64
"""What a message costs that differs from the one before it in its properties."""

BODIES = [str(number) for number in range(100)]
KINDS = {"history": ("amq.consumed.q", True), "dead letters": ("dead", False)}
"""By what the queue has: where the messages go, and whether by an ack."""


@pytest.fixture
def simulated() -> SimulatedBroker:
    simulated = SimulatedBroker(limits=BROKER_LIMITS._replace(max_move_cost=COST))
    simulated.queue("dead")
    return simulated


def settle_all(simulated: SimulatedBroker, kind: str, *, own: bool = True) -> Client:
    """Have a client take many messages, and settle them with one method."""
    if kind == "history":
        simulated.queue("q", history_length=1000)
    else:
        simulated.queue("q", dead_letter_exchange="", dead_letter_routing_key="dead")
    client = Client(simulated)
    if own:
        for body in BODIES:
            client.publish("", "q", body, message_id=body)
    else:
        client.publish("", "q", *BODIES)
    client.consume("q", "tag")
    simulated.settle()
    if KINDS[kind][1]:
        client.channel.ack_until(0)
    else:
        client.channel.reject_until(0, requeue=False)
    return client


def moved(simulated: SimulatedBroker, kind: str) -> list[str]:
    """What has moved and is durable, in order."""
    simulated.store.sync()
    return simulated.ready(KINDS[kind][0])


@pytest.mark.parametrize("kind", KINDS)
def test_messages_with_properties_of_their_own_leave_a_few_in_each_turn(
    simulated: SimulatedBroker, kind: str
) -> None:
    settle_all(simulated, kind)
    counts = [len(moved(simulated, kind))]
    while simulated.broker.has_work:
        simulated.broker.pump()
        counts.append(len(moved(simulated, kind)))
    in_turn = [after - before for before, after in zip([0, *counts], counts, strict=False)]
    assert max(in_turn) == COST // OWN + 1
    assert moved(simulated, kind) == BODIES


@pytest.mark.parametrize("kind", KINDS)
def test_messages_that_are_alike_leave_together(simulated: SimulatedBroker, kind: str) -> None:
    settle_all(simulated, kind, own=False)
    assert moved(simulated, kind) == BODIES


def test_large_messages_leave_one_in_each_turn(simulated: SimulatedBroker) -> None:
    simulated.queue("q", history_length=10)
    client = Client(simulated)
    client.publish("", "q", *["x" * COST * 512] * 4)
    client.consume("q", "tag")
    simulated.settle()
    client.channel.ack_until(0)
    for count in range(1, 5):
        assert len(moved(simulated, "history")) == count
        simulated.broker.pump()


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_crash_meets_is_in_one_place(simulated: SimulatedBroker, kind: str) -> None:
    settle_all(simulated, kind)
    simulated.broker.pump()
    gone = moved(simulated, kind)
    simulated.broker.pump()
    simulated.crash()
    assert moved(simulated, kind) == gone
    assert simulated.ready("q") == BODIES[len(gone) :]
    assert 0 < len(gone) < len(BODIES)
    client = Client(simulated)
    client.consume("q", "tag")
    simulated.settle()
    assert len(client.bodies("tag")) == len(BODIES) - len(gone)


@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on_when_the_client_is_gone(simulated: SimulatedBroker, kind: str) -> None:
    client = settle_all(simulated, kind)
    client.channel.close()
    simulated.settle()
    assert moved(simulated, kind) == BODIES
    assert simulated.ready("q") == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_settled_later_leaves_later(simulated: SimulatedBroker, kind: str) -> None:
    client = settle_all(simulated, kind)
    client.publish("", "q", "last", message_id="last")
    simulated.settle()
    if KINDS[kind][1]:
        client.channel.ack_until(0)
    else:
        client.channel.reject_until(0, requeue=False)
    simulated.settle()
    assert moved(simulated, kind) == [*BODIES, "last"]


def test_all_queues_share_the_cost_of_a_turn(simulated: SimulatedBroker) -> None:
    client = Client(simulated)
    names = [f"q{number}" for number in range(10)]
    for name in names:
        simulated.queue(name, dead_letter_exchange="", dead_letter_routing_key="dead")
        client.publish("", name, *BODIES[:20], message_id=name)
        for body in BODIES[:20]:
            client.publish("", name, body, message_id=body)
        client.consume(name, name)
    simulated.settle()
    client.channel.reject_until(0, requeue=False)
    most = (COST // OWN + 1) * 20
    before = len(moved(simulated, "dead letters"))
    assert before <= most
    while simulated.broker.has_work:
        simulated.broker.pump()
        count = len(moved(simulated, "dead letters"))
        assert count - before <= most
        before = count
    assert before == 40 * len(names)
