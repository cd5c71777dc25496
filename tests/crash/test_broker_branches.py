"""Distributed transactions, with the power cut at every operation.

Exactly the prepared branches are in doubt after a crash: the messages that they are to ack are
locked, those that they are to publish are nowhere. A decision is all or nothing over any number of
queues, and is not undone once it was reported (P1, P3).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Generator

import pytest

import amqpstore.prepared
import amqpstore.queues.acks
from amqpstore import Prepared, Publish, Store
from amqpstore.queues.acks import GatheredAcks
from amqpstore.queues.withdrawals import Withdrawals
from amqpstore_server.broker.channels import local_transaction
from amqpstore_server.broker.channels.branches import Branches, Steps, Told, XaStatus, Xid
from amqpstore_server.broker.errors import BrokerError
from amqpstore_server.broker.rights.permissions import Access
from amqpstore_server.broker.transactions import prepared_work
from amqpstore_server.broker.transactions.prepared_work import PreparedWork
from amqpstore_server.broker.transactions.transaction import Column
from tests.crash.broker_world import (
    ANYBODY,
    Client,
    Meanwhile,
    World,
    sync_at_once,
    violations,
)
from tests.crash.violated import first_of_each

Bug = Callable[[pytest.MonkeyPatch], None]


def shop() -> World:
    world = World()
    world.queue("work", dead_letter_exchange="", dead_letter_routing_key="dead")
    world.queue("urgent", max_priority=3)
    for name in ("orders", "audit", "dead"):
        world.queue(name)
    world.exchange("all", "fanout")
    world.bind("all", "orders")
    world.bind("all", "audit")
    return world


class BranchClient(Client):
    """A client in dtx mode. Branches are called by one word."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.channel.select_branches()

    def start(self, name: str) -> None:
        self._branches.start(self.channel, ANYBODY, _xid(name), join=False, resume=False)

    def end(self, name: str) -> None:
        self._branches.end(self.channel, ANYBODY, _xid(name), fail=False, suspend=False)

    def prepare(self, name: str) -> None:
        for _ in self.preparing(name):
            pass

    def preparing(self, name: str) -> Steps:
        return self._branches.preparing(ANYBODY, _xid(name), self._told())

    def commit_branch(self, name: str, *, one_phase: bool = False) -> None:
        for _ in self.committing(name, one_phase=one_phase):
            pass

    def committing(self, name: str, *, one_phase: bool = False) -> Steps:
        return self._branches.committing(ANYBODY, _xid(name), self._told(), one_phase=one_phase)

    def rollback(self, name: str) -> None:
        """Roll a branch back: durable on return."""
        for _ in self.rolling_back(name):
            pass

    def rolling_back(self, name: str) -> Steps:
        return self._branches.rolling_back(ANYBODY, _xid(name), self._told())

    @property
    def _branches(self) -> Branches:
        return self._world.vhost.branches

    def is_in_doubt(self, name: str) -> bool:
        return _xid(name) in self._branches.recover(ANYBODY)

    def _told(self) -> Told:
        steps = self._world.steps

        def told(status: XaStatus) -> None:
            assert status is XaStatus.OK
            self._world.promised(steps)

        return told


def _xid(name: str) -> Xid:
    return Xid(1, name.encode(), b"")


def branches() -> World:
    """Two branches that are prepared, with restarts and checkpoints, and decided otherwise."""
    world = shop()
    client = BranchClient(world)
    world.begin()
    world.step(work="w1 w2 w3 w4 w5")
    client.publish("", "work", "w1", "w2", "w3", "w4", "w5")
    world.sync()
    world.promised(world.steps)

    client.start("one")
    for _ in range(4):
        client.get("work")
    client.ack("w1", "w3")
    client.reject("w4")
    client.publish("all", "", "a", "b")
    client.publish("", "urgent", "c", priority=2)
    client.publish("", "orders", "lost with the power", delivery_mode=1)
    client.end("one")
    world.sync()
    world.step(work="w2 w5", in__doubt="one*3")
    client.prepare("one")
    world.sync()

    client.start("two")
    client.ack("w2")
    client.publish("", "work", "d")
    client.end("two")
    world.step(work="w5", in__doubt="one*3 two*1")
    client.prepare("two")
    world.begin_sync()
    client.publish("", "audit", "between")
    world.step(audit="between")
    world.promise()
    world.finish_sync()
    world.sync()
    world.store.upkeep.checkpoint()
    world.restart()

    client = BranchClient(world)
    world.step(
        orders="a b",
        audit="between a b",
        urgent="c",
        dead="w4:rejected@work*1",
        in__doubt="two*1",
    )
    client.commit_branch("one")
    world.begin_sync()
    client.publish("", "audit", "behind")
    world.step(audit="between a b behind")
    world.promise()
    world.finish_sync()
    world.sync()
    world.step(work="w2 w5", in__doubt="")
    client.rollback("two")
    world.sync()
    world.store.upkeep.checkpoint()

    # At once, and during a batch.
    client.start("three")
    client.get("work")
    client.ack("w2")
    client.publish("all", "", "e")
    client.end("three")
    world.step(work="w5", orders="a b e", audit="between a b behind e")
    client.commit_branch("three", one_phase=True)
    world.sync()

    # Prepared and decided in one batch, which is an answer as soon as that is durable.
    client.start("four")
    client.get("work")
    client.ack("w5")
    client.publish("", "dead", "f")
    client.end("four")
    world.step(work="", in__doubt="four*1")
    client.prepare("four")
    world.step(dead="w4:rejected@work*1 f", in__doubt="")
    client.commit_branch("four")
    world.sync()
    return world


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each decision take many steps."""
    monkeypatch.setattr(local_transaction, "_MAX_ADDED", 1)
    monkeypatch.setattr(local_transaction, "_MAX_SETTLED", 1)
    monkeypatch.setattr(amqpstore.queues.acks, "_MERGED_AT_ONCE", 1)
    monkeypatch.setattr(amqpstore.prepared, "_READ_AT_ONCE", 1)
    monkeypatch.setattr(prepared_work, "_MAX_MESSAGES", 1)
    monkeypatch.setattr(prepared_work, "_MAX_PUT_BACK", 1)


class InSteps:
    """A client in dtx mode, whose decisions take steps, and what others do between them."""

    def __init__(self, world: World) -> None:
        self.client = BranchClient(world)
        self._meanwhile = Meanwhile(world)
        self._world = world

    def decide(self, steps: Steps, name: str, *, in_doubt: bool, **places: str) -> tuple[int, int]:
        """Take the steps of a decision, after which the messages are in these places.

        One of them changes whether the branch is in doubt. By then nothing of that is on disk: it
        is a step of the history. Returns how many steps there were before it, and how many from it
        on.
        """
        before = since = 0
        is_over = False
        while not is_over:
            is_over = next(steps, self) is self
            if not since and self.client.is_in_doubt(name) != in_doubt:
                before += 1
            else:
                if not since:
                    self._world.step(**places)
                since += 1
            self._meanwhile.publish()
        assert since
        return before, since

    def finish(self, steps: Steps) -> None:
        """Take the steps that are left of a decision that is made."""
        for _ in steps:
            self._meanwhile.publish()


def long_branches() -> World:
    """Branches whose decisions take steps, between which everything is synced."""
    world = shop()
    world.queue("others")
    in_steps = InSteps(world)
    client = in_steps.client
    world.begin()
    world.step(work="w1 w2 w3 w4 w5")
    client.publish("", "work", "w1", "w2", "w3", "w4", "w5")
    world.sync()
    world.promised(world.steps)
    for name, bodies in {"one": "w1 w3", "two": "w2 w5"}.items():
        client.start(name)
        while world.vhost.queue("work").ready_count:
            client.get("work")
        client.ack(*bodies.split())
        for number in range(2):
            client.publish("all", "", f"{name}{number}", priority=number)
        client.publish("", "urgent", f"{name}2", priority=2)
        client.end(name)
    places = {"work": "w2 w4 w5", "in__doubt": "one*2"}
    before, since = in_steps.decide(client.preparing("one"), "one", in_doubt=True, **places)
    assert before > 4
    assert since > 1
    places = {"work": "w4", "in__doubt": "one*2 two*2"}
    in_steps.decide(client.preparing("two"), "two", in_doubt=True, **places)
    # A channel that goes in the middle of a commit has decided nothing.
    steps = client.committing("one")
    for _ in range(3):
        next(steps)
    steps.close()
    world.sync()
    places = {"orders": "one0 one1", "audit": "one0 one1", "urgent": "one2", "in__doubt": "two*2"}
    in_steps.decide(client.committing("one"), "one", in_doubt=False, **places)
    # A rollback is durable with its first step.
    steps = client.rolling_back("two")
    world.step(work="w2 w4 w5", in__doubt="")
    next(steps)
    in_steps.finish(steps)
    return world


class Dice:
    """A client with branches that are drawn, and where they put each message."""

    def __init__(self, seed: str) -> None:
        self.world = shop()
        self.world.begin()
        self.client = BranchClient(self.world)
        self._rng = random.Random(seed)
        self._bodies = map(str, itertools.count())
        self._names = (f"b{number}" for number in itertools.count())
        self._contents: dict[str, list[str]] = {
            queue: [] for queue in ("work", "orders", "audit", "urgent", "dead", "in__doubt")
        }
        self._came: list[str] = []
        self._undecided: dict[str, tuple[dict[str, list[str]], list[str]]] = {}

    def act(self) -> None:
        """A branch that is prepared, or a decision, and what the disk does meanwhile."""
        rng = self._rng
        if self._undecided and rng.random() < 0.5:
            self._decide(rng.choice(list(self._undecided)))
        else:
            self._prepare(next(self._names))
        rng.choice([self.world.work, self.world.begin_sync, self.world.sync, self.world.sync])()
        if rng.random() < 0.15:
            self.world.restart()
            self.client = BranchClient(self.world)
        if rng.random() < 0.1:
            self.world.sync()
            self.world.store.upkeep.checkpoint()

    def _prepare(self, name: str) -> None:
        rng, client = self._rng, self.client
        coming: dict[str, list[str]] = {queue: [] for queue in self._contents}
        locked = []
        client.start(name)
        for _ in range(rng.randint(0, 2)):
            if not self.world.vhost.queue("work").ready_count:
                break
            body = client.get("work")
            locked.append(body)
            self._contents["work"].remove(body)
            if rng.random() < 0.7:
                client.ack(body)
            else:
                client.reject(body)
                coming["dead"].append(f"{body}:rejected@work*1")
        for _ in range(rng.randint(1, 2)):
            exchange, key, queues = rng.choice(
                [
                    ("", "work", ["work"]),
                    ("all", "", ["orders", "audit"]),
                    ("", "urgent", ["urgent"]),
                ]
            )
            bodies = [next(self._bodies) for _ in range(rng.randint(1, 3))]
            client.publish(exchange, key, *bodies)
            for queue in queues:
                coming[queue] += bodies
        client.end(name)
        self._undecided[name] = coming, locked
        self._step()
        client.prepare(name)

    def _decide(self, name: str) -> None:
        coming, locked = self._undecided.pop(name)
        if self._rng.random() < 0.6:
            # What is published comes in front of what is dead: see Dice of transactions.
            for queue, bodies in coming.items():
                self._contents[queue] += bodies
            self._step()
            self.client.commit_branch(name)
            return
        # A rollback does not wait for what is under way, which it has nothing to do with.
        self.world.sync()
        self._contents["work"] = sorted([*locked, *self._contents["work"]], key=self._order)
        self._step()
        self.client.rollback(name)

    def _order(self, body: str) -> int:
        """Messages of the queue of work keep the order in which they came."""
        return self._came.index(body)

    def _step(self) -> None:
        for body in self._contents["work"]:
            if body not in self._came:
                self._came.append(body)
        self._contents["in__doubt"] = [
            f"{name}*{len(self._undecided[name][1])}" for name in sorted(self._undecided)
        ]
        self.world.step(**{queue: " ".join(bodies) for queue, bodies in self._contents.items()})


def drawn(seed: str, actions: int) -> World:
    """A history drawn by seed."""
    dice = Dice(seed)
    for _ in range(actions):
        dice.act()
    return dice.world


def test_what_is_prepared_is_in_doubt_and_a_decision_is_all_or_nothing() -> None:
    assert violations(branches()) == []


@pytest.mark.usefixtures("small_steps")
def test_a_decision_in_steps_is_all_or_nothing_too() -> None:
    assert violations(long_branches(), images=3) == []


@pytest.mark.rounds(1)
def test_branches_that_are_drawn(seed: int) -> None:
    assert violations(drawn(f"short {seed}", 10), images=5) == []


@pytest.mark.long
@pytest.mark.rounds(20)
def test_more_branches_that_are_drawn(seed: int) -> None:
    assert violations(drawn(f"long {seed}", 30), images=25, seed=seed) == []


@pytest.mark.long
@pytest.mark.rounds(4)
def test_more_images(seed: int) -> None:
    assert violations(branches(), images=100, seed=seed) == []


# Broken copies.


def prepared_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    preparing = Branches.preparing

    def prepared(self: Branches, access: Access, xid: Xid, told: Told) -> Steps:
        yield from preparing(self, access, xid, lambda _: None)
        told(XaStatus.OK)

    patch.setattr(Branches, "preparing", prepared)


def committed_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    committing = PreparedWork.committing

    def committed(
        self: PreparedWork,
        on_durable: Callable[[], None],
        or_else: Callable[[], None] | None = None,
    ) -> Generator[None, None, list[Column]]:
        columns = yield from committing(self, lambda: None, or_else)
        on_durable()
        return columns

    patch.setattr(PreparedWork, "committing", committed)


def nothing_is_locked_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Withdrawals, "withdraw_range", lambda *_: [])


def what_is_committed_is_in_doubt_again(patch: pytest.MonkeyPatch) -> None:
    """The queue is not emptied with the commit, only removed behind it."""

    def purge(self: Store, queue: amqpstore.Queue) -> int:
        return 0 if queue.definition == {} else its_purge(self, queue)

    its_purge = Store.purge
    patch.setattr(Store, "purge", purge)


def what_is_prepared_is_gone_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    def restore(store: Store, *, is_unread: bool) -> None:
        assert not is_unread
        for key in store.definitions.rows("prepared"):
            amqpstore.prepared._remove(store, store.queues[int(key)])

    patch.setattr("amqpstore.store.restore", restore)


def removed_before_the_commit_is_durable(patch: pytest.MonkeyPatch) -> None:
    def commit(self: Prepared, publishes: list[Publish]) -> None:
        its_commit(self, publishes)
        amqpstore.prepared._remove(self._store, self._hidden)

    def remove(store: Store, hidden: amqpstore.Queue) -> None:
        if not hidden.deleted:
            its_remove(store, hidden)

    its_commit, its_remove = Prepared.commit, amqpstore.prepared._remove
    patch.setattr(Prepared, "commit", commit)
    patch.setattr(amqpstore.prepared, "_remove", remove)


def in_two_batches(patch: pytest.MonkeyPatch) -> None:
    def commit(self: Prepared, publishes: list[Publish]) -> None:
        for queue, run in self.locked:
            self._store.ack(queue, run)
        sync_at_once(self._store)
        self._acks = GatheredAcks()
        its_commit(self, publishes)

    its_commit = Prepared.commit
    patch.setattr(Prepared, "commit", commit)


def rolled_back_with_its_acks(patch: pytest.MonkeyPatch) -> None:
    def rollback(self: Prepared) -> list[object]:
        for queue, run in self.locked:
            self._store.ack(queue, run)
        its_rollback(self)
        return []

    its_rollback = Prepared.rollback
    patch.setattr(Prepared, "rollback", rollback)


def committed_with_each_step(patch: pytest.MonkeyPatch) -> None:
    def adding_messages(self: PreparedWork, columns: list[Column]) -> Steps:
        for step in its_placing(self, columns):
            for column in columns:
                if publish := column.publish():
                    self._services.store.enqueue(publish.placements, publish.messages)
            columns.clear()
            yield step

    its_placing = PreparedWork._adding_messages
    patch.setattr(PreparedWork, "_adding_messages", adding_messages)


@pytest.mark.usefixtures("small_steps")
def test_a_decision_that_each_step_is_part_of_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    committed_with_each_step(monkeypatch)
    found = violations(long_branches(), until="in pieces", images=3)
    assert any(one.startswith("in pieces") for one in found), found


BUGS: dict[Bug, str] = {
    prepared_before_it_is_durable: "undone",
    committed_before_it_is_durable: "undone",
    nothing_is_locked_after_a_restart: "stopped",
    in_two_batches: "in pieces",
    what_is_committed_is_in_doubt_again: "in pieces",
    what_is_prepared_is_gone_after_a_restart: "stopped",
    removed_before_the_commit_is_durable: "in pieces",
    rolled_back_with_its_acks: "stopped",
}


@pytest.mark.parametrize("bug", first_of_each(BUGS), ids=lambda bug: bug.__name__)
def test_a_branch_that_breaks_a_promise_is_caught(
    bug: Bug, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    try:
        found = violations(branches(), until=BUGS[bug])
    except (LookupError, BrokerError):
        # The history itself cannot go on: its client finds other messages.
        found = ["stopped"]
    assert any(one.startswith(BUGS[bug]) for one in found), found
