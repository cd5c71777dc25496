"""An index file that starts cannot read, and that can be read later: no further start is needed.

The log has acked and delivered messages of the file since the checkpoint, and a prepared
transaction locks some. The store is opened, used and killed twice, with the file still unreadable,
and perhaps with a power cut in between. Once the file can be read again, everything is as it would
have been.
"""

import contextlib
import errno
import functools
import random
from collections.abc import Callable, Iterator

import pytest

from amqpstore import Queue, Run, Store, UndecidableError
from amqpstore.prepared import Prepared
from amqpstore.recovery.recovery import _Recovery
from amqpstore.system.clock import SimulatedClock
from amqpstore.system.filenames import INDEX
from amqpstore_tools.drill.trace import Trace
from amqpstore_tools.simulation import stores
from amqpstore_tools.simulation.crash_images import crash_images
from amqpstore_tools.simulation.faulty_files import FaultKind, Faults, UnreadableFiles
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.operations import Operation
from tests.crash.histories import DIRECTORY, OPTIONS
from tests.crash.test_prepared import messages, named, taken

NAMES = ("source", "other", "target", "emptied")
START_MS = 1_700_000_000_000

Ready = dict[str, list[tuple[int, int]]]
"""Sequence and delivery count of messages, by queue."""


class Opened:
    """A store that is open, and its clock."""

    def __init__(
        self,
        files: MemoryFiles,
        seen_as: UnreadableFiles | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.clock = SimulatedClock(START_MS)
        self.store = stores.open_store(
            DIRECTORY, files, OPTIONS, seen_as=seen_as, faults=faults, clock=self.clock
        )

    def wait(self) -> None:
        """Let time pass until everything that can be read was tried."""
        for _ in range(3):
            self.clock.advance(1000)
            self.store.read_again()


def taken_from(store: Store, queue: Queue, first: int, count: int) -> Run:
    run = store.take(queue, count, first_sequence=first)
    assert isinstance(run, Run)
    assert (run.first_sequence, run.count) == (first, count)
    return run


@functools.cache
def history() -> MemoryFiles:
    """Two queues with index files, and a log that concerns messages of each of them."""
    files = stores.new_disk(DIRECTORY)
    store = Opened(files).store
    source, other, target, emptied = map(store.create_queue, NAMES)
    store.publish([source, other], messages(20))
    store.publish([emptied], messages(6))
    store.sync()
    store.requeue(source, taken_from(store, source, 2, 1))
    store.sync()
    acked, locked_there = taken(store, other, 3), taken(store, other, 5)
    # They are unacked when the process ends.
    taken(store, other, 2)
    store.sync()
    store.upkeep.checkpoint()
    store.ack(source, taken(store, source, 1))
    store.ack(other, acked)
    transaction = store.transaction()
    transaction.ack(source, taken_from(store, source, 4, 6))
    transaction.ack(other, locked_there)
    transaction.publish([target], messages(2))
    transaction.prepare("it")
    store.requeue(source, taken_from(store, source, 11, 2))
    store.requeue(source, taken_from(store, source, 11, 1))
    for first in (1, 4):
        # All of an index file, which a start needs to read for the first half.
        store.ack(emptied, taken_from(store, emptied, first, 3))
        store.sync()
    store.publish([source, other], messages(3))
    store.sync()
    store.abandon()
    return files


def ready(store: Store) -> Ready:
    found = {}
    for name in NAMES:
        queue = named(store, name)
        store.stored.paging.read_index(queue)
        assert queue.unreadable_count == 0
        found[name] = in_memory(queue)
    return found


def in_memory(queue: Queue) -> list[tuple[int, int]]:
    return [
        (one, run.delivery_count)
        for run in queue.ready
        for one in range(run.first_sequence, run.end)
    ]


def locked(store: Store) -> Ready:
    (prepared,) = store.prepared.values()
    found: Ready = {}
    for queue, run in prepared.locked:
        part = found.setdefault(str(queue.definition), [])
        part += [(one, run.delivery_count) for one in range(run.first_sequence, run.end)]
    return {name: sorted(part) for name, part in found.items()}


def without(state: Ready, gone: dict[str, set[int]]) -> Ready:
    return {
        name: [one for one in part if one[0] not in gone.get(name, ())]
        for name, part in state.items()
    }


@functools.cache
def whole() -> tuple[Ready, Ready]:
    """Return what is ready and what is locked where nothing ever fails."""
    store = Opened(history().fork()).store
    found = ready(store), locked(store)
    store.abandon()
    assert found[1] == {
        "source": [(one, 1) for one in range(4, 10)],
        "other": [(one, 1) for one in range(4, 9)],
    }
    assert [one for one in found[0]["source"] if one[1]] == [(2, 1), (11, 2), (12, 1)]
    return found


@functools.cache
def index_files() -> list[str]:
    directory = f"{DIRECTORY}/{INDEX}"
    return [f"{directory}/{name}" for name in history().list_directory(directory)]


def use(store: Store) -> dict[str, set[int]]:
    """Use what can be read. Returns the sequences of messages that are gone or new."""
    changed: dict[str, set[int]] = {}
    for name in NAMES:
        queue = named(store, name)
        of_queue = changed.setdefault(name, {queue.next_sequence})
        store.publish([queue], messages(1))
        run = store.take(queue, 1)
        if isinstance(run, Run):
            store.ack(queue, run)
            of_queue.update(range(run.first_sequence, run.end))
    store.sync()
    with contextlib.suppress(OSError):
        store.upkeep.checkpoint()
    return changed


def check_meanwhile(store: Store) -> None:
    """Check that messages which cannot be read are not served, nor any that should not be."""
    expected_ready, expected_locked = whole()
    for name in NAMES:
        served = {one for one, _ in in_memory(named(store, name))}
        assert not served & {one for one, _ in expected_locked.get(name, ())}
        assert {one for one in served if one <= 20} <= {one for one, _ in expected_ready[name]}


def check_afterwards(opened: Opened, changed: dict[str, set[int]]) -> None:
    """Everything is as where nothing failed, and can be decided, durably."""
    store = opened.store
    expected_ready, expected_locked = whole()
    assert without(ready(store), changed) == without(expected_ready, changed)
    assert locked(store) == expected_locked
    assert opened.store.read_again() == {}


def check_decided(opened: Opened, files: MemoryFiles) -> None:
    """Commit what is prepared: it is as durable as anywhere."""
    store = opened.store
    expected = ready(store)
    (prepared,) = store.prepared.values()
    prepared.commit(prepared.publishes())
    next_sequence = named(store, "target").next_sequence
    expected["target"] += [(next_sequence - 2, 0), (next_sequence - 1, 0)]
    store.sync()
    store.abandon()
    store = Opened(files.power_cut({}, {})).store
    assert store.prepared == {}
    assert ready(store) == expected
    store.abandon()


def merge(*changes: dict[str, set[int]]) -> dict[str, set[int]]:
    return {name: set().union(*(one.get(name, ()) for one in changes)) for name in NAMES}


def bad_ranges(path: str, number: int) -> list[tuple[str, int, int]]:
    """EIO comes when the file is read, a lack of descriptors or memory when it is opened."""
    return [(path, 0, 1 << 20) if number == errno.EIO else (path, 0, 0)]


def check_two_starts(paths: list[str], number: int, *, checkpoint_first: bool = False) -> int:
    """Returns how many index files were set aside by the first start."""
    files = history().fork()
    bad = UnreadableFiles(files, number=number)
    bad.bad = [place for path in paths for place in bad_ranges(path, number)]
    changed: dict[str, set[int]] = {}
    set_aside = 0
    for _ in range(2):
        opened = Opened(files, bad)
        store = opened.store
        unread = {path for path, *_ in store.recovery_report.damage}
        assert unread <= set(paths)
        assert bool(unread) == any(queue.unread for queue in store.queues.values())
        set_aside = set_aside or len(unread)
        opened.wait()
        check_meanwhile(store)
        changed = merge(changed, use(store))
        opened.wait()
        check_meanwhile(store)
        store.abandon()
    opened = Opened(files, bad)
    bad.bad = []
    if checkpoint_first:
        opened.store.upkeep.checkpoint()
    opened.wait()
    check_afterwards(opened, changed)
    opened.store.upkeep.checkpoint()
    again = Opened(files.fork())
    check_afterwards(again, changed)
    again.store.abandon()
    check_decided(opened, files)
    return set_aside


NUMBERS = [errno.EIO, errno.EMFILE, errno.ENOMEM]


@pytest.mark.parametrize("checkpoint_first", [False, True])
@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
def test_an_index_file_that_two_starts_could_not_read_comes_back(
    number: int, checkpoint_first: bool
) -> None:
    set_aside = [
        check_two_starts([path], number, checkpoint_first=checkpoint_first)
        for path in index_files()
    ]
    # The log says nothing of the last messages of each queue.
    assert set(set_aside) == {0, 1}
    assert sum(set_aside) >= 5
    check_two_starts(index_files(), number, checkpoint_first=checkpoint_first)


KINDS = [FaultKind.EIO, FaultKind.EMFILE, FaultKind.ENOMEM, FaultKind.MEMORY]


@pytest.mark.parametrize("call", ["open", "read"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_read_of_an_index_file_at_a_start_may_fail(kind: FaultKind, call: str) -> None:
    """A read that fails once is repeated at once.

    A start that has the entries of a file may read the file again, only for the sizes of bodies: if
    that fails, nothing is set aside.
    """
    of = f"{call} {DIRECTORY}/{INDEX}"
    faults = Faults(-1, of=of)
    Opened(history().fork(), faults=faults).store.abandon()
    assert len(faults.calls) >= 4
    for nth in range(len(faults.calls)):
        files = history().fork()
        faults = Faults(nth, kind, of)
        opened = Opened(files, faults=faults)
        set_aside = [path for path, *_ in opened.store.recovery_report.damage]
        failed = faults.calls[nth]
        is_first = failed not in faults.calls[:nth]
        # A descriptor may have been spare.
        is_spared = kind is FaultKind.EMFILE and not set_aside
        assert set_aside == [failed.partition(" ")[2]] * is_first or is_spared
        check_meanwhile(opened.store)
        opened.wait()
        check_afterwards(opened, {})
        check_decided(opened, files)


def images(paths: list[str]) -> Iterator[tuple[MemoryFiles, dict[str, set[int]]]]:
    """Yield what a power cut leaves while a start uses the store without the files."""
    files = history().fork()
    trace = Trace(files.fork())
    files.record = trace.note
    bad = UnreadableFiles(files, *((path, 0, 1 << 20) for path in paths))
    opened = Opened(files, bad)
    changed = use(opened.store)
    opened.store.abandon()
    rng = random.Random("unread index")
    disk = trace.base.fork()
    for event in trace.events:
        if isinstance(event, Operation):
            disk.redo(event)
        for image in crash_images(disk, rng, 3):
            yield image.files, changed


def check_power_cut(path: str) -> int:
    count = 0
    for files, changed in images([path]):
        bad = UnreadableFiles(files, (path, 0, 1 << 20))
        opened = Opened(files, bad)
        check_meanwhile(opened.store)
        bad.bad = []
        opened.wait()
        check_afterwards(opened, changed)
        check_decided(opened, files)
        count += 1
    return count


@pytest.mark.parametrize("place", range(6))
def test_a_power_cut_meanwhile_changes_nothing_about_it(place: int) -> None:
    assert check_power_cut(index_files()[place]) > 20


@pytest.mark.parametrize("path", index_files())
def test_what_cannot_be_committed_meanwhile_can_be_rolled_back(path: str) -> None:
    files = history().fork()
    bad = UnreadableFiles(files, (path, 0, 1 << 20))
    opened = Opened(files, bad)
    store = opened.store
    (prepared,) = store.prepared.values()
    expected_ready, expected_locked = whole()
    if locked(store) != expected_locked:
        with pytest.raises(UndecidableError, match="index of queue"):
            prepared.publishes()
    for queue, run in prepared.rollback():
        store.withdrawals.put_back(queue, run)
    bad.bad = []
    opened.wait()
    assert ready(store) == {
        name: sorted([*part, *expected_locked.get(name, ())])
        for name, part in expected_ready.items()
    }
    store.abandon()


# A guard is trusted only after it was seen to fail.


def breaks(patch: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    whole()
    with monkeypatch.context() as context:
        patch(context)
        with pytest.raises(AssertionError):
            for number in NUMBERS:
                for path in index_files():
                    check_two_starts([path], number)


def test_a_store_that_forgets_what_the_log_says_of_the_file_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    breaks(
        lambda patch: patch.setattr(_Recovery, "_note_postponed", lambda self: None), monkeypatch
    )


def test_a_store_that_does_not_lock_again_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    breaks(lambda patch: patch.setattr(Prepared, "lock_again", lambda self, queue: 0), monkeypatch)


def test_a_store_that_waits_for_the_next_start_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def patch_cannot_read(patch: pytest.MonkeyPatch) -> None:
        cannot_read = Queue.cannot_read

        def forget(queue: Queue, file: object) -> None:
            cannot_read(queue, file)  # type: ignore[arg-type]
            queue.unread.clear()

        patch.setattr(Queue, "cannot_read", forget)

    breaks(patch_cannot_read, monkeypatch)
