"""One ack or reject may move very many messages to another queue: they leave in several turns."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from amqpstore_server.broker.queues.pending_moves import ENVELOPE_COST
from amqpstore_server.broker.work.limits import BROKER_LIMITS
from tests.simulated_broker import SimulatedBroker, ack_until, reject_until
from tests.unit.broker.simulated import Client

COST = 1000
OWN = ENVELOPE_COST + 1
"""Cost of a message whose properties differ from those of the message before it."""

BODIES = [str(number) for number in range(100)]
KINDS = {"history": ("amq.consumed.q", True), "dead letters": ("dead", False)}
"""The queue to which messages go, and whether by an ack, for each kind of move."""


@pytest.fixture
def simulated() -> SimulatedBroker:
    simulated = SimulatedBroker(limits=BROKER_LIMITS._replace(round_budget=COST))
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
        ack_until(client.channel, 0)
    else:
        reject_until(client.channel, 0, requeue=False)
    return client


def moved(simulated: SimulatedBroker, kind: str) -> list[str]:
    """Return the messages that have moved and are durable, in order."""
    simulated.store.sync()
    return simulated.ready(KINDS[kind][0])


def test_moves_that_take_longer_than_expected_are_made_in_smaller_steps(
    simulated: SimulatedBroker,
) -> None:
    """A dead letter may be routed through thousands of bindings."""
    kind = "dead letters"
    ticks = itertools.count()
    simulated.services.cpu_s = lambda: next(ticks) * 100 * COST / 1e6
    settle_all(simulated, kind)
    expected = len(moved(simulated, kind))
    assert expected > 10
    for turn in range(1, 5):
        assert simulated.broker.pumping.pump() >= COST
        assert len(moved(simulated, kind)) == expected + turn
    simulated.services.cpu_s = lambda: next(ticks) / 1e9
    for _ in range(20):
        simulated.broker.pumping.pump()
    assert len(moved(simulated, kind)) == len(BODIES)


@pytest.mark.parametrize("kind", KINDS)
def test_messages_with_properties_of_their_own_leave_a_few_in_each_turn(
    simulated: SimulatedBroker, kind: str
) -> None:
    settle_all(simulated, kind)
    counts = [len(moved(simulated, kind))]
    while simulated.broker.pumping.has_work:
        simulated.broker.pumping.pump()
        counts.append(len(moved(simulated, kind)))
    in_turn = [after - before for before, after in zip([0, *counts], counts, strict=False)]
    assert COST // OWN <= max(in_turn) <= COST // OWN + 1
    assert moved(simulated, kind) == BODIES


@pytest.mark.parametrize("kind", KINDS)
def test_what_leaves_in_one_turn_is_handled_together_in_its_new_queue(
    simulated: SimulatedBroker, kind: str
) -> None:
    settle_all(simulated, kind)
    simulated.broker.pumping.pump()
    moves = simulated.services.moves.pending
    assert moves <= 4
    simulated.store.sync()
    found = simulated.vhost.queues[KINDS[kind][0]].priorities.lowest.ready
    assert 2 * (COST // OWN) <= found.count <= 2 * (COST // OWN + 1)
    assert len(found) <= moves


@pytest.mark.parametrize("kind", KINDS)
def test_no_more_move_than_can_be_counted_in_together_once_they_are_durable(
    simulated: SimulatedBroker, kind: str
) -> None:
    services = simulated.services
    services.limits = services.limits._replace(max_pending_moves=2)
    settle_all(simulated, kind)
    simulated.work()  # nothing becomes durable
    assert simulated.services.moves.pending == 2
    simulated.store.sync()
    assert simulated.services.moves.pending == 0
    simulated.settle()
    assert moved(simulated, kind) == BODIES


@pytest.mark.parametrize("kind", KINDS)
def test_messages_that_are_alike_leave_together(simulated: SimulatedBroker, kind: str) -> None:
    settle_all(simulated, kind, own=False)
    assert moved(simulated, kind) == BODIES


def test_messages_with_large_headers_leave_one_in_each_turn(simulated: SimulatedBroker) -> None:
    """A long x-death is such a header, and is looked through each time."""
    simulated.queue("q", dead_letter_exchange="", dead_letter_routing_key="dead")
    client = Client(simulated)
    for body in BODIES[:4]:
        client.publish("", "q", body, headers={"x": "x" * COST * 16, "n": body})
    client.consume("q", "tag")
    simulated.settle()
    reject_until(client.channel, 0, requeue=False)
    for count in range(1, 5):
        assert len(moved(simulated, "dead letters")) == count
        simulated.broker.pumping.pump()


def test_large_messages_leave_one_in_each_turn(simulated: SimulatedBroker) -> None:
    simulated.queue("q", history_length=10)
    client = Client(simulated)
    client.publish("", "q", *["x" * COST * 512] * 4)
    client.consume("q", "tag")
    simulated.settle()
    ack_until(client.channel, 0)
    for count in range(1, 5):
        assert len(moved(simulated, "history")) == count
        simulated.broker.pumping.pump()


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_crash_meets_is_in_one_place(simulated: SimulatedBroker, kind: str) -> None:
    settle_all(simulated, kind)
    simulated.broker.pumping.pump()
    gone = moved(simulated, kind)
    simulated.broker.pumping.pump()
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
        ack_until(client.channel, 0)
    else:
        reject_until(client.channel, 0, requeue=False)
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
    reject_until(client.channel, 0, requeue=False)
    most = (COST // OWN + 1) * 20
    before = len(moved(simulated, "dead letters"))
    assert before <= most
    while simulated.broker.pumping.has_work:
        simulated.broker.pumping.pump()
        count = len(moved(simulated, "dead letters"))
        assert count - before <= most
        before = count
    assert before == 40 * len(names)


SETTLE: dict[str, dict[str, Any]] = {"expiry": {"message_ttl": 1000}, "limit": {"max_length": 1000}}


@pytest.mark.parametrize("why", SETTLE)
@pytest.mark.parametrize("limited", [False, True])
def test_what_expires_or_is_too_much_becomes_dead_a_few_in_each_turn(
    simulated: SimulatedBroker, why: str, limited: bool
) -> None:
    arguments = {"max_length_bytes": 1000, **SETTLE[why]} if limited else SETTLE[why]
    queue = simulated.queue(
        "q", dead_letter_exchange="", dead_letter_routing_key="dead", **arguments
    )
    client = Client(simulated)
    for body in BODIES:
        client.publish("", "q", body, message_id=body)
    simulated.settle()
    if why == "expiry":
        simulated.clock.advance(1000)
        simulated.services.run_timers()
    else:
        queue.apply(dataclasses.replace(queue.settings, max_length=0))
        queue.enforce()
    counts = [len(moved(simulated, "dead letters"))]
    while simulated.broker.pumping.has_work:
        simulated.broker.pumping.pump()
        counts.append(len(moved(simulated, "dead letters")))
        simulated.services.run_timers()
    in_turn = [after - before for before, after in zip([0, *counts], counts, strict=False)]
    # A timer may be due in the same turn.
    assert max(in_turn) <= 2 * (COST // OWN + 1)
    assert moved(simulated, "dead letters") == BODIES
    assert queue.ready_count == queue.backlog.ready_bytes == 0


def test_a_publisher_is_not_faster_than_what_it_pushes_out(simulated: SimulatedBroker) -> None:
    queue = simulated.queue(
        "q", dead_letter_exchange="", dead_letter_routing_key="dead", max_length=10
    )
    client = Client(simulated)
    for body in BODIES:
        client.publish("", "q", body, message_id=body)
    assert queue.ready_count == 10
    simulated.settle()
    assert simulated.ready("dead") == BODIES[:90]


def test_what_has_expired_is_not_delivered_while_it_waits(simulated: SimulatedBroker) -> None:
    simulated.queue("q", dead_letter_exchange="", dead_letter_routing_key="dead", message_ttl=1000)
    client = Client(simulated)
    for body in BODIES:
        client.publish("", "q", body, message_id=body)
    simulated.settle()
    simulated.clock.advance(1000)
    client.consume("q", "tag")
    simulated.settle()
    assert client.bodies("tag") == []
    assert moved(simulated, "dead letters") == BODIES


def test_nothing_is_handed_out_while_very_much_leaves(simulated: SimulatedBroker) -> None:
    services = simulated.services
    services.limits = services.limits._replace(max_pending_runs=0)
    client = settle_all(simulated, "history")
    client.publish("", "q", "later")
    simulated.broker.pumping.pump()
    assert client.bodies("tag") == BODIES
    simulated.settle()
    assert client.bodies("tag") == [*BODIES, "later"]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_leaves_while_it_is_the_turn_of_others(
    simulated: SimulatedBroker, kind: str
) -> None:
    client = settle_all(simulated, kind)
    gone = moved(simulated, kind)
    client.publish("", "dead", "to be fetched")
    for _ in range(3):
        simulated.vhost.queue("q").touch()
        assert not simulated.broker.pumping.pump(must_moves_wait=True)
        assert simulated.broker.pumping.only_moves_are_left
    assert simulated.broker.pumping.has_more
    assert set(moved(simulated, kind)) - {"to be fetched"} == set(gone)
    simulated.broker.pumping.pump()
    assert len(moved(simulated, kind)) > len(gone) + 1
    simulated.settle()
    assert set(moved(simulated, kind)) - {"to be fetched"} == set(BODIES)


def test_what_has_expired_is_not_delivered_while_it_is_the_turn_of_others(
    simulated: SimulatedBroker,
) -> None:
    simulated.queue("q", dead_letter_exchange="", dead_letter_routing_key="dead", message_ttl=1000)
    client = Client(simulated)
    client.publish("", "q", *BODIES[:3])
    simulated.settle()
    client.consume("q", "tag")
    client.channel.pause(paused=True)
    simulated.clock.advance(1000)
    for _ in range(3):
        simulated.services.run_timers()
        client.channel.pause(paused=False)
        simulated.broker.pumping.pump(must_moves_wait=True)
    assert client.bodies("tag") == moved(simulated, "dead letters") == []
    assert not simulated.services.run_timers(), "a timer that is due again at once keeps it busy"
    assert client.get("q") is None
    simulated.settle()
    assert moved(simulated, "dead letters") == BODIES[:3]


def test_queues_with_more_to_move_have_their_turns_in_order(simulated: SimulatedBroker) -> None:
    client = Client(simulated)
    names = [f"q{number}" for number in range(4)]
    for name in names:
        simulated.queue(name, dead_letter_exchange="", dead_letter_routing_key=f"dead {name}")
        simulated.queue(f"dead {name}")
        for body in BODIES[:40]:
            client.publish("", name, body, message_id=body)
        client.consume(name, name)
    simulated.settle()
    reject_until(client.channel, 0, requeue=False)
    for _ in range(len(names)):
        simulated.broker.pumping.pump()
    simulated.store.sync()
    assert all(simulated.vhost.queue(f"dead {name}").ready_count for name in names)
