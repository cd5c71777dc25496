"""What must hold of one disk that a crash has left, whatever was promised before.

Opening it ends without an error; the store can be used, and what is then promised survives the
next crash; and recovery may itself be crashed at any operation without changing what is there.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from amqpstore import Store
from tools.drill.accounting import misaccounted
from tools.drill.crash_images import Image, crash_images
from tools.drill.invariants import Fault, broken_promises, reported_damage
from tools.drill.ledger import Ledger
from tools.drill.memory_files import MemoryFiles
from tools.drill.observation import Observation, observe
from tools.drill.outside import OpenStore, Outside
from tools.drill.trace import Asked, Opened, Promised, Trace

_FIRST_NUMBER = 1_000_000
"""Of the requests made of a recovered store: no history has as many."""


@dataclass(frozen=True)
class Recovered:
    """What became of an image: what is in it, and what is wrong with that, whatever was promised.

    `after` is the disk once the store was open, and had made a checkpoint.
    """

    observation: Observation | None
    faults: tuple[Fault, ...]
    after: MemoryFiles


class Prover:
    """Recovers disks, each of the same content once; `opened` counts how often a store was opened.

    Args: images_in_recovery, at most so many at each operation of a recovery.
    """

    def __init__(self, open_store: OpenStore, images_in_recovery: int) -> None:
        self.opened = 0
        self._open_store = open_store
        self._images_in_recovery = images_in_recovery
        self._recovered: dict[bytes, Recovered] = {}
        self._proven: dict[bytes, tuple[Fault, ...]] = {}

    @property
    def distinct(self) -> int:
        """How many different disks were recovered and proven."""
        return len(self._proven)

    def recovered(self, files: MemoryFiles) -> Recovered:
        """Open what is on a disk that has nothing unsynced."""
        digest = files.digest()
        known = self._recovered.get(digest)
        if known is None:
            known = self._recovered[digest] = self.recover(files.fork())
        return known

    def proven(self, files: MemoryFiles, rng: random.Random) -> tuple[Fault, ...]:
        """Crash the recovery of such a disk, and use what was recovered."""
        digest = files.digest()
        known = self._proven.get(digest)
        if known is None:
            known = self._proven[digest] = tuple(self._prove(files, rng))
        return known

    def recover(self, files: MemoryFiles) -> Recovered:
        """Open the store on `files`, look at it, have it make a checkpoint, and abandon it."""
        self.opened += 1
        try:
            store = self._open_store(files)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is the finding)
            return Recovered(None, (("I9", f"opening failed: {error!r}"),), files)
        try:
            observation = observe(store)
            faults = [*observation.faults, *reported_damage(observation.report)]
            faults += _checkpoint_faults(store, files)
        finally:
            store.abandon()
        return Recovered(observation, tuple(faults), files)

    def _prove(self, files: MemoryFiles, rng: random.Random) -> Iterator[Fault]:
        recovered = self.recovered(files)
        if recovered.observation is None or recovered.faults:
            return
        for description, crashed, is_open in self.recovery_crashes(files.fork(), rng):
            again = self.recovered(crashed.files)
            where = f"after recovery was crashed ({description}; {crashed.description})"
            yield from ((name, f"{where}: {text}") for name, text in again.faults)
            if again.observation is not None and again.observation != recovered.observation:
                when = "once it was open" if is_open else "while it was opened"
                yield "I5", f"{where}: recovered anew, {when}, it is not the same"
        yield from self.faults_in_use(files.fork(), recovered.observation)

    def recovery_crashes(
        self, files: MemoryFiles, rng: random.Random
    ) -> Iterator[tuple[str, Image, bool]]:
        """Images of a crash at each operation of opening the store on `files`, and then of one
        right after it: the flag says which it is."""
        trace = Trace(files.fork())
        files.record = trace.note
        try:
            self._open_store(files).abandon()
        except Exception:  # noqa: BLE001 (`_recovered` has reported it)
            return
        files.record = None
        self.opened += 1
        disk = trace.base.fork()
        for event in trace.events:
            if isinstance(event, Asked | Promised | Opened):
                continue
            disk.redo(event)
            for image in crash_images(disk, rng, self._images_in_recovery):
                yield f"at {event}", image, False
        for image in crash_images(disk, rng, self._images_in_recovery):
            yield "when open", image, True

    def faults_in_use(self, files: MemoryFiles, before: Observation) -> Iterator[Fault]:
        """Publish to a recovered store, take and ack, twice with a crash in between, close it."""
        trace = Trace(files.fork())
        outside = Outside(trace, files, self._open_store, first_number=_FIRST_NUMBER)
        try:
            for _ in range(2):
                outside.open()
                names = [*before.queues] or ["queue-of-its-own"]
                if not before.queues and not outside.queue_names:
                    outside.create_queue(names[0])
                outside.publish(names, [b"after the crash", bytes(600)])
                outside.sync()
                outside.take(names[0], 3)
                outside.sync()
                outside.ack(names[0])
                outside.sync()
                outside.kill()
                # Nothing but what was synced survives.
                files = outside.files.power_cut({}, {})
                outside = Outside(trace, files, self._open_store, outside.next_number)
            outside.open()
            outside.close()
            outside.open()
            report = outside.store.recovery_report
            outside.kill()
        except Exception as error:  # noqa: BLE001 (whatever it is, it is the finding)
            yield "I9", f"using the recovered store failed: {error!r}"
            return
        ledger = Ledger.of(before)
        for event in trace.events:
            if isinstance(event, Opened):
                found = event.observation
                faults = [*found.faults, *reported_damage(found.report)]
                faults += broken_promises(ledger, found)
                if faults:
                    yield from (
                        (name, f"using the recovered store: {text}") for name, text in faults
                    )
                    return
            if isinstance(event, Asked | Promised | Opened):
                ledger.note(event)
        if not report.is_clean:
            yield "I10", f"a store that was closed in order is not clean: {report}"


def _checkpoint_faults(store: Store, files: MemoryFiles) -> list[Fault]:
    """What is wrong with a checkpoint that is made now."""
    try:
        store.checkpoint()
        return misaccounted(store, files)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is the finding)
        return [("I9", f"a checkpoint failed: {error!r}")]
