"""Acks, rejections and transactions of enough messages to take several steps, with the power cut at
every operation between these.

Everything is made durable between two steps. So after a crash the messages of each complete step
are settled, all later ones are in their queue, marked as delivered, and a transaction is all or
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from amqpstore import Queue, Run, Store
from amqpstore_server.broker.channels import local_transaction, unacked
from amqpstore_server.broker.queues.delivery import Delivery
from amqpstore_server.broker.transactions.transaction import Transaction
from amqpstore_server.broker.work.agenda import Agenda
from tests.crash.broker_world import Client, Meanwhile, World, violations
from tests.simulated_broker import ack_until

Bug = Callable[[pytest.MonkeyPatch], None]

AT_ONCE = 2
BODIES = [f"w{number}" for number in range(1, 10)]


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settle two deliveries with each step."""
    monkeypatch.setattr(unacked, "AT_ONCE", AT_ONCE)
    monkeypatch.setattr(local_transaction, "_MAX_SETTLED", AT_ONCE)
    monkeypatch.setattr(local_transaction, "_MAX_ADDED", 1)


def begun(*, transacted: bool = False) -> tuple[World, Client, Meanwhile]:
    """A client that has fetched everything from the queue `work`, one at a time."""
    world = World()
    world.queue("work", dead_letter_exchange="", dead_letter_routing_key="dead")
    for name in ("dead", "others", "target"):
        world.queue(name)
    client, meanwhile = world.client(), Meanwhile(world)
    if transacted:
        client.channel.select_transactions()
    world.begin()
    world.step(work=" ".join(BODIES))
    world.client().publish("", "work", *BODIES)
    world.sync()
    world.promised(world.steps)
    for _ in BODIES:
        client.get("work")
    world.sync()
    return world, client, meanwhile


def left(settled: int) -> str:
    return " ".join(BODIES[settled:])


def acks() -> World:
    """Ack most messages by one method, and close its channel before the last of them."""
    world, client, meanwhile = begun()
    world.step(work=left(AT_ONCE))
    steps = client.channel.settling_until(client.tag("w8"), requeue=None)
    assert steps is not None
    meanwhile.publish()
    world.step(work=left(2 * AT_ONCE))
    next(steps)
    meanwhile.publish()
    client.channel.close()
    del steps
    meanwhile.publish()
    for settled in (3 * AT_ONCE, 4 * AT_ONCE):
        world.step(work=left(settled))
        world.broker.pumping.pump()
        meanwhile.publish()
    assert not world.services.agenda.background
    world.client().get("work")
    world.sync()
    return world


def rejections() -> World:
    """Reject most messages by one method; they become dead letters."""
    world, client, meanwhile = begun()
    dead = [f"{body}:rejected@work*1" for body in BODIES]
    steps: Iterator[None] = iter(())
    for settled in range(AT_ONCE, len(BODIES), AT_ONCE):
        world.step(work=left(settled), dead=" ".join(dead[:settled]))
        if settled == AT_ONCE:
            steps = client.channel.settling_until(client.tag("w8"), requeue=False) or steps
        else:
            next(steps, None)
        meanwhile.publish()
    world.sync()
    return world


def closes() -> World:
    """A channel with everything unacked is closed, and another one gets what is back."""
    world, client, meanwhile = begun()
    other = world.client()
    client.channel.close()
    while world.services.agenda.background:
        meanwhile.publish()
        assert other.get("work")
        world.broker.pumping.pump()
    meanwhile.publish()
    world.restart()
    client = world.client()
    for _ in BODIES:
        client.get("work")
    world.sync()
    return world


def transactions() -> World:
    """Acks, rejections and publishes are committed in steps, and others are rolled back."""
    world, client, meanwhile = begun(transacted=True)
    for number in range(4):
        client.publish("", "target", f"t{number}", priority=number)
    ack_until(client.channel, client.tag("w4"))
    client.reject("w6", "w7")
    is_committed = False
    for _ in client.channel.committing():
        if world.store.log.is_promised and not is_committed:
            is_committed = True
            world.step(
                work="w5 w8 w9",
                target="t0 t1 t2 t3",
                dead="w6:rejected@work*1 w7:rejected@work*1",
            )
        meanwhile.publish()
    assert is_committed
    ack_until(client.channel, 0)
    for _ in client.channel.rolling_back():
        meanwhile.publish()
    world.sync()
    return world


HISTORIES: list[Callable[[], World]] = [acks, rejections, closes, transactions]


@pytest.mark.parametrize("history", HISTORIES)
def test_what_each_step_has_settled_stays_so(history: Callable[[], World]) -> None:
    assert violations(history(), images=6) == []


@pytest.mark.long
@pytest.mark.rounds(2)
@pytest.mark.parametrize("history", HISTORIES)
def test_more_images(history: Callable[[], World], seed: int) -> None:
    assert violations(history(), images=100, seed=seed) == []


# Broken copies.


def the_rest_is_forgotten_when_the_channel_goes(patch: pytest.MonkeyPatch) -> None:
    def settling(
        _agenda: Agenda,
        batches: Iterator[list[Delivery]],
        _left: int,
        settle: Callable[[Delivery], None],
    ) -> Iterator[None]:
        for batch in batches:
            while batch:
                settle(batch.pop())
            yield

    patch.setattr(unacked, "_settling", settling)


def every_other_ack_is_in_memory_only(patch: pytest.MonkeyPatch) -> None:
    def ack(self: Store, queue: Queue, run: Run) -> None:
        if run.first_sequence % 2:
            its_ack(self, queue, run)
        elif run.account is not None:
            run.account.remove(run)

    its_ack = Store.ack
    patch.setattr(Store, "ack", ack)


def committed_with_each_step(patch: pytest.MonkeyPatch) -> None:
    adding = local_transaction.LocalTransaction.adding_to

    def added(self: local_transaction.LocalTransaction, transaction: Transaction) -> Iterator[None]:
        for step in adding(self, transaction):
            transaction.commit()
            transaction._columns, transaction._open = [], {}
            transaction._store_transaction = self._services.store.transaction()
            yield step

    patch.setattr(local_transaction.LocalTransaction, "adding_to", added)


BUGS: dict[Bug, tuple[Callable[[], World], str]] = {
    the_rest_is_forgotten_when_the_channel_goes: (acks, "in pieces"),
    every_other_ack_is_in_memory_only: (acks, "in pieces"),
    committed_with_each_step: (transactions, "in pieces"),
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_step_that_breaks_a_promise_is_caught(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    history, wrong = BUGS[bug]
    bug(monkeypatch)
    found = violations(history(), until=wrong, images=6)
    assert any(one.startswith(wrong) for one in found), found
