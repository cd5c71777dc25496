"""The history of consumed messages and its replays, with the power cut at every operation.

What was consumed is in its queue or in its history, never in both and never in neither, however
it was consumed. A replay is all of its copies or none, and what was confirmed of it is on disk. A
history ends with its queue.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import pytest

import amqpstore
from amqpstore import Placement
from amqpstore_server.broker.channels.confirms import Publisher, _Promise
from amqpstore_server.broker.definitions.deletion import Deletion
from amqpstore_server.broker.messages.envelope import ParsedEnvelope
from amqpstore_server.broker.queues.backlog import Backlog, Taken
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.transactions.history import QueueHistory
from amqpstore_server.broker.transactions.replay import ReplayOutcome, Replays
from amqpstore_server.broker.transactions.transaction import Plan
from amqpstore_server.broker.transactions.transaction import Transaction as BrokerTransaction
from tests.crash.broker_world import Client, Contents, World, sync_at_once, violations
from tests.crash.violated import first_of_each
from tests.simulated_broker import ack_until

Bug = Callable[[pytest.MonkeyPatch], None]


def consume(client: Client, queue: str, count: int) -> None:
    for _ in range(count):
        client.get(queue)


def consumption() -> World:
    """Ack messages one by one, many at once and in transactions, consume without acks, and end
    messages without an ack.
    """
    world = World()
    world.queue("work", history_length=100, dead_letter_exchange="", dead_letter_routing_key="dead")
    world.queue("fast", history_length=3, max_priority=2)
    world.queue("orders")
    world.queue("dead")
    sender, client, transacted = world.client(), world.client(), world.client()
    sender.channel.select_confirms()
    transacted.channel.select_transactions()
    world.begin()
    world.step(work="w1 w2 w3 w4 w5 w6 w7 w8")
    sender.publish("", "work", *(f"w{number}" for number in range(1, 9)))
    world.sync()

    consume(client, "work", 4)
    world.step(work="w1 w3 w4 w5 w6 w7 w8", amq__consumed__work="w2")
    client.ack("w2")
    world.promise()
    world.begin_sync()
    # While the disk is busy: an ack of several, a rejection, and what is put back.
    world.step(work="w4 w5 w6 w7 w8", amq__consumed__work="w2 w1 w3")
    ack_until(client.channel, client.tag("w3"))
    world.promise()
    world.finish_sync()
    world.step(work="w5 w6 w7 w8", dead="w4:rejected@work*1")
    client.reject("w4")
    world.sync()

    world.step(work="w6 w7 w8", amq__consumed__work="w2 w1 w3 w5")
    assert client.get("work", no_ack=True) == "w5"
    world.promise()
    world.sync()

    consume(transacted, "work", 3)
    transacted.publish("", "orders", "a", "b")
    transacted.ack("w6")
    transacted.ack("w8")
    world.step(work="w7", amq__consumed__work="w2 w1 w3 w5 w6 w8", orders="a b")
    transacted.commit()
    transacted.ack("w7")
    transacted.channel.rollback()
    world.sync()

    # A history that is full: it has one more for a moment, and then the oldest goes.
    world.step(fast="f1 f2 f3 f4")
    sender.publish("", "fast", "f1", "f2", "f3", "f4", priority=1)
    world.sync()
    world.step(fast="", amq__consumed__fast="f1 f2 f3 f4")
    world.step(fast="", amq__consumed__fast="f2 f3 f4")
    client.consume("fast", no_ack=True)
    world.sync()
    world.restart()
    world.step(amq__consumed__fast="")
    world.vhost.queue("amq.consumed.fast").backlog.purge()
    world.promise()
    world.sync()

    world.step(work="", amq__consumed__work="")
    world.vhost.delete_queue(world.vhost.queue("work"))
    world.sync()
    return world


def replays() -> World:
    """Into the queue itself, into another, and into one that refuses; through a restart."""
    world = World()
    world.queue("work", history_length=100)
    world.queue("browse")
    world.queue("small", max_length=2, overflow="reject-publish")
    sender, client = world.client(), world.client()
    sender.channel.select_confirms()
    world.begin()
    world.step(work="a b c d")
    sender.publish("", "work", "a", "b", "c", "d")
    world.sync()
    client.consume("work", no_ack=True)
    world.step(work="", amq__consumed__work="a b c d")
    world.sync()
    client.channel.cancel("from work")
    world.step(browse="a b c d")
    sender.publish("amq.replay", "work", "request", headers={"x-replay-to": "browse"})
    world.sync()
    world.step(work="a b")
    sender.publish("amq.replay", "work", "request", headers={"x-limit": 2})
    world.begin_sync()
    world.step(browse="a b c d a b c d")
    sender.publish("amq.replay", "work", "request", headers={"x-replay-to": "browse"})
    sender.publish("amq.replay", "work", "request", headers={"x-replay-to": "small"})
    world.finish_sync()
    world.sync()
    assert sender.refused == [8]
    world.restart()
    sender = world.client()
    sender.channel.select_confirms()
    world.step(work="a b a b c d")
    sender.publish("amq.replay", "work", "request")
    world.sync()
    return world


def expiring() -> World:
    """A history that time ends."""
    world = World()
    world.queue("work", history_ttl=100)
    client = world.client()
    world.begin()
    world.step(work="a b c")
    client.publish("", "work", "a", "b", "c")
    world.sync()
    consume(client, "work", 2)
    world.step(work="b c", amq__consumed__work="a")
    client.ack("a")
    world.sync()
    world.pass_time(60)
    world.step(work="c", amq__consumed__work="a b")
    client.ack("b")
    world.sync()
    world.step(work="c", amq__consumed__work="b")
    world.pass_time(50)
    world.sync()
    world.step(work="c", amq__consumed__work="")
    world.restart(after_ms=100)
    world.sync()
    return world


def without_histories(contents: Contents) -> Contents:
    """Return what is left once the time of all histories is over."""
    return {queue: bodies for queue, bodies in contents.items() if "consumed" not in queue}


def test_what_is_consumed_is_in_its_queue_or_in_its_history() -> None:
    assert violations(consumption()) == []


def test_a_replay_is_all_of_its_copies_or_none() -> None:
    assert violations(replays()) == []


def test_time_ends_a_history_and_nothing_else() -> None:
    assert violations(expiring(), later=without_histories) == []


@pytest.mark.long
@pytest.mark.rounds(2)
@pytest.mark.parametrize("history", [consumption, replays])
def test_more_images(history: Callable[[], World], seed: int) -> None:
    assert violations(history(), images=100, seed=seed) == []


# Broken copies.


def history_first(patch: pytest.MonkeyPatch) -> None:
    in_two_batches(patch, ack_first=False)


def ack_first(patch: pytest.MonkeyPatch) -> None:
    in_two_batches(patch, ack_first=True)


def in_two_batches(patch: pytest.MonkeyPatch, *, ack_first: bool) -> None:
    def consumed(self: QueueHistory, _queue: Queue, taken: Taken) -> None:
        def ack() -> None:
            self._services.store.ack(taken.store_queue, taken.run)

        def keep() -> None:
            transaction = BrokerTransaction(self._services)
            for copy in self.copies(self._services.store.stored.read_all(taken.run)):
                transaction.add(self.queue, *copy)
            transaction.commit()

        first, second = (ack, keep) if ack_first else (keep, ack)
        first()
        sync_at_once(self._services.store)
        second()

    patch.setattr(QueueHistory, "consumed", consumed)


def transactions_without_history(patch: pytest.MonkeyPatch) -> None:
    """Copy messages to the history only once the transaction is committed."""

    def keep(self: BrokerTransaction, queue: Queue, consumed: Sequence[amqpstore.Message]) -> None:
        if (history := queue.history) is not None:

            def keep_late() -> None:
                transaction = BrokerTransaction(self._services)
                for copy in history.copies(consumed):
                    transaction.add(history.queue, *copy)
                transaction.commit()

            later.append(keep_late)

    def commit(self: BrokerTransaction, *arguments: object) -> None:
        committed(self, *arguments)  # type: ignore[arg-type]
        todo = list(later)
        later.clear()
        for keep_late in todo:
            sync_at_once(self._services.store)
            keep_late()

    later: list[Callable[[], None]] = []
    committed = BrokerTransaction.commit
    patch.setattr(BrokerTransaction, "keep", keep)
    patch.setattr(BrokerTransaction, "commit", commit)


def forgotten_without_acks(patch: pytest.MonkeyPatch) -> None:
    """Deliveries without acks are acked where they are taken, and never reach the history."""
    take = Backlog.take

    def taken(self: Backlog, limit: int, **how: Any) -> Taken | None:
        queue = self._queue()
        history, queue.history = queue.history, None
        try:
            return take(self, limit, **how)
        finally:
            queue.history = history

    patch.setattr(Backlog, "take", taken)


def deleted_apart(patch: pytest.MonkeyPatch) -> None:
    """The history is deleted once its queue is."""

    committed = Deletion.commit

    def commit(self: Deletion) -> None:
        first, *others = self._queues
        self._queues = [first]
        committed(self)
        for other in others:
            alone = Deletion(self._vhost)
            alone.add_own_queues([other])
            committed(alone)

    patch.setattr(Deletion, "commit", commit)


HISTORY_BUGS: dict[Bug, str] = {
    history_first: "in pieces",
    ack_first: "in pieces",
    transactions_without_history: "in pieces",
    forgotten_without_acks: "in pieces",
    deleted_apart: "in pieces",
}


@pytest.mark.parametrize("bug", first_of_each(HISTORY_BUGS), ids=lambda bug: bug.__name__)
def test_a_history_that_is_not_in_step_is_caught(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    found = violations(consumption(), until=HISTORY_BUGS[bug])
    assert any(one.startswith(HISTORY_BUGS[bug]) for one in found), found


def each_copy_on_its_own(patch: pytest.MonkeyPatch) -> None:
    add = BrokerTransaction.publish

    def publish(
        self: BrokerTransaction,
        plan: Plan,
    ) -> None:
        for message in plan.messages:
            add(self, plan._replace(messages=[message]))
            self.commit()
            sync_at_once(self._services.store)
            self._columns, self._open = [], {}
            self._store_transaction = self._services.store.transaction()

    patch.setattr(BrokerTransaction, "publish", publish)


def copies_until_it_is_full(patch: pytest.MonkeyPatch) -> None:
    """Copy the messages that there is room for, and refuse the others."""
    add = Queue.placement

    def placement(
        self: Queue,
        label: ParsedEnvelope,
        messages: Sequence[amqpstore.Message],
        *,
        immediate: bool,
    ) -> Placement:
        found = add(self, label, messages, immediate=immediate)
        if found.most:
            self._store.enqueue([found], list(messages))
        return found

    patch.setattr(Queue, "placement", placement)


def confirmed_at_once(patch: pytest.MonkeyPatch) -> None:
    replay = Replays.replay

    def replayed(
        self: Replays, envelope: amqpstore.Envelope
    ) -> Generator[None, None, ReplayOutcome]:
        confirmed.append(envelope)
        return replay(self, envelope)

    def settle(self: Publisher) -> None:
        if confirmed:
            confirmed.clear()
            self._published = [
                one._replace(promise=_Promise.NOW) if one.promise is _Promise.WHEN_DURABLE else one
                for one in self._published
            ]
        settled(self)

    confirmed: list[amqpstore.Envelope] = []
    settled = Publisher.confirm_published
    patch.setattr(Replays, "replay", replayed)
    patch.setattr(Publisher, "confirm_published", settle)


REPLAY_BUGS: dict[Bug, str] = {
    each_copy_on_its_own: "in pieces",
    copies_until_it_is_full: "in pieces",
    confirmed_at_once: "undone",
}


@pytest.mark.parametrize("bug", REPLAY_BUGS, ids=lambda bug: bug.__name__)
def test_a_replay_that_breaks_its_promise_is_caught(
    bug: Bug, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    found = violations(replays(), until=REPLAY_BUGS[bug])
    assert any(one.startswith(REPLAY_BUGS[bug]) for one in found), found
