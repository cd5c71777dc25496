"""A place of the disk that one start cannot read, and the next one can.

The store is opened on it, used if it can be, and killed; then the disk is sound again. Whatever was
promised before, and in between, is there, and nothing is called damage.
"""

import functools
from collections.abc import Callable

import pytest

from amqpstore import Store, UnreadableLogError
from amqpstore.system.filenames import INDEX, SEGMENTS
from amqpstore_tools.drill.invariants import Fault, broken_promises, reported_damage
from amqpstore_tools.drill.outside import Outside
from amqpstore_tools.drill.promises import Promises
from amqpstore_tools.drill.trace import Asked, Promised, StoreOpened, Trace
from amqpstore_tools.simulation.faulty_files import UnreadableFiles
from amqpstore_tools.simulation.memory_files import MemoryFiles
from tests.crash.histories import (
    DIRECTORY,
    OPTIONS,
    _fan_out,
    _rolled_segments,
    open_store,
    outside_of,
)

PAGE = 128


LIMITS = OPTIONS.limits._replace(page_bytes=PAGE, table_step_bytes=300, read_ahead_bytes=500)
"""Limits with small pages, so that little cannot be read: a segment of these histories has several
pages and marks.
"""

open_sound = functools.partial(open_store, options=OPTIONS._replace(limits=LIMITS))


def begun(outside: Outside) -> None:
    outside.open()
    outside.create_queue("orders")
    outside.create_queue("audit")
    outside.create_queue("passing", durable=False)
    _fan_out(outside)


def killed(outside: Outside) -> None:
    """Kill a store that has not noted the end of its last segment."""
    begun(outside)
    _rolled_segments(outside)
    outside.sync()
    outside.kill()


def killed_early(outside: Outside) -> None:
    begun(outside)
    outside.sync()
    outside.kill()


def noted(outside: Outside) -> None:
    """Kill a store that has noted the end of its last segment, and has no checkpoint there."""
    killed(outside)
    outside.open()
    outside.kill()


def closed(outside: Outside) -> None:
    begun(outside)
    _rolled_segments(outside)
    outside.close()


def ledger_of(trace: Trace) -> Promises:
    """Return what was promised. What could not be read at an opening is not gone."""
    promises = Promises()
    for event in trace.events:
        if isinstance(event, StoreOpened) and (
            event.observation.faults or event.observation.report.damage
        ):
            continue
        if isinstance(event, Asked | Promised | StoreOpened):
            promises.note(event)
    return promises


def use(outside: Outside) -> None:
    for body in (b"meanwhile", b"and again"):
        outside.publish(["orders", "audit"], [body, bytes(300)])
        outside.sync()
    outside.take("orders", 1)
    outside.take("audit", 2, acked=True)
    outside.sync()
    outside.ack("orders")
    outside.sync()
    outside.checkpoint()
    outside.housekeep(4)


def faults_of(
    history: Callable[[Outside], None], path: str, start: int, ending: Callable[[Outside], None]
) -> tuple[list[Fault], bool]:
    """Return what is wrong in the end, and whether the store could be opened meanwhile."""
    outside = outside_of(open_sound)
    history(outside)
    bad = UnreadableFiles(outside.files, (path, start, start + PAGE))

    def open_seen(files: MemoryFiles) -> Store:
        return open_sound(files, bad)

    outside._open_store = open_seen
    is_open = True
    try:
        outside.open()
    except UnreadableLogError:
        is_open = False
    else:
        use(outside)
        ending(outside)
    bad.bad.clear()
    promises = ledger_of(outside.trace)
    outside.open()
    (*_, opened) = (event for event in outside.trace.events if isinstance(event, StoreOpened))
    observation = opened.observation
    faults = [
        *observation.faults,
        *reported_damage(observation.report),
        *broken_promises(promises, observation),
    ]
    outside.kill()
    return faults, is_open


def record_offsets(told: Callable[[Outside], None]) -> list[tuple[str, int]]:
    outside = outside_of(open_sound)
    told(outside)
    files = outside.files
    paths = [
        f"{DIRECTORY}/{directory}/{name}"
        for directory in (SEGMENTS, INDEX)
        for name in files.list_directory(f"{DIRECTORY}/{directory}")
        if name.endswith((".segment", ".index"))
    ]
    return [
        (path, start)
        for path in paths
        for start in range(0, max(len(files.content(path)), 1), PAGE)
    ]


@pytest.mark.parametrize("ending", [Outside.kill, Outside.close], ids=["killed", "closed"])
@pytest.mark.parametrize("told", [killed, killed_early, noted, closed])
def test_nothing_is_lost_to_a_place_that_one_start_cannot_read(
    told: Callable[[Outside], None], ending: Callable[[Outside], None]
) -> None:
    opened = refused = 0
    for path, start in record_offsets(told):
        faults, is_open = faults_of(told, path, start, ending)
        assert faults == [], f"{path} from {start} on could not be read: {faults}"
        opened += is_open
        refused += not is_open
    assert opened
    # A start is refused only where the log may end in a torn tail.
    assert bool(refused) == (told in (killed, killed_early))
