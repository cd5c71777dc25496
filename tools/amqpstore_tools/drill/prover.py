"""The checks of one disk after a crash, whatever was promised before.

Opening it must succeed; the store must be usable, and what it then promises must survive the next
crash; and recovery may itself be crashed at any operation without changing the result.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from amqpstore import Store
from amqpstore_tools.drill.accounting import misaccounted
from amqpstore_tools.drill.invariants import Fault, faults_at_openings, reported_damage
from amqpstore_tools.drill.observation import Observation, observe
from amqpstore_tools.drill.outside import OpenStore, Outside
from amqpstore_tools.drill.promises import Promises
from amqpstore_tools.drill.trace import Asked, Promised, StoreOpened, Trace
from amqpstore_tools.simulation.crash_images import Image, crash_images
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.operations import Operation

_FIRST_NUMBER = 1_000_000
"""The first number of requests to a recovered store: no history has that many."""

REMEMBERED = 200_000
"""Disks of neighbouring operations are often the same; the limit keeps long drills from remembering
all of them.
"""


@dataclass(frozen=True)
class RecoveredImage:
    """The result for an image: its content, and the faults in it, whatever was promised.

    `after` is the disk at the end; `operations`, if recorded, are those of the recovery.
    """

    observation: Observation | None
    faults: tuple[Fault, ...]
    after: MemoryFiles
    operations: tuple[Operation, ...] = ()


class Prover:
    """Recovers disks, each content only once; `opened` counts how often a store was opened.

    Args: images_in_recovery, the most images at each operation of a recovery; cuts_in_recovery, the
    most operations drawn for that, each with the one after it, or None for all of them; remembered,
    how many messages on disks whose results are remembered.
    """

    def __init__(
        self,
        open_store: OpenStore,
        images_in_recovery: int,
        cuts_in_recovery: int | None = None,
        remembered: int = REMEMBERED,
    ) -> None:
        self.opened = 0
        self._open_store = open_store
        self._images_in_recovery = images_in_recovery
        self._cuts_in_recovery = cuts_in_recovery
        self._reopened = _Memory(remembered)
        self._proven = _Memory(remembered)
        self._distinct: set[bytes] = set()
        self._used: set[bytes] = set()

    @property
    def distinct(self) -> int:
        """The number of different disks that were recovered and checked."""
        return len(self._distinct)

    @property
    def distinct_used(self) -> int:
        """The number of those disks on which the store was also used, and its recovery crashed."""
        return len(self._used)

    def recover(self, files: MemoryFiles) -> RecoveredImage:
        """Open the store on `files`, check it, let it make a checkpoint, and abandon it."""
        return self._opened(files, checkpoint=True)

    def reopened(self, files: MemoryFiles) -> RecoveredImage:
        """Open the store on a disk that has nothing unsynced, and check it."""
        digest = files.digest()
        known = self._reopened.get(digest) or self._proven.get(digest)
        if known is None:
            known = self._opened(files.fork(), checkpoint=False)
            self._distinct.add(digest)
            self._reopened.remember(digest, known)
        return known

    def proven(self, files: MemoryFiles, rng: random.Random) -> RecoveredImage:
        """Recover such a disk, use the recovered store, and crash the recovery."""
        digest = files.digest()
        known = self._proven.get(digest)
        if known is None:
            known = self.used(files.fork(), rng)
            if known.observation is not None and not known.faults:
                faults = tuple(self._crash_faults(files, known, rng))
                known = RecoveredImage(known.observation, faults, known.after)
            self._distinct.add(digest)
            self._used.add(digest)
            self._proven.remember(digest, known)
        return known

    def used(self, files: MemoryFiles, rng: random.Random) -> RecoveredImage:
        """Open the store on `files`, check it, and use it: publish, take and ack.

        Then the power is cut, and the store is opened again. Its accounts are checked either before
        it is used or at the end, by random choice; at the end it is also closed and opened once
        more.
        """
        trace = Trace(files.fork())
        outside = Outside(trace, files, self._open_store, first_number=_FIRST_NUMBER)
        self.opened += 1
        try:
            outside.open()
        except Exception as error:  # noqa: BLE001 (whatever it is, it is the finding)
            return RecoveredImage(None, (("I9", f"opening failed: {error!r}"),), files)
        operations: list[Operation] = []
        for event in trace.events:
            if isinstance(event, StoreOpened):
                before = event.observation
            elif not isinstance(event, Asked | Promised):
                operations.append(event)
        faults = [*before.faults, *reported_damage(before.report)]
        checks_first = rng.random() < 0.5
        if checks_first:
            faults += _checkpoint_faults(outside.store, files)
        if faults:
            outside.kill()
        else:
            use_faults, files = self._faults_in_use(trace, outside, before, not checks_first)
            faults += [(name, f"using the recovered store: {text}") for name, text in use_faults]
        return RecoveredImage(before, tuple(faults), files, tuple(operations))

    def recovery_crashes(
        self, files: MemoryFiles, operations: Sequence[Operation], rng: random.Random
    ) -> Iterator[tuple[str, Image, bool]]:
        """Yield images of a crash at operations of opening the store on `files`, and then of one
        right after them: the flag says which it is.
        """
        disk = files.fork()
        indexes = range(len(operations))
        limit = self._cuts_in_recovery
        drawn = set(indexes if limit is None else rng.sample(indexes, min(limit, len(indexes))))
        for index, operation in enumerate(operations):
            disk.redo(operation)
            if index in drawn:
                yield from ((f"at {operation}", image, False) for image in self._images(disk, rng))
        yield from (("when open", image, True) for image in self._images(disk, rng))

    def _images(self, disk: MemoryFiles, rng: random.Random) -> list[Image]:
        limit = self._images_in_recovery
        images = list(crash_images(disk, rng, limit))
        # There are at least two if something is unsynced.
        return images if len(images) <= limit else rng.sample(images, limit)

    def _crash_faults(
        self, files: MemoryFiles, recovered: RecoveredImage, rng: random.Random
    ) -> Iterator[Fault]:
        operations = recovered.operations
        for description, crashed, is_open in self.recovery_crashes(files, operations, rng):
            again = self.reopened(crashed.files)
            where = f"after recovery was crashed ({description}; {crashed.description})"
            yield from ((name, f"{where}: {text}") for name, text in again.faults)
            if again.observation is not None and again.observation != recovered.observation:
                when = "once it was open" if is_open else "while it was opened"
                yield "I5", f"{where}: a second recovery, {when}, gives another result"

    def _opened(self, files: MemoryFiles, *, checkpoint: bool) -> RecoveredImage:
        self.opened += 1
        try:
            store = self._open_store(files)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is the finding)
            return RecoveredImage(None, (("I9", f"opening failed: {error!r}"),), files)
        try:
            observation = observe(store)
            faults = [*observation.faults, *reported_damage(observation.report)]
            if checkpoint:
                faults += _checkpoint_faults(store, files)
        finally:
            store.abandon()
        return RecoveredImage(observation, tuple(faults), files)

    def _faults_in_use(
        self, trace: Trace, outside: Outside, before: Observation, is_checked: bool
    ) -> tuple[list[Fault], MemoryFiles]:
        """Publish to an open store, take and ack, and open it again after a crash; if `is_checked`,
        close it, open it again, and check its accounts. Also returns its disk.
        """
        faults: list[Fault] = []
        is_clean = True
        try:
            _use(outside, before)
            outside.kill()
            # Only synced data survives.
            files = outside.files.power_cut({}, {})
            outside = Outside(trace, files, self._open_store, outside.next_number)
            self.opened += 1
            outside.open()
            if is_checked:
                outside.close()
                self.opened += 1
                outside.open()
                is_clean = outside.store.recovery_report.is_clean
                # Only now: a torn segment from which nothing was adopted is removed by the next
                # start.
                faults += _checkpoint_faults(outside.store, files)
            outside.kill()
        except Exception as error:  # noqa: BLE001 (whatever it is, it is the finding)
            outside.kill()
            return [("I9", f"it failed: {error!r}")], outside.files
        faults += faults_at_openings(Promises.of(before), trace)
        if not is_clean:
            faults.append(("I10", "a store that was closed is not clean"))
        return faults, outside.files


def _use(outside: Outside, before: Observation) -> None:
    """Publish to every queue, and take and ack from one."""
    names = [*before.queues] or ["queue-of-its-own"]
    if not before.queues:
        outside.create_queue(names[0])
    outside.publish(names, [b"after the crash", bytes(600)])
    outside.sync()
    outside.take(names[0], 3)
    outside.sync()
    outside.ack(names[0])
    outside.sync()


def _checkpoint_faults(store: Store, files: MemoryFiles) -> list[Fault]:
    """Return the faults of a checkpoint that is made now."""
    try:
        store.upkeep.checkpoint()
        return misaccounted(store, files)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is the finding)
        return [("I9", f"a checkpoint failed: {error!r}")]


class _Memory:
    """The results of disks, by their digest; the oldest are dropped."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[bytes, RecoveredImage] = OrderedDict()
        self._weight = 0

    def get(self, digest: bytes) -> RecoveredImage | None:
        return self._known.get(digest)

    def remember(self, digest: bytes, recovered: RecoveredImage) -> None:
        self._known[digest] = recovered
        self._weight += self._weight_of(recovered)
        while self._weight > self._most:
            self._weight -= self._weight_of(self._known.popitem(last=False)[1])

    @staticmethod
    def _weight_of(recovered: RecoveredImage) -> int:
        queues = recovered.observation.queues.values() if recovered.observation else ()
        return 20 + sum(len(queue.ready) for queue in queues)
