"""The store of the scenarios that run on a disk in memory: small numbers for what is large."""

from __future__ import annotations

import functools

from amqpstore import Options, Store
from amqpstore.catalog import Catalog
from amqpstore.worker import InlineWorker
from tools.drill.faulty_files import Faults, FaultyCatalog, FaultyFiles
from tools.drill.memory_catalog import MemoryCatalog
from tools.drill.memory_files import MemoryFiles
from tools.drill.outside import OpenStore, Outside
from tools.drill.trace import Trace

DIRECTORY = "/var/store"

OPTIONS = Options(
    segment_bytes=1024,
    memory_bytes=2000,
    checkpoint_bytes=3000,
    checkpoint_ms=1 << 60,
    reserve_bytes=0,
)


def open_store(files: MemoryFiles) -> Store:
    """The store on a simulated disk."""
    return Store.open(
        DIRECTORY,
        files=files,
        open_catalog=functools.partial(MemoryCatalog, files),
        options=OPTIONS,
        worker=InlineWorker(),
    )


def open_faulty_store(files: MemoryFiles, faults: Faults) -> Store:
    """The same store, where calls to files and catalog are counted, and may fail."""

    def open_catalog(path: str, create: bool) -> Catalog:
        return FaultyCatalog(MemoryCatalog(files, path, create), faults, path)

    return Store.open(
        DIRECTORY,
        files=FaultyFiles(files, faults),
        open_catalog=open_catalog,
        options=OPTIONS,
        worker=InlineWorker(),
    )


def new_disk() -> MemoryFiles:
    """A disk where the store can be made."""
    files = MemoryFiles()
    files.make_directory(DIRECTORY.rpartition("/")[0])
    return files


def outside_of(open_store: OpenStore) -> Outside:
    """Everyone who will use a store that is not on its disk yet."""
    files = new_disk()
    return Outside(Trace(files.fork()), files, open_store)


def keep_unknown_files(outside: Outside) -> None:
    """Put files into the store that are none of its own."""
    outside.open()
    outside.keep_file(f"{DIRECTORY}/segments/notes.txt", b"not the store's")
    outside.keep_file(f"{DIRECTORY}/by-hand", b"nor this")
    outside.close()
