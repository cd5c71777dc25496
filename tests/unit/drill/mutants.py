"""Stores, disks and tools that break one promise each: each drill has to notice.

A mutant patches one thing. Most break a promise whenever a store is opened, which every drill does
after it has done harm: what a bug in recovery could do. Others are disks whose syncs do nothing,
which keep what was removed, or a tool that leaves out messages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from amqpstore import Envelope, Message, Options, Queue, Run, Store, StoreError, Transaction
from amqpstore.queues.withdrawals import Withdrawals
from amqpstore.system.clock import SimulatedClock
from amqpstore.system.filenames import INDEX, index_path
from amqpstore.upkeep.maintenance import Maintenance
from amqpstore_tools.drill import manual, own_disk
from amqpstore_tools.drill.client import MOVES, key_of
from amqpstore_tools.drill.damaged import DamagedStore
from amqpstore_tools.drill.examiner import Examined, Examiner, examine_here
from amqpstore_tools.drill.unknown_files import UNKNOWN_FILES
from amqpstore_tools.repair.apply import apply_plan
from amqpstore_tools.repair.plan import RepairPlan
from amqpstore_tools.simulation.memory_files import MemoryFile, MemoryFiles
from tests.unit.drill.stand_ins import Drainer

Mutant = Callable[[pytest.MonkeyPatch], None]
Harm = Callable[[Store], None]

_NOBODYS = Message(Envelope("", "nobody", b"\x10\x00\x02"), b"nobody's")


def whenever_opened(harm: Harm, but_first: int = 0) -> Mutant:
    """Return a mutant that does harm to each store that is opened, except for the first ones."""

    def mutate(patch: pytest.MonkeyPatch) -> None:
        opened = Store.open
        count = 0

        def careless(directory: str, **options: Any) -> Store:
            nonlocal count
            store = opened(directory, **options)
            count += 1
            if count > but_first:
                harm(store)
            return store

        patch.setattr(Store, "open", careless)

    return mutate


def _with_ready(store: Store, count: int = 1) -> Iterator[Queue]:
    yield from (queue for queue in store.queues.values() if queue.ready_count >= count)


def loses_a_message(store: Store) -> None:
    for queue in [*_with_ready(store)][:1]:
        store.take(queue, 1, acked=True)
        store.sync()


def loses_a_queue(store: Store) -> None:
    for queue in [*_with_ready(store)][:1]:
        store.delete_queue(queue)


def invents_a_message(store: Store) -> None:
    for queue in [*store.queues.values()][:1]:
        store.publish([queue], [_NOBODYS])
        store.sync()


def invents_a_queue(store: Store) -> None:
    store.create_queue({"name": "nobody's"})


def _ids(queue: Queue) -> set[int]:
    return {run.id_at(place) for run in queue.ready if run.first_id for place in range(run.count)}


def splits_a_publish(store: Store) -> None:
    """Lose the messages of one of two queues to which the same messages were published."""
    for queue in _with_ready(store):
        others = set[int]().union(*(_ids(one) for one in store.queues.values() if one != queue))
        if _ids(queue) & others:
            store.purge(queue)
            store.sync()
            return


def loses_from(name: str, publisher: int | None = None) -> Harm:
    """Return what loses a message, of a publisher if given, from a queue of the drill `kill`."""

    def harm(store: Store) -> None:
        queue = _named(store, name)
        for sequence in range(1, queue.next_sequence):
            message = store.withdrawals.peek(queue, sequence)
            key = key_of(message.body) if message else None
            if key is not None and publisher in (None, key.publisher):
                store.take(queue, 1, acked=True, first_sequence=sequence)
                store.sync()
                return

    return harm


def undoes_a_move(store: Store) -> None:
    message = store.withdrawals.peek(_named(store, MOVES[1]))
    assert message is not None
    store.publish([_named(store, MOVES[0])], [message])
    store.sync()


def _named(store: Store, name: str) -> Queue:
    [found] = [one for one in store.queues.values() if one.definition == {"name": name}]
    return found


def swaps_messages(store: Store) -> None:
    for queue in [*_with_ready(store, 2)][:1]:
        run = store.take(queue, 1)
        assert isinstance(run, Run)
        store.publish([queue], [*(run.messages or ())])
        store.ack(queue, run)
        store.sync()


def does_not_open(store: Store) -> None:
    if store.queues:
        store.abandon()
        raise StoreError("it does not open")


def reports_damage(store: Store) -> None:
    store.recovery_report.damage.append(("a segment", 0, 1, "it is not damaged"))


def removes_unknown_files(store: Store) -> None:
    files = store._backing.files
    for name in UNKNOWN_FILES:
        if files.exists(path := f"{store.directory}/{name}"):
            files.remove(path)


def miscounts(store: Store) -> None:
    for queue_id in store.recovery_report.kept:
        store.recovery_report.kept[queue_id] += 1


def keeps_an_index_file(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint that does not remove a file without a row, as if its removal had been lost."""
    checkpoint = Maintenance.checkpoint

    def careless(self: Maintenance) -> None:
        checkpoint(self)
        files, directory, *_ = self.checkpoints._backing
        for queue_id in [*self._queues][:1]:
            path = index_path(directory, queue_id, 1 << 30)
            if not files.exists(path):
                files.create(path).close()

    patch.setattr(Maintenance, "checkpoint", careless)


def forgets_acks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Store, "ack", lambda _self, _queue, _run: None)


def syncs_segments_never(patch: pytest.MonkeyPatch) -> None:
    datasync = MemoryFile.datasync

    def careless(self: MemoryFile) -> None:
        if "/segments/" not in self.path:
            datasync(self)

    patch.setattr(MemoryFile, "datasync", careless)


def syncs_directories_never(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryFiles, "sync_directory", lambda _self, _path: None)


def commits_in_steps(patch: pytest.MonkeyPatch) -> None:
    """A transaction whose operations are durable one by one."""

    def publish(self: Transaction, queues: list[Queue], messages: list[Message]) -> None:
        for queue in queues:
            self._store.publish([queue], messages)
            self._store.sync()

    patch.setattr(Transaction, "publish", publish)


def expires_late(patch: pytest.MonkeyPatch) -> None:
    withdraw_expired = Withdrawals.withdraw_expired

    def late(self: Withdrawals, queue: Queue, now_ms: int, *, bodies: bool) -> object:
        return withdraw_expired(self, queue, now_ms - (1 << 50), bodies=bodies)

    patch.setattr(Withdrawals, "withdraw_expired", late)


def works_by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimulatedClock, "monotonic_ms", SimulatedClock.wall_ms)


_measure = own_disk.measure


def measures_no_syncs(patch: pytest.MonkeyPatch) -> None:
    """The operator's own disk, whose syncs do nothing."""
    patch.setattr(own_disk, "measure", _measure)
    patch.setattr(os, "fdatasync", lambda _descriptor: None)


def repairs_without_a_queue(patch: pytest.MonkeyPatch) -> None:
    def careless(directory: str, plan: RepairPlan) -> None:
        apply_plan(directory, plan)
        with Store.open(directory, options=Options(reserve_bytes=0)) as store:
            for queue in [*_with_ready(store)][:1]:
                store.delete_queue(queue)

    patch.setattr(manual, "apply_plan", careless)


# Of the drills that damage files: what the process that opens a damaged store says of it.


def says(change: Callable[[Examined], None]) -> Mutant:
    """Return a mutant of what is said of each damaged store; of the whole one the truth is said."""

    def mutate(patch: pytest.MonkeyPatch) -> None:
        count = 0

        def examine(_self: Examiner, directory: str) -> Examined:
            nonlocal count
            count += 1
            found = examine_here(directory)
            if count > 1:
                change(found)
            return found

        patch.setattr(Examiner, "examine", examine)

    return mutate


def in_reverse(found: Examined) -> None:
    for queue in found.queues.values():
        queue.messages.reverse()


def more_than_there_are(found: Examined) -> None:
    for queue in found.queues.values():
        queue.said += 1


def nothing_of_damage(found: Examined) -> None:
    found.damage, found.lost = [], []
    for queue in found.queues.values():
        queue.damaged = queue.unreadable = 0
        queue.said = len(queue.messages)


def on_damaged_copies(harm: Harm) -> Mutant:
    """Return a mutant that does harm at each opening of a damaged copy."""

    def mutate(patch: pytest.MonkeyPatch) -> None:
        # The store is made, recovered, and examined before it is damaged.
        whenever_opened(harm, but_first=3)(patch)
        patch.setattr(Examiner, "examine", lambda _self, directory: examine_here(directory))

    return mutate


# Of the drill of a group: what a new leader serves.


def serves(change: Callable[[Drainer], None]) -> Mutant:
    """Return a mutant of what can be taken from the leader after another one was lost."""

    def mutate(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Drainer, "join", lambda self, _timeout_s: change(self))

    return mutate


def one_too_few(drainer: Drainer) -> None:
    drainer.bodies.pop()


def one_of_nobody(drainer: Drainer) -> None:
    drainer.bodies.append((_NOBODYS.body, False))


def nothing(drainer: Drainer) -> None:
    drainer.failure = "the leader does not answer"


def what_was_taken_before() -> Callable[[Drainer], None]:
    """Return a change that has everything served a second time, without a flag."""
    taken: list[tuple[bytes, bool]] = []

    def change(drainer: Drainer) -> None:
        served = [*drainer.bodies]
        drainer.bodies = [*taken, *served]
        taken.extend(served)

    return change


def without_an_index(mutant: Mutant) -> Mutant:
    """Return a mutant for a drill in which no segment is missing: all acks are known."""

    def mutate(patch: pytest.MonkeyPatch) -> None:
        files = DamagedStore.record_files

        def of_indices(self: DamagedStore) -> list[str]:
            return [name for name in files(self) if name.startswith(INDEX)]

        patch.setattr(DamagedStore, "record_files", of_indices)
        mutant(patch)

    return mutate
