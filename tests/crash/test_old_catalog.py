"""The catalog has lost its last commit: a disk lied about a sync, or a copy was put back.

All else on the disk is as it was when the next commit came, removals among it. A start on that is
refused, or says what is missing, or serves all that was promised; and it destroys nothing.
"""

from collections.abc import Iterator

from amqpstore import DamageError
from amqpstore.system.filenames import INDEX, SEGMENTS
from amqpstore_tools.drill.invariants import broken_promises, touched_files
from amqpstore_tools.drill.observation import observe
from amqpstore_tools.drill.promises import Promises
from amqpstore_tools.drill.trace import Asked, Promised, StoreOpened
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.operations import CatalogCommit
from tests.crash.histories import DIRECTORY, open_store, record, short_history

CATALOG = f"{DIRECTORY}/catalog/data.mdb"


def disks() -> Iterator[tuple[MemoryFiles, bytes, Promises]]:
    """Disks right before each commit, what the catalog was before the last one, and what was
    promised by then."""
    trace = record(short_history)
    disk = trace.base.fork()
    promises = Promises()
    contents: list[bytes] = []
    for event in trace.events:
        if isinstance(event, Asked | Promised | StoreOpened):
            promises.note(event)
            continue
        if isinstance(event, CatalogCommit):
            if len(contents) > 1:
                yield disk.fork(), contents[-2], promises
            contents.append(event.content)
        disk.redo(event)


def stored(files: MemoryFiles) -> set[str]:
    """Segments and index files."""
    directories = [f"{DIRECTORY}/{name}" for name in (SEGMENTS, INDEX)]
    return {f"{one}/{name}" for one in directories for name in files.list_directory(one)}


def test_a_catalog_without_its_last_commit_costs_nothing_silently() -> None:
    refused = missed = served = 0
    for files, old, promises in disks():
        newest = files.content(CATALOG)
        before = stored(files)
        files.replace(CATALOG, old)
        try:
            store = open_store(files)
        except DamageError:
            refused += 1
            assert stored(files) == before
            # It was told in time: with the right catalog all of it is there.
            files.replace(CATALOG, newest)
            store = open_store(files)
            seen = observe(store)
            store.abandon()
            faults = [*seen.faults, *broken_promises(promises, seen)]
            assert faults == []
            continue
        seen = observe(store)
        store.abandon()
        assert touched_files(promises, files) == []
        if seen.report.damage:
            missed += 1
            assert stored(files) >= before
            continue
        served += 1
        lost = [text for name, text in broken_promises(promises, seen) if name == "I1"]
        # A queue to which nothing was published yet may be the commit that is lost.
        assert [text for text in lost if not text.startswith("queue ")] == []
    assert refused
    assert missed
    assert served
