"""The store of the scenarios that run on a disk in memory: small numbers for what is large."""

from __future__ import annotations

import os
from dataclasses import dataclass

from amqpstore import Options, Store
from amqpstore.clock import SYSTEM_CLOCK, Clock
from amqpstore_tools.drill.invariants import reported_damage
from amqpstore_tools.drill.loading import load_store
from amqpstore_tools.drill.observation import Observation, observe
from amqpstore_tools.drill.outside import OpenStore, Outside
from amqpstore_tools.drill.run import LeftOutError, Run
from amqpstore_tools.drill.strangers import STRANGERS
from amqpstore_tools.drill.trace import Trace
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


def open_store(
    files: MemoryFiles, options: Options = OPTIONS, clock: Clock = SYSTEM_CLOCK
) -> Store:
    """The store on a simulated disk."""
    return stores.open_store(DIRECTORY, files, options, clock=clock)


def open_faulty_store(files: MemoryFiles, faults: Faults) -> Store:
    """The same store, where calls to files and catalog are counted, and may fail."""

    return stores.open_store(DIRECTORY, files, OPTIONS, faults=faults)


@dataclass(frozen=True)
class Base:
    """The disk that a scenario begins with, which nobody writes to; `before` is what a store
    there held, where there is one."""

    disk: MemoryFiles
    before: Observation | None = None

    def outside(self, open_store: OpenStore) -> Outside:
        """Everyone who will use the store; it is there, or made when it is opened."""
        files = self.disk.fork()
        return Outside(Trace(self.disk, self.before), files, open_store)


def base_of(run: Run) -> Base:
    """An empty disk; or the run's copy of a data directory, in memory, closed in order.

    Raises: LeftOutError, OSError, StoreError.
    """
    disk = stores.new_disk(DIRECTORY)
    if run.settings.data is None:
        return Base(disk)
    load_store(os.path.join(run.settings.work, "store"), disk, DIRECTORY)
    # What a crash left is settled: from then on all of it is promised.
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


def keep_unknown_files(outside: Outside) -> None:
    """Put files into the store that are none of its own."""
    outside.open()
    for name, content in STRANGERS.items():
        path = f"{DIRECTORY}/{name}"
        if not outside.files.exists(path):
            outside.keep_file(path, content)
    outside.close()
