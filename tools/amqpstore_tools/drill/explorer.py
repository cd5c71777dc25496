"""Cuts the power at every operation of a history, and compares what is recovered with the promises.

At each operation, and for each image that a crash there may leave:

- the store is opened, which must succeed, and its content is checked;
- the store is used: what is published and acked now must be there after one more crash, after what
  was there before, and the store must close cleanly;
- recovery is itself crashed at each of its operations, and what is recovered then must be the same:
  recovering twice gives the same as once.

If a process is killed and the machine keeps running, its unsynced writes are visible to the next
process and still volatile: so every history is also killed at each operation, recovered, and the
power cut during and after that recovery.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from amqpstore_tools.drill.invariants import Fault, broken_promises, reported_damage, touched_files
from amqpstore_tools.drill.outside import OpenStore
from amqpstore_tools.drill.promises import Promises
from amqpstore_tools.drill.prover import REMEMBERED, Prover, RecoveredImage
from amqpstore_tools.drill.trace import Asked, Promised, StoreOpened, Trace
from amqpstore_tools.simulation.crash_images import Image, crash_images
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.operations import (
    CatalogCommit,
    DataSync,
    DropCache,
    LockFile,
    Operation,
    SyncDirectory,
)

_LEFT_NOTHING = (CatalogCommit, DataSync, DropCache, LockFile, SyncDirectory)
"""Operations after which a killed process leaves the same unsynced state as before them."""


@dataclass(frozen=True)
class Violation:
    """A violated invariant, and how to find it again.

    Operations are counted from 1 through the trace; 0 is before the first.
    """

    invariant: str
    text: str
    seed: str
    operation_number: int
    operation: Operation | None
    image: str

    def __str__(self) -> str:
        where = f"seed {self.seed}, operation {self.operation_number} ({self.operation})"
        return f"{self.invariant}: {self.text} [{where}; {self.image}]"


@dataclass
class Result:
    """The result of an exploration: `images` of power cuts, `kills` of processes. `distinct` disks
    were recovered and checked, including those of crashed recoveries; `distinct_used` of them were
    also used, and their recovery crashed. `opened` counts how often a store was opened in all.
    """

    operations: int = 0
    images: int = 0
    kills: int = 0
    distinct: int = 0
    distinct_used: int = 0
    opened: int = 0
    violations: list[Violation] = field(default_factory=list)


@dataclass(frozen=True)
class Cut:
    """Everything recovered from the cuts at one operation; `promised` messages had to survive, and
    `least` to `most` were in the images. `left` is the disk in one of these, if any is new.
    """

    number: int
    operation: Operation
    promised: int
    least: int
    most: int
    violations: int
    left: MemoryFiles | None


class Explorer:
    """Explores a history of the store that `open_store` opens; once, or again with other random
    choices.

    States that were seen at an operation are not checked again.

    Args: seed, of all random choices; images_an_operation, the most images each time;
    images_in_recovery, cuts_in_recovery and remembered, see `Prover`; stop_after, this many
    violations; go_on, called for each operation, returns whether to continue.
    """

    def __init__(
        self,
        open_store: OpenStore,
        seed: str,
        *,
        images_an_operation: int = 40,
        images_in_recovery: int = 6,
        cuts_in_recovery: int | None = None,
        stop_after: int = 10,
        go_on: Callable[[Cut], bool] = lambda _cut: True,
        remembered: int = REMEMBERED,
    ) -> None:
        self.result = Result()
        self._go_on = go_on
        self._seed = seed
        self._images_an_operation = images_an_operation
        self._stop_after = stop_after
        self._prover = Prover(open_store, images_in_recovery, cuts_in_recovery, remembered)
        self._seen: set[tuple[int, bytes]] = set()

    def explore(self, trace: Trace, seed: str = "", numbers: range | None = None) -> Result:
        """Check images at every operation of a history, until `stop_after` violations.

        Args: seed, another one for the random choices from now on; numbers, of the operations, if
        not all of them.
        """
        self._seed = seed or self._seed
        self._explore(trace, trace.numbers if numbers is None else numbers)
        return self.result

    def _explore(self, trace: Trace, numbers: range) -> None:
        promises = Promises.before(trace)
        files = trace.base.fork()
        result = self.result
        number = 0
        operation: Operation | None = None
        images: list[tuple[Image, RecoveredImage]] = []
        for event in trace.events:
            if len(result.violations) >= self._stop_after or number >= numbers.stop:
                return
            if isinstance(event, StoreOpened) and (
                number in numbers or number + numbers.start == 1
            ):
                faults = [
                    *event.observation.faults,
                    *reported_damage(event.observation.report),
                    *broken_promises(promises, event.observation),
                ]
                self._violated(faults, number, operation, "opened in the history itself")
            if isinstance(event, Asked | Promised | StoreOpened):
                promises.note(event)
                continue
            # Everything promised before this operation must be in each image so far.
            self._check(promises, images, number, operation)
            operation, number = event, number + 1
            files.redo(operation)
            images.clear()
            if number not in numbers:
                continue
            result.operations += 1
            images = list(self._images(files, number, operation))
            # And a request that followed it may be in none of them.
            self._check(promises, images, number, operation)
            if not isinstance(operation, _LEFT_NOTHING):
                self._kill(promises, files, number, operation)
            prover = self._prover
            result.distinct, result.distinct_used = prover.distinct, prover.distinct_used
            result.opened = prover.opened
            if not self._go_on(self._cut(promises, images, number, operation)):
                return
        self._check(promises, images, number, operation)

    def _cut(
        self,
        promises: Promises,
        images: list[tuple[Image, RecoveredImage]],
        number: int,
        operation: Operation,
    ) -> Cut:
        held = [
            sum(len(queue.ready) for queue in recovered.observation.queues.values())
            for _, recovered in images
            if recovered.observation is not None
        ]
        least, most = min(held, default=0), max(held, default=0)
        violations = len(self.result.violations)
        left = self._rng(number, "left").choice(images)[0].files if images else None
        return Cut(number, operation, promises.promised_count, least, most, violations, left)

    def _images(
        self, files: MemoryFiles, number: int, operation: Operation
    ) -> Iterator[tuple[Image, RecoveredImage]]:
        rng = self._rng(number, "images")
        for index, image in enumerate(crash_images(files, rng, self._images_an_operation)):
            seen = number, image.files.digest()
            if seen in self._seen:
                continue
            self._seen.add(seen)
            recovered = self._prover.proven(image.files, self._rng(number, f"recovery {index}"))
            self._violated(recovered.faults, number, operation, image.description)
            self.result.images += 1
            yield image, recovered

    def _check(
        self,
        promises: Promises,
        images: list[tuple[Image, RecoveredImage]],
        number: int,
        operation: Operation | None,
    ) -> None:
        for image, recovered in images:
            if recovered.observation is not None:
                faults = broken_promises(promises, recovered.observation)
                faults += touched_files(promises, recovered.after)
                self._violated(faults, number, operation, image.description)

    def _kill(
        self, promises: Promises, files: MemoryFiles, number: int, operation: Operation
    ) -> None:
        """End the process here, recover, and cut the power during and after that."""
        self.result.kills += 1
        rng = self._rng(number, "kill")
        killed = self._prover.used(files.fork(), rng)
        self._violated(killed.faults, number, operation, "process killed")
        if killed.observation is None:
            return
        faults = broken_promises(promises, killed.observation)
        self._violated(faults, number, operation, "process killed")
        crashes = self._prover.recovery_crashes(files, killed.operations, rng)
        for description, crashed, is_open in crashes:
            again = self._prover.reopened(crashed.files)
            faults = [*again.faults]
            if again.observation is not None:
                faults += broken_promises(promises, again.observation)
                if is_open and again.observation != killed.observation:
                    faults.append(("I5", "messages that recovery had adopted are missing"))
            where = f"process killed, power cut {description}, {crashed.description}"
            self._violated(faults, number, operation, where)

    def _rng(self, number: int, purpose: str) -> random.Random:
        """Return the random numbers of one operation, which do not depend on the operations before
        it.
        """
        return random.Random(f"{self._seed} {number} {purpose}")  # noqa: S311 (no secret)

    def _violated(
        self, faults: Iterable[Fault], number: int, operation: Operation | None, image: str
    ) -> None:
        known = {(violation.invariant, violation.text) for violation in self.result.violations}
        for invariant, text in faults:
            if (invariant, text) not in known:
                known.add((invariant, text))
                self.result.violations.append(
                    Violation(invariant, text, self._seed, number, operation, image)
                )
