"""Messages that leave their queues without a consumer, with the power cut at every operation.

A dead letter is in exactly one place, with the right deaths, whichever way it died: rejected,
expired, dropped from a full queue, or delivered too often; and so is a delayed message, which is
routed when its delay is over however often the power goes in between (P4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from amqpstore import Run
from amqpstore.queues.withdrawals import Withdrawals
from amqpstore_server.broker.definitions.deletion import Deletion
from amqpstore_server.broker.messages.deaths import Death, one_more_death
from amqpstore_server.broker.queues.backlog import Taken
from amqpstore_server.broker.queues.kinds import DelayBacklog, DelayQueue, RecentHistoryQueue
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.transactions.transaction import Transaction
from tests.crash.broker_world import Contents, Later, World, sync_at_once, violations
from tests.store_of_withdrawals import noted_stores

Bug = Callable[[pytest.MonkeyPatch], None]


def deaths() -> World:
    """Deaths of each kind, one after the other, and two of the same kind."""
    world = World()
    world.queue("work", dead_letter_exchange="", dead_letter_routing_key="dead")
    world.queue("slow", message_ttl=1000, dead_letter_exchange="to-work")
    world.queue("short", max_length=2, dead_letter_exchange="", dead_letter_routing_key="slow")
    world.queue("often", delivery_limit=1, dead_letter_exchange="", dead_letter_routing_key="dead")
    world.queue("dead")
    world.exchange("to-work", "fanout")
    world.bind("to-work", "work")
    client, sender = world.client(), world.client()
    sender.channel.select_confirms()
    world.begin()

    world.step(work="a b")
    sender.publish("", "work", "a", "b")
    client.get("work")
    client.get("work")
    world.sync()
    world.step(work="b", dead="a:rejected@work*1")
    client.reject("a")
    world.promise()
    world.sync()

    # A full queue: its oldest go to one in which they expire, and from there to be worked on.
    world.step(short="c d")
    sender.publish("", "short", "c", "d")
    world.step(short="d e", slow="c:maxlen@short*1")
    sender.publish("", "short", "e")
    world.begin_sync()
    world.step(short="e f", slow="c:maxlen@short*1 d:maxlen@short*1")
    sender.publish("", "short", "f")
    world.sync()
    world.step(
        slow="",
        work="b c:expired@slow*1:maxlen@short*1 d:expired@slow*1:maxlen@short*1",
    )
    world.pass_time(1000)
    world.promise()
    world.sync()

    # A message is delivered twice, which is too often.
    world.step(often="g h")
    sender.publish("", "often", "g", "h")
    world.sync()
    for _ in range(2):
        assert client.get("often") == "g"
        world.sync()
        if _ == 0:
            client.requeue("g")
    world.step(often="h", dead="a:rejected@work*1 g:delivery_limit@often*1")
    client.requeue("g")
    world.promise()
    world.sync()

    # And again where it died before: the deaths are merged, and counted.
    world.step(
        work="b d:expired@slow*1:maxlen@short*1",
        dead="a:rejected@work*1 g:delivery_limit@often*1 "
        "c:rejected@work*1:expired@slow*1:maxlen@short*1",
    )
    client.get("work")
    client.reject("c")
    world.promise()
    world.sync()
    world.step(short="f i", slow="e:maxlen@short*1")
    sender.publish("", "short", "i")
    world.sync()
    client.get("dead")
    world.step(dead="g:delivery_limit@often*1 c:rejected@work*1:expired@slow*1:maxlen@short*1")
    client.ack("a")
    world.promise()
    world.sync()
    return world


def in_the_end(contents: Contents) -> Contents:
    """Messages in `slow` expire and go to `work`; the rest stay."""
    left = dict(contents)
    expired = [_died(one, "expired@slow*1") for one in left.pop("slow", ())]
    if expired:
        left["work"] = (*left.get("work", ()), *expired)
    return left


def _died(described: str, death: str) -> str:
    body, *before = described.split(":")
    return ":".join([body, death, *before])


def cycle() -> World:
    """A queue whose rejected messages come back after a while: each round adds to the counts."""
    world = World()
    world.queue("work", dead_letter_exchange="", dead_letter_routing_key="again")
    world.queue("again", message_ttl=500, dead_letter_exchange="", dead_letter_routing_key="work")
    client = world.client()
    world.begin()
    world.step(work="a")
    client.publish("", "work", "a")
    world.promise()
    deaths = ""
    for count in range(1, 4):
        client.get("work")
        world.sync()
        old = f":expired@again*{count - 1}" if count > 1 else ""
        deaths = f":rejected@work*{count}{old}"
        world.step(work="", again=f"a{deaths}")
        client.reject("a")
        world.promise()
        world.sync()
        world.step(work=f"a:expired@again*{count}:rejected@work*{count}", again="")
        world.pass_time(500)
        world.promise()
        world.sync()
    return world


def delayed() -> World:
    """Messages that wait in a delayed exchange, and leave it in the order in which they are due."""
    world = World()
    world.exchange("later", "x-delayed-message", **{"x-delayed-type": "topic"})
    world.queue("one")
    world.queue("both")
    world.bind("later", "one", "one.#")
    world.bind("later", "both", "#")
    client = world.client()
    client.channel.select_confirms()
    world.begin()
    world.step(amq__delayed__later="a")
    client.publish("later", "one.x", "a", headers={"x-delay": 300})
    world.step(amq__delayed__later="a b")
    client.publish("later", "two", "b", headers={"x-delay": 100})
    world.sync()
    world.step(one="c", both="c")
    client.publish("later", "one", "c")
    world.step(amq__delayed__later="a b d", one="c", both="c")
    client.publish("later", "one.y", "d", headers={"x-delay": 200})
    world.begin_sync()
    world.step(amq__delayed__later="a d", both="c b")
    world.pass_time(150)
    world.promise()
    world.sync()
    world.step(amq__delayed__later="a", one="c d", both="c b d")
    world.pass_time(50)
    world.promise()
    world.sync()
    world.step(amq__delayed__later="", one="c d a", both="c b d a")
    world.pass_time(100)
    world.promise()
    world.sync()
    return world


DELAYS = {"a": 300, "b": 100, "d": 200}


def all_routed(contents: Contents) -> Contents:
    """Delayed messages are routed in the order in which they are due."""
    left = dict(contents)
    for body in sorted(left.pop("amq.delayed.later", ()), key=DELAYS.__getitem__):
        left["both"] = (*left.get("both", ()), body)
        if body != "b":
            left["one"] = (*left.get("one", ()), body)
    return left


def purged() -> World:
    """Waiting messages are cancelled: the queue of the exchange is purged, and later deleted."""
    world = World()
    world.exchange("later", "x-delayed-message", **{"x-delayed-type": "fanout"})
    world.queue("all")
    world.bind("later", "all")
    client = world.client()
    world.begin()
    world.step(amq__delayed__later="a b")
    client.publish("later", "", "a", "b", headers={"x-delay": 1000})
    world.promise()
    world.sync()
    world.step(amq__delayed__later="")
    world.vhost.queue("amq.delayed.later").backlog.purge()
    world.promise()
    world.step(amq__delayed__later="c")
    client.publish("later", "", "c", headers={"x-delay": 1000})
    world.promise()
    world.sync()
    world.step(amq__delayed__later="")
    world.vhost.exchange_definitions.delete("later", if_unused=False)
    world.promise()
    world.step(all="d")
    client.publish("", "all", "d")
    world.promise()
    return world


SLICES = {"a": 2_000_000, "b": 1_000, "c": 4_000_000, "d": 2_000_001, "e": 5_000}


def delayed_for_long() -> World:
    """Delays so long that what waits is in several queues of the store, each of which ends."""
    world = World()
    world.exchange("later", "x-delayed-message", **{"x-delayed-type": "fanout"})
    world.queue("all")
    world.bind("later", "all")
    client = world.client()
    client.channel.select_confirms()
    world.begin()
    for body, held in (
        ("a", "a"),
        ("b", "b a"),
        ("c", "b a c"),
        ("d", "b a d c"),
        ("e", "b e a d c"),
    ):
        world.step(amq__delayed__later=held)
        client.publish("later", "", body, headers={"x-delay": SLICES[body]})
        if body == "c":
            world.sync()
    world.sync()
    world.step(amq__delayed__later="e a d c", all="b")
    world.pass_time(1_000)
    world.promise()
    world.sync()
    world.step(amq__delayed__later="a d c", all="b e")
    world.pass_time(1_900_000)
    world.promise()
    world.begin_sync()
    world.step(amq__delayed__later="c", all="b e a d")
    world.pass_time(1_200_000)
    world.promise()
    world.sync()
    world.restart(after_ms=2_000_000)
    world.step(amq__delayed__later="", all="b e a d c")
    world.pass_time(0)
    world.promise()
    world.sync()
    assert len(world.store.queues) <= 3
    return world


def all_slices_routed(contents: Contents) -> Contents:
    """Delayed messages are routed in the order in which they are due."""
    left = dict(contents)
    waiting = sorted(left.pop("amq.delayed.later", ()), key=SLICES.__getitem__)
    if waiting:
        left["all"] = (*left.get("all", ()), *waiting)
    return left


def left_behind() -> World:
    """A queue, and then an exchange, is deleted right after messages left it, and before that is
    durable: their deletion is durable at once."""
    world = World()
    world.exchange("later", "x-delayed-message", **{"x-delayed-type": "fanout"})
    world.queue("work", dead_letter_exchange="", dead_letter_routing_key="dead")
    world.queue("more", max_priority=2, dead_letter_exchange="", dead_letter_routing_key="dead")
    world.queue("dead")
    world.bind("later", "dead")
    client = world.client()
    client.channel.select_confirms()
    world.begin()
    world.step(work="a b", more="c d", amq__delayed__later="e f")
    client.publish("", "work", "a", "b")
    client.publish("", "more", "c", priority=1)
    client.publish("", "more", "d")
    client.publish("later", "", "e", headers={"x-delay": 10})
    client.publish("later", "", "f", headers={"x-delay": 20})
    world.sync()
    client.get("work")
    client.get("more")
    world.sync()
    world.step(work="b", dead="a:rejected@work*1")
    client.reject("a")
    world.step(work="")
    world.vhost.delete_queue(world.vhost.queue("work"))
    world.promise()
    world.step(more="d", dead="a:rejected@work*1 c:rejected@more*1")
    client.reject("c")
    world.begin_sync()
    world.step(more="")
    world.vhost.delete_queue(world.vhost.queue("more"))
    world.promise()
    world.step(amq__delayed__later="f", dead="a:rejected@work*1 c:rejected@more*1 e")
    world.pass_time(10)
    world.step(amq__delayed__later="")
    world.vhost.exchange_definitions.delete("later", if_unused=False)
    world.promise()
    world.sync()
    return world


def remembered() -> World:
    """A recent-history exchange, whose last messages are sent to whatever is bound to it."""
    world = World()
    world.exchange("news", "x-recent-history", **{"x-recent-history-length": 2})
    world.queue("old")
    world.queue("new")
    world.bind("news", "old")
    client = world.client()
    client.channel.select_confirms()
    world.begin()
    world.step(old="a", amq__history__news="a")
    client.publish("news", "", "a")
    world.step(old="a b c", amq__history__news="b c")
    client.publish("news", "", "b", "c")
    world.sync()
    world.step(old="a b c d", amq__history__news="b c")
    client.publish("news", "", "d", headers={"x-recent-history-no-store": True})
    world.sync()
    world.step(new="b c")
    world.bind("news", "new")
    world.promise()
    world.sync()
    world.step(old="a b c d e", new="b c e", amq__history__news="c e")
    client.publish("news", "", "e")
    world.sync()
    return world


HISTORIES: dict[Callable[[], World], Later | None] = {
    deaths: in_the_end,
    cycle: None,
    delayed: all_routed,
    delayed_for_long: all_slices_routed,
    purged: None,
    left_behind: None,
    remembered: None,
}


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_a_message_is_in_exactly_one_place_with_its_deaths(history: Callable[[], World]) -> None:
    assert violations(history(), later=HISTORIES[history]) == []


@pytest.mark.long
@pytest.mark.rounds(2)
@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_more_images(history: Callable[[], World], seed: int) -> None:
    assert violations(history(), images=100, later=HISTORIES[history], seed=seed) == []


def test_a_delay_that_is_over_while_the_broker_is_down_is_routed_at_its_start() -> None:
    world = World()
    world.exchange("later", "x-delayed-message", **{"x-delayed-type": "fanout"})
    world.queue("all")
    world.bind("later", "all")
    client = world.client()
    world.begin()
    world.step(amq__delayed__later="a b")
    client.publish("later", "", "a", headers={"x-delay": 1000})
    client.publish("later", "", "b", headers={"x-delay": 2000})
    world.promise()
    world.sync()
    world.restart(after_ms=1500)
    world.step(amq__delayed__later="b", all="a")
    world.pass_time(0)
    world.promise()
    world.sync()
    world.step(amq__delayed__later="", all="a b")
    world.pass_time(1000)
    world.promise()
    assert violations(world) == []


# Broken copies.


def acked_before_it_is_published(patch: pytest.MonkeyPatch) -> None:
    def ack(self: Transaction, _queue: Queue, taken: Taken) -> None:
        self._services.store.ack(taken.store_queue, taken.run)
        sync_at_once(self._services.store)

    patch.setattr(Transaction, "ack", ack)


def published_before_it_is_acked(patch: pytest.MonkeyPatch) -> None:
    def ack(self: Transaction, _queue: Queue, taken: Taken) -> None:
        acks.append(taken)

    def committed(self: Transaction, *promise: Callable[[], None]) -> None:
        commit(self, *promise)
        sync_at_once(self._services.store)
        for taken in acks:
            self._services.store.ack(taken.store_queue, taken.run)
        acks.clear()

    acks: list[Taken] = []
    commit = Transaction.commit
    patch.setattr(Transaction, "ack", ack)
    patch.setattr(Transaction, "commit", committed)


def deaths_are_not_merged(patch: pytest.MonkeyPatch) -> None:
    def all_anew(before: Sequence[Death], *about: Any) -> tuple[list[Death], int]:
        return [*one_more_death([], *about)[0], *before], len(before)

    patch.setattr("amqpstore_server.broker.transactions.dead_letter.one_more_death", all_anew)


def what_expires_counts_as_delivered(patch: pytest.MonkeyPatch) -> None:
    stores = noted_stores(patch)
    withdraw_expired = Withdrawals.withdraw_expired

    def withdrawn(self: Withdrawals, queue: Any, now_ms: int, **options: Any) -> object:
        run = withdraw_expired(self, queue, now_ms, **options)
        if isinstance(run, Run):
            stores[self].redeliver(queue, run)
            sync_at_once(stores[self])
        return run

    patch.setattr(Withdrawals, "withdraw_expired", withdrawn)


def delays_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Keep delays in memory only: the store does not know when messages are due."""
    patch.setattr(DelayQueue, "_expires_ms", lambda *_: 0)


def routed_and_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transaction, "ack", lambda *_: None)


def slices_end_at_once(patch: pytest.MonkeyPatch) -> None:
    """End slices before the messages that left them are durable elsewhere."""
    expire = DelayBacklog.expire_until

    def expired(self: DelayBacklog, now_ms: int) -> None:
        expire(self, now_ms)
        for number, level in self.priorities.ascending():
            self._end_slice(number, level)

    patch.setattr(DelayBacklog, "expire_until", expired)


def deleted_at_once(patch: pytest.MonkeyPatch) -> None:
    """Delete a queue before the messages that left it are durable elsewhere."""

    commit = Deletion.commit

    def at_once(self: Deletion) -> None:
        moves = self._vhost.services.moves
        counts, moves.counts = moves.counts, Counter()
        commit(self)
        moves.counts = counts

    patch.setattr(Deletion, "commit", at_once)


def history_is_sent_and_gone(patch: pytest.MonkeyPatch) -> None:
    messages = RecentHistoryQueue.messages

    def sent(self: RecentHistoryQueue) -> object:
        found = messages(self)
        self.backlog.purge()
        return found

    patch.setattr(RecentHistoryQueue, "messages", sent)


BUGS: dict[Bug, tuple[Callable[[], World], str]] = {
    acked_before_it_is_published: (deaths, "in pieces"),
    published_before_it_is_acked: (deaths, "in pieces"),
    deaths_are_not_merged: (cycle, "in pieces"),
    what_expires_counts_as_delivered: (deaths, "count"),
    delays_are_forgotten: (delayed, "later"),
    routed_and_kept: (delayed, "in pieces"),
    slices_end_at_once: (delayed_for_long, "in pieces"),
    deleted_at_once: (left_behind, "in pieces"),
    history_is_sent_and_gone: (remembered, "in pieces"),
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_is_caught(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    history, expected = BUGS[bug]
    bug(monkeypatch)
    found = violations(history(), later=HISTORIES[history], until=expected)
    assert any(one.startswith(expected) for one in found), found
