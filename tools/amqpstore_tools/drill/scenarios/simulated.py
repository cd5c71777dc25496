"""The store of the scenarios on a disk in memory: small limits, so that little data reaches
them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

from amqpstore import Options, Store
from amqpstore.system.clock import Clock
from amqpstore.system.filenames import MARKER
from amqpstore_tools.drill.invariants import Fault, reported_damage
from amqpstore_tools.drill.loading import load_store, save_store
from amqpstore_tools.drill.manual import DOING, FOLLOWED, after_crash
from amqpstore_tools.drill.observation import Observation, observe
from amqpstore_tools.drill.outside import OpenStore, Outside
from amqpstore_tools.drill.run import DrillRun, LeftOutError
from amqpstore_tools.drill.trace import Trace
from amqpstore_tools.drill.unknown_files import UNKNOWN_FILES
from amqpstore_tools.simulation import stores
from amqpstore_tools.simulation.faulty_files import Faults
from amqpstore_tools.simulation.memory_files import MemoryFiles

DIRECTORY = "/var/store"

OPTIONS = Options(
    segment_bytes=1024,
    memory_bytes=2000,
    checkpoint_bytes=3000,
    checkpoint_ms=1 << 60,
    reserve_bytes=0,
)


def open_store(files: MemoryFiles, options: Options = OPTIONS, clock: Clock | None = None) -> Store:
    """Open the store on a simulated disk. Time stands still, unless a clock is given."""
    return stores.open_store(DIRECTORY, files, options, clock=clock)


def open_faulty_store(files: MemoryFiles, faults: Faults) -> Store:
    """Open the same store so that calls to files and catalog are counted, and may fail."""

    return stores.open_store(DIRECTORY, files, OPTIONS, faults=faults)


@dataclass(frozen=True)
class Base:
    """The initial disk of a scenario, which is never written to; `before` is the content of the
    store on it, if there is one.
    """

    disk: MemoryFiles
    before: Observation | None = None

    def outside(self, open_store: OpenStore) -> Outside:
        """Return the users of the store, which exists or is created when it is opened."""
        files = self.disk.fork()
        return Outside(Trace(self.disk, self.before), files, open_store)


def base_of(run: DrillRun) -> Base:
    """Return an empty disk; or the run's copy of a data directory, in memory, closed cleanly.

    Raises: LeftOutError, OSError, StoreError.
    """
    disk = stores.new_disk(DIRECTORY)
    if run.settings.data is None:
        return Base(disk)
    load_store(os.path.join(run.settings.work, "store"), disk, DIRECTORY)
    # This resolves everything a crash has left: from then on all of it is promised.
    for _ in range(2):
        store = open_store(disk)
        before = observe(store)
        store.close()
    if faults := [*before.faults, *reported_damage(before.report)]:
        raise LeftOutError(f"the copy is not sound before it is drilled: {faults[0][1]}")
    disk = disk.power_cut({}, {})
    run.account.did["messages in the store"] = sum(
        len(queue.ready) for queue in before.queues.values()
    )
    run.account.did["queues in the store"] = len(before.queues)
    return Base(disk, before)


@contextlib.contextmanager
def before_harm(run: DrillRun) -> Iterator[None]:
    """Note what fails before anything was broken: a store that does not open, for example."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 (whatever it is, it is the finding)
        run.found("I9", f"it failed before anything was broken: {error!r}", f"round {run.round}")


def keep_unknown_files(outside: Outside) -> None:
    """Put files into the store that are not its own."""
    outside.open()
    for name, content in UNKNOWN_FILES.items():
        path = f"{DIRECTORY}/{name}"
        if not outside.files.exists(path):
            outside.keep_file(path, content)
    outside.close()


def manual_faults(run: DrillRun, left: MemoryFiles) -> list[Fault]:
    """Do what the manual says with a store that was left on a simulated disk, in a directory."""
    if not left.exists(f"{DIRECTORY}/{MARKER}"):
        # The store was not created yet.
        return []
    run.show(DOING)
    directory = os.path.join(run.settings.work, "left")
    save_store(left, DIRECTORY, directory)
    try:
        faults = [*after_crash(directory, run.settings.work)]
    finally:
        shutil.rmtree(directory)
    run.account.checked(FOLLOWED)
    return faults
