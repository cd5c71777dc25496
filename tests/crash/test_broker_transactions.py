"""Transactions (tx.select to tx.commit) and publishes outside of them, with the power cut at every
operation.

A transaction is all or nothing over any number of queues, whatever it consists of, and once it was
reported as committed nothing of it is undone (P3). One publish is in all of its queues or in none
(P2). A confirmed message is on disk (P1), and a refused message is nowhere.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest

import amqpstore.transaction
import amqpstore_server.broker.channels.confirms
from amqpstore import Message, Queue, Run
from amqpstore.queues.acks import GatheredAcks
from amqpstore.queues.enqueue import Enqueues
from amqpstore.queues.queue import Placement
from amqpstore_server.broker.channels.channel import Channel
from amqpstore_server.broker.channels.confirms import Publisher, _Promise
from amqpstore_server.broker.channels.local_transaction import LocalTransaction
from amqpstore_server.broker.messages.envelope import ParsedEnvelope
from amqpstore_server.broker.routing.routing import Route
from amqpstore_server.broker.transactions.transaction import Plan, plan
from amqpstore_server.broker.transactions.transaction import Transaction as BrokerTransaction
from tests.crash.broker_world import World, sync_at_once, violations
from tests.crash.violated import first_of_each
from tests.simulated_broker import ack_until

Bug = Callable[[pytest.MonkeyPatch], None]


def shop() -> World:
    """Queues and exchanges of several types that a transaction goes through."""
    world = World()
    world.queue("work", dead_letter_exchange="dead", dead_letter_routing_key="any")
    world.queue("orders")
    world.queue("audit")
    world.queue("urgent", max_priority=3)
    world.queue("passing", durable=False)
    world.queue("dead")
    world.exchange("all", "fanout")
    world.exchange("by-word", "topic")
    world.exchange("dead", "direct")
    for queue in ("orders", "audit", "passing"):
        world.bind("all", queue)
    world.bind("by-word", "audit", "order.#")
    world.bind("by-word", "urgent", "*.urgent")
    world.bind("dead", "dead", "any")
    return world


def transactions() -> World:
    """Acks, publishes and dead letters, in one transaction after another."""
    world = shop()
    sender, client = world.client(), world.client()
    sender.channel.select_confirms()
    client.channel.select_transactions()
    world.begin()
    world.step(work="w1 w2 w3 w4 w5 w6")
    sender.publish("", "work", "w1", "w2", "w3", "w4", "w5", "w6")
    world.sync()
    for _ in range(6):
        client.get("work")
    world.sync()

    client.ack("w2")
    client.publish("all", "", "a", "b")
    client.publish("by-word", "order.urgent", "c", priority=2)
    client.publish("", "orders", "d", mandatory=True)
    client.publish("", "nowhere", "e", mandatory=True)
    client.publish("", "orders", "lost with the power", delivery_mode=1)
    client.reject("w4")
    assert client.returned_bodies == []
    world.step(
        work="w1 w3 w5 w6",
        orders="a b d",
        audit="a b c",
        urgent="c",
        dead="w4:rejected@work*1",
    )
    client.commit()
    assert client.returned_bodies == ["e"]
    world.sync()

    # What was rolled back has never been.
    client.publish("all", "", "f")
    client.ack("w1")
    client.channel.rollback()
    world.sync()

    # Two in one batch, and what a third does while the disk is busy.
    client.publish("", "audit", "g")
    client.ack("w1")
    world.step(work="w3 w5 w6", audit="a b c g")
    client.commit()
    client.publish("by-word", "order.urgent", "h", "i", priority=1)
    client.reject("w3")
    world.step(
        work="w5 w6",
        audit="a b c g h i",
        urgent="c h i",
        dead="w4:rejected@work*1 w3:rejected@work*1",
    )
    client.commit()
    world.begin_sync()
    client.requeue("w5")
    client.ack("w6")
    client.publish("", "orders", "j")
    world.step(work="w5", orders="a b d j")
    client.commit()
    world.finish_sync()
    world.sync()

    # Acks alone, whose commit is a promise too.
    for _ in range(4):
        client.get("orders")
    ack_until(client.channel, client.tag("b"))
    world.step(orders="d j")
    client.commit()
    world.sync()
    return world


def publishes() -> World:
    """Publish without transactions: through a fanout, with transient messages, confirmed and
    refused.
    """
    world = shop()
    world.queue("small", max_length=2, overflow="reject-publish")
    world.queue(
        "polite",
        max_length=1,
        overflow="reject-publish-dlx",
        dead_letter_exchange="",
        dead_letter_routing_key="dead",
    )
    client = world.client()
    client.channel.select_confirms()
    world.begin()
    world.step(orders="a b", audit="a b")
    client.publish("all", "", "a", "b")
    client.publish("all", "", "transient", delivery_mode=1)
    world.begin_sync()
    world.step(orders="a b c", audit="a b c")
    client.publish("all", "", "c")
    world.finish_sync()
    world.step(urgent="d")
    client.publish("", "urgent", "d", priority=9)
    world.sync()

    assert client.refused == []
    world.step(small="e f")
    client.publish("", "small", "e", "f", "refused")
    world.step(orders="a b c g")
    client.publish("", "orders", "g")
    world.step(polite="h", dead="i:maxlen@polite*1")
    client.publish("", "polite", "h", "i")
    world.sync()
    client.publish("", "small", "refused too")
    world.sync()
    assert client.refused == [8, 11, 12]
    return world


class Dice:
    """A client with transactions that are drawn, and where they put each message."""

    def __init__(self, seed: str) -> None:
        self.world = shop()
        self.world.begin()
        self.client = self.world.client()
        self.client.channel.select_transactions()
        self._rng = random.Random(seed)
        self._bodies = map(str, itertools.count())
        self._contents: dict[str, list[str]] = {
            queue: [] for queue in ("work", "orders", "audit", "urgent", "dead")
        }
        self._unacked: list[str] = []

    def transact(self) -> None:
        """One transaction, committed or rolled back, and what the disk does meanwhile."""
        rng, client = self._rng, self.client
        contents = {queue: list(bodies) for queue, bodies in self._contents.items()}
        for _ in range(rng.randint(0, 3)):
            if self.world.vhost.queue("work").ready_count:
                self._unacked.append(client.get("work"))
        unacked = list(self._unacked)
        while unacked and rng.random() < 0.6:
            body = unacked.pop(rng.randrange(len(unacked)))
            contents["work"].remove(body)
            if rng.random() < 0.5:
                client.ack(body)
            else:
                client.reject(body)
                contents["dead"].append(f"{body}:rejected@work*1")
        for _ in range(rng.randint(0, 3)):
            self._publish(contents)
        if rng.random() < 0.2:
            client.channel.rollback()
        else:
            self._contents, self._unacked = contents, unacked
            self.world.step(**{queue: " ".join(bodies) for queue, bodies in contents.items()})
            client.commit()
        rng.choice([self.world.work, self.world.begin_sync, self.world.sync, self.world.sync])()
        if rng.random() < 0.1:
            self._restart()

    def _publish(self, contents: dict[str, list[str]]) -> None:
        rng = self._rng
        bodies = [next(self._bodies) for _ in range(rng.randint(1, 3))]
        exchange, key, queues = rng.choice(
            [
                ("", "work", ["work"]),
                ("all", "", ["orders", "audit"]),
                ("by-word", "order.urgent", ["audit", "urgent"]),
            ]
        )
        self.client.publish(exchange, key, *bodies)
        for queue in queues:
            contents[queue] += bodies

    def _restart(self) -> None:
        self.world.restart()
        self.client = self.world.client()
        self.client.channel.select_transactions()
        self._unacked = []


def drawn(seed: str, transactions: int) -> World:
    """A history drawn by seed."""
    dice = Dice(seed)
    for _ in range(transactions):
        dice.transact()
    return dice.world


def test_a_transaction_is_all_or_nothing_and_is_not_undone() -> None:
    assert violations(transactions()) == []


def test_a_publish_is_everywhere_or_nowhere_and_what_is_refused_is_nowhere() -> None:
    assert violations(publishes()) == []


@pytest.mark.rounds(1)
def test_transactions_that_are_drawn(seed: int) -> None:
    assert violations(drawn(f"short {seed}", 10), images=5) == []


@pytest.mark.long
@pytest.mark.rounds(20)
def test_more_transactions_that_are_drawn(seed: int) -> None:
    assert violations(drawn(f"long {seed}", 25), images=25, seed=seed) == []


@pytest.mark.long
@pytest.mark.rounds(2)
@pytest.mark.parametrize("history", [transactions, publishes])
def test_more_images(history: Callable[[], World], seed: int) -> None:
    assert violations(history(), images=100, seed=seed) == []


# Broken copies.


def in_two_batches(patch: pytest.MonkeyPatch, *, acks_first: bool) -> None:
    """Write the store's transaction as two batches instead of one."""

    def commit(self: amqpstore.transaction.Transaction) -> None:
        def publish() -> None:
            for placements, messages, priority, *_ in self._publishes:
                self._store.enqueue(placements, messages, priority=priority)

        def ack() -> None:
            for queue, run in self._acks.runs:
                self._store.ack(queue, run)

        first, second = (ack, publish) if acks_first else (publish, ack)
        first()
        sync_at_once(self._store)
        second()

    patch.setattr(amqpstore.transaction.Transaction, "commit", commit)


def acks_first(patch: pytest.MonkeyPatch) -> None:
    in_two_batches(patch, acks_first=True)


def acks_last(patch: pytest.MonkeyPatch) -> None:
    in_two_batches(patch, acks_first=False)


def each_publish_on_its_own(patch: pytest.MonkeyPatch) -> None:
    publish = BrokerTransaction.publish

    def published(self: BrokerTransaction, plan: Plan) -> None:
        publish(self, plan)
        acks, self._store_transaction._acks = self._store_transaction._acks, GatheredAcks()
        self.commit()
        sync_at_once(self._services.store)
        self._store_transaction = self._services.store.transaction()
        self._store_transaction._acks = acks
        self._columns, self._open = [], {}

    patch.setattr(BrokerTransaction, "publish", published)


def dead_letters_afterwards(patch: pytest.MonkeyPatch) -> None:
    """Reject messages only once the transaction is committed."""
    committing = LocalTransaction.committing

    def committed(self: LocalTransaction) -> Iterator[None]:
        each = [*zip(self._settled, self._requeues, strict=True)]
        self._settled = [delivery for delivery, requeue in each if requeue is not False]
        self._requeues = [requeue for _, requeue in each if requeue is not False]
        yield from committing(self)
        sync_at_once(self._services.store)
        for delivery, requeue in each:
            if requeue is False:
                self._channel.settled(delivery, requeue=requeue)

    patch.setattr(LocalTransaction, "committing", committed)


def committed_at_once(patch: pytest.MonkeyPatch) -> None:
    def commit(self: Channel) -> None:
        committed(self)
        self.outlet.committed()

    committed = Channel.commit
    patch.setattr(
        BrokerTransaction,
        "commit",
        _without_its_promise(),
    )
    patch.setattr(Channel, "commit", commit)


def _without_its_promise() -> Callable[..., None]:
    commit = BrokerTransaction.commit

    def committed(self: BrokerTransaction, *_promise: object) -> None:
        commit(self)

    return committed


def acks_behind_the_promise(patch: pytest.MonkeyPatch) -> None:
    """Acks are received, and not on disk, when the commit is reported (as in RabbitMQ)."""

    def commit(self: amqpstore.transaction.Transaction) -> None:
        for placements, messages, priority, *_ in self._publishes:
            self._store.enqueue(placements, messages, priority=priority)
        for queue, run in self._acks.runs:
            self._store.log.when_durable(partial(self._store.ack, queue, run))

    patch.setattr(amqpstore.transaction.Transaction, "commit", commit)


TRANSACTION_BUGS: dict[Bug, str] = {
    acks_first: "in pieces",
    acks_last: "in pieces",
    each_publish_on_its_own: "in pieces",
    dead_letters_afterwards: "in pieces",
    committed_at_once: "undone",
    acks_behind_the_promise: "in pieces",
}


@pytest.mark.parametrize("bug", first_of_each(TRANSACTION_BUGS), ids=lambda bug: bug.__name__)
def test_a_transaction_that_is_none_is_caught(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    found = violations(transactions(), until=TRANSACTION_BUGS[bug])
    assert any(one.startswith(TRANSACTION_BUGS[bug]) for one in found), found


def a_batch_for_each_queue(patch: pytest.MonkeyPatch) -> None:
    enqueue = Enqueues.enqueue

    def enqueued(
        self: Enqueues,
        placements: Sequence[Placement],
        messages: list[Message],
        whole_bytes: int,
        whole_overhead: int | None = None,
        *,
        priority: int = 0,
        withheld: list[tuple[Queue, Run]] | None = None,
    ) -> bool:
        logged = False
        for placement in placements:
            logged |= enqueue(
                self,
                [placement],
                messages,
                whole_bytes,
                whole_overhead,
                priority=priority,
                withheld=withheld,
            )
            if self._log.is_idle and (batch := self._log.seal(1)):
                self._log.write(batch)
                self._log.complete(batch)
        return logged

    patch.setattr(Enqueues, "enqueue", enqueued)


def confirmed_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Publisher, "confirm_durable", lambda *_: None)
    settle = Publisher.confirm_published

    def settled(self: Publisher) -> None:
        published = self._published
        settle(self)
        for _, last, promise in published:
            if promise is _Promise.WHEN_DURABLE:
                self.outlet.confirm(last, multiple=True)

    patch.setattr(Publisher, "confirm_published", settled)


def refused_and_kept(patch: pytest.MonkeyPatch) -> None:
    def planned(
        route: Route, label: ParsedEnvelope, messages: list[Message], *, immediate: bool
    ) -> Plan:
        found = plan(route, label, messages, immediate=immediate)
        return found._replace(placements=[one._replace(most=None) for one in found.placements])

    patch.setattr(amqpstore_server.broker.channels.confirms, "plan", planned)


PUBLISH_BUGS: dict[Bug, str] = {
    a_batch_for_each_queue: "in pieces",
    confirmed_at_once: "undone",
    refused_and_kept: "in pieces",
}


@pytest.mark.parametrize("bug", PUBLISH_BUGS, ids=lambda bug: bug.__name__)
def test_a_publish_that_breaks_its_promise_is_caught(
    bug: Bug, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    found = violations(publishes(), until=PUBLISH_BUGS[bug])
    assert any(one.startswith(PUBLISH_BUGS[bug]) for one in found), found
