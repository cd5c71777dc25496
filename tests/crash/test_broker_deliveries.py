"""Deliveries, acks and requeues, with the power cut at every operation.

The delivery count of a message is never less than was promised, so that a delivery limit holds
through any number of crashes (P5). A message that is given back is in its old place (I6). A queue
with priorities is one queue, whatever the levels of its messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import amqpstore
from amqpstore import Run, Store
from amqpstore.format.records import OperationKind
from amqpstore_server.broker import broker
from amqpstore_server.broker.definitions import restoring
from amqpstore_server.broker.queues.backlog import Backlog, Taken
from amqpstore_server.broker.queues.priorities import Priorities
from amqpstore_server.broker.queues.queue import Queue
from tests.crash.broker_world import World, sync_at_once, violations

Bug = Callable[[pytest.MonkeyPatch], None]


def limited() -> World:
    """A message that kills its consumer, which comes back each time, and others beside it."""
    world = World()
    world.queue("work", delivery_limit=3, dead_letter_exchange="", dead_letter_routing_key="dead")
    world.queue("dead")
    client = world.client()
    client.channel.select_confirms()
    world.begin()
    world.step(work="bad good")
    client.publish("", "work", "bad", "good")
    for _ in range(2):
        client = world.client()
        assert client.get("work") == "bad"
        world.restart()
    # Twice in one life, once given back in order.
    client = world.client()
    assert client.get("work") == "bad"
    client.requeue("bad")
    assert client.get("work") == "bad"
    world.sync()
    world.restart()
    # The message was not acked four times: the next consumer does not get it.
    client = world.client()
    world.step(work="good", dead="bad:delivery_limit@work*1")
    assert client.get("work") == "good"
    world.promise()
    world.sync()
    world.step(work="")
    client.ack("good")
    world.promise()
    return world


def given_back() -> World:
    """Have consumers with a prefetch ack, give back, recover and cancel, in mixed order."""
    world = World()
    world.queue("work")
    sender = world.client()
    sender.channel.select_confirms()
    world.begin()
    world.step(work="a b c d e f g h")
    sender.publish("", "work", *"abc")
    sender.publish("", "work", *"defgh")
    first, second = world.client(), world.client()
    first.consume("work", prefetch=4)
    world.sync()
    second.consume("work")
    world.sync()
    world.step(work="a c d e f g h")
    first.ack("b")
    world.promise()
    world.step(work="a c d e g h")
    second.ack("f")
    world.promise()
    world.sync()
    # Each message is in its old place, whichever consumer gave it back, and in any order.
    first.requeue("d", "a")
    world.begin_sync()
    second.channel.recover(requeue=True)
    world.step(work="a c d e g h i")
    sender.publish("", "work", "i")
    world.sync()
    second.channel.recover(requeue=False)
    second.channel.close()
    first.channel.cancel("from work")
    world.sync()
    first.channel.close()
    world.restart()
    last = world.client()
    last.consume("work", prefetch=2)
    world.sync()
    world.step(work="c d e g h i")
    last.ack("a")
    world.promise()
    world.sync()
    world.step(work="c e g h i")
    last.ack("d")
    world.promise()
    last.requeue("c")
    last.channel.close()
    # Only the consumer without acks has the messages.
    world.step(work="")
    eager = world.client()
    eager.consume("work", no_ack=True)
    world.work()
    world.promise()
    world.sync()
    return world


def given_back_once() -> World:
    """Give back half of what was fetched, the last message first."""
    world = World()
    world.queue("work")
    client = world.client()
    client.channel.select_confirms()
    world.begin()
    world.step(work="a b c d e f")
    client.publish("", "work", *"abcdef")
    world.sync()
    for _ in range(4):
        client.get("work")
    world.sync()
    client.requeue("c", "a")
    world.sync()
    return world


def priorities() -> World:
    """Levels that come one by one, each with messages that are acked, given back and expire."""
    world = World()
    world.queue("work", max_priority=5, dead_letter_exchange="", dead_letter_routing_key="dead")
    world.queue("full", max_priority=2, max_length=3)
    world.queue("dead")
    client = world.client()
    client.channel.select_confirms()
    world.begin()
    world.step(work="n1 n2")
    client.publish("", "work", "n1", "n2")
    world.step(work="p3a p3b n1 n2")
    client.publish("", "work", "p3a", "p3b", priority=3)
    world.sync()
    world.step(work="p5 p3a p3b n1 n2")
    client.publish("", "work", "p5", priority=200)
    world.step(work="p5 p3a p3b p1 n1 n2")
    client.publish("", "work", "p1", priority=1, expiration="500")
    world.begin_sync()
    assert [client.get("work") for _ in range(4)] == ["p5", "p3a", "p3b", "p1"]
    world.step(work="p5 p3b p1 n1 n2")
    client.ack("p3a")
    world.promise()
    world.sync()
    client.requeue("p1")
    client.requeue("p5")
    world.step(work="p5 p1 n1 n2", dead="p3b:rejected@work*1")
    client.reject("p3b")
    world.promise()
    world.sync()
    world.step(work="p5 n1 n2", dead="p3b:rejected@work*1 p1:expired@work*1")
    world.pass_time(500)
    world.promise()
    world.sync()
    world.restart()
    client = world.client()
    client.channel.select_confirms()
    world.step(work="p5 p4 n1 n2")
    client.publish("", "work", "p4", priority=4)
    world.sync()

    # The least of them is dropped first, and of that the oldest.
    world.step(full="x2 x1a x1b")
    client.publish("", "full", "x1a", "x1b", priority=1)
    client.publish("", "full", "x2", priority=2)
    world.sync()
    world.step(full="x2 x2b x1b")
    client.publish("", "full", "x2b", priority=2)
    world.sync()

    world.step(work="")
    world.vhost.queue("work").backlog.purge()
    world.promise()
    world.sync()
    world.step(work="p2")
    client.publish("", "work", "p2", priority=2)
    world.sync()
    world.step(work="")
    world.vhost.delete_queue(world.vhost.queue("work"))
    world.promise()
    world.sync()
    world.step(full="x1b")
    assert [client.get("full") for _ in range(2)] == ["x2", "x2b"]
    client.ack("x2", "x2b")
    world.promise()
    return world


HISTORIES = [limited, given_back, given_back_once, priorities]


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_counts_order_and_levels_survive(history: Callable[[], World]) -> None:
    assert violations(history()) == []


@pytest.mark.long
@pytest.mark.rounds(2)
@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_more_images(history: Callable[[], World], seed: int) -> None:
    assert violations(history(), images=100, seed=seed) == []


# Broken copies.


def deliveries_are_not_logged(patch: pytest.MonkeyPatch) -> None:
    log_run = Store._log_run

    def logged(
        self: Store, kind: OperationKind, queue: amqpstore.Queue, run: Run, detail: int = 0
    ) -> None:
        if kind is not OperationKind.DELIVERED:
            log_run(self, kind, queue, run, detail)

    patch.setattr(Store, "_log_run", logged)


def what_is_given_back_counts_from_0(patch: pytest.MonkeyPatch) -> None:
    requeue = Store.requeue

    def requeued(self: Store, queue: amqpstore.Queue, run: Run) -> None:
        requeue(self, queue, run)
        run.delivery_count = 0

    patch.setattr(Store, "requeue", requeued)


def given_back_to_the_end(patch: pytest.MonkeyPatch) -> None:
    """Put requeued messages at the end, as RabbitMQ's quorum queues do."""

    def requeue(self: Queue, taken: Taken, giver: object) -> None:
        level, run = taken
        with self._store.transaction() as transaction:
            transaction.publish([level], self._store.stored.read_all(run))
            transaction.ack(level, run)

    patch.setattr(Queue, "requeue", requeue)


def what_is_given_back_was_acked(patch: pytest.MonkeyPatch) -> None:
    def requeue(self: Queue, taken: Taken, giver: object) -> None:
        level, run = taken
        self._store.ack(level, run)
        sync_at_once(self._store)
        self._store.publish([level], self._store.stored.read_all(run))

    patch.setattr(Queue, "requeue", requeue)


def levels_are_not_durable(patch: pytest.MonkeyPatch) -> None:
    create_queue = Store.create_queue

    def created(self: Store, definition: object, **more: object) -> amqpstore.Queue:
        if isinstance(definition, dict) and "level" in definition:
            more["durable"] = False
        return create_queue(self, definition, **more)  # type: ignore[arg-type]

    patch.setattr(Store, "create_queue", created)


def levels_are_restored_upside_down(patch: pytest.MonkeyPatch) -> None:
    def restored(*arguments: Any) -> None:
        add = Priorities.add
        patch.setattr(Priorities, "add", lambda levels, key, level: add(levels, 100 - key, level))
        restore(*arguments)
        patch.setattr(Priorities, "add", add)

    restore = restoring.restore_queues
    patch.setattr(broker, "restore_queues", restored)


def only_the_lowest_level_is_purged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Backlog, "purge", lambda self: self._store.purge(self.priorities.lowest))


BUGS: dict[Bug, tuple[Callable[[], World], str]] = {
    deliveries_are_not_logged: (given_back, "count"),
    what_is_given_back_counts_from_0: (given_back, "count"),
    given_back_to_the_end: (given_back_once, "in pieces"),
    what_is_given_back_was_acked: (given_back_once, "in pieces"),
    levels_are_not_durable: (priorities, "in pieces"),
    levels_are_restored_upside_down: (priorities, "in pieces"),
    only_the_lowest_level_is_purged: (priorities, "in pieces"),
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_is_caught(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    history, expected = BUGS[bug]
    bug(monkeypatch)
    found = violations(history(), until=expected)
    assert any(one.startswith(expected) for one in found), found
