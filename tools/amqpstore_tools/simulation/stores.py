"""Stores on a simulated disk, which do everything in the caller's thread."""

from __future__ import annotations

from amqpstore import Options, Store
from amqpstore.catalog.catalog import Catalog, OpenCatalog
from amqpstore.replica import FollowerStore
from amqpstore.system.clock import Clock, SimulatedClock
from amqpstore.system.files import Files
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.simulation.faulty_files import Faults, FaultyCatalog, FaultyFiles
from amqpstore_tools.simulation.memory_catalog import MemoryCatalog
from amqpstore_tools.simulation.memory_files import MemoryFiles

_START_MS = 1_700_000_000_000


def new_disk(directory: str) -> MemoryFiles:
    """Create a disk on which a store can be opened in a directory."""
    disk = MemoryFiles()
    disk.make_directory(directory.rpartition("/")[0])
    return disk


def open_store(
    directory: str,
    disk: MemoryFiles,
    options: Options,
    *,
    seen_as: Files | None = None,
    faults: Faults | None = None,
    clock: Clock | None = None,
    term: int = 0,
) -> Store:
    """Open the store in a directory of a simulated disk; it is created if it does not exist.

    Args: seen_as, what the store sees instead of the disk's files; faults, which count the calls to
    its files and its catalog, and make one of them fail; clock, without which time stands still:
    which calls a history makes may not depend on how long they take; term, that it leads.
    Raises: as `Store.open`.
    """
    files = disk if seen_as is None else seen_as
    return Store.open(
        directory,
        files=files if faults is None else FaultyFiles(files, faults),
        open_catalog=catalog_opener(disk, faults),
        options=options,
        worker=InlineWorker(),
        clock=clock or SimulatedClock(_START_MS),
        term=term,
    )


def open_follower(
    directory: str,
    disk: MemoryFiles,
    options: Options,
    *,
    faults: Faults | None = None,
    clock: Clock | None = None,
) -> FollowerStore:
    """Open the store of a follower in a directory of a simulated disk. Args: as `open_store`.

    Raises: as `FollowerStore.open`.
    """
    return FollowerStore.open(
        directory,
        files=disk if faults is None else FaultyFiles(disk, faults),
        open_catalog=catalog_opener(disk, faults),
        options=options,
        worker=InlineWorker(),
        clock=clock or SimulatedClock(_START_MS),
    )


def catalog_opener(disk: MemoryFiles, faults: Faults | None = None) -> OpenCatalog:
    """Return what opens catalogs on a simulated disk."""

    def open_catalog(path: str, create: bool, *, plain: bool = False) -> Catalog:
        catalog = MemoryCatalog(disk, path, create, plain=plain)
        return catalog if faults is None else FaultyCatalog(catalog, faults, path)

    return open_catalog
