"""Each call to the disk fails once: the store stops, and what was promised is there afterwards."""

import contextlib
import functools
import itertools
import random
import re
import time

import pytest

from amqpstore import (
    DiskFullError,
    DurabilityError,
    Run,
    Store,
    StoreClosedError,
    StoreError,
)
from amqpstore.format.batches import is_blank
from amqpstore.system.filenames import (
    DEFINITIONS,
    FIRST_COMPACTED,
    SEGMENTS,
    TRAILS,
    index_key,
    segment_number,
)
from amqpstore_tools.drill.invariants import Fault, broken_promises, touched_files
from amqpstore_tools.drill.outside import Outside
from amqpstore_tools.drill.promises import Promises
from amqpstore_tools.drill.prover import Prover
from amqpstore_tools.drill.trace import Asked, Promised, StoreOpened, Trace
from amqpstore_tools.drill.unknown_files import UNKNOWN_FILES
from amqpstore_tools.simulation.crash_images import crash_images
from amqpstore_tools.simulation.faulty_files import NO_SPACE, FaultKind, Faults
from amqpstore_tools.simulation.memory_files import MemoryFile
from amqpstore_tools.simulation.operations import Write
from tests.crash.histories import (
    DIRECTORY,
    open_faulty_store,
    open_store,
    outside_of,
    short_history,
)

OPENS = ("open", "create", "list_directory", "sync_directory", "make_directory", "lock")
WRITES = ("append", "create", "commit", "make_directory", "rename")

AFFECTED = {
    FaultKind.EIO: ("",),
    FaultKind.ENOSPC: WRITES,
    FaultKind.EMFILE: OPENS,
    FaultKind.ENOMEM: (*OPENS, "read", "size", "append"),
    FaultKind.MEMORY: ("open", "read"),
    FaultKind.SHORT_WRITE: ("append",),
    FaultKind.DONE_ANYWAY: ("append", "datasync", "commit"),
    FaultKind.LOST: ("datasync", "commit"),
}
"""The calls that may fail in each way, by how they begin."""


def calls_of_the_short_history() -> list[str]:
    faults = Faults(-1)
    short_history(outside_of(functools.partial(open_faulty_store, faults=faults)))
    return faults.calls


def faults_left_behind(
    outside: Outside, prover: Prover, rng: random.Random, images: int = 5
) -> list[Fault]:
    """Return what is wrong after a process ended, and after the machine lost power as well: at
    once, or when the next process had used the store.
    """
    promises = Promises()
    for event in outside.trace.events:
        # Messages that could not be read at an opening are not lost: they have to be there the next
        # time.
        if isinstance(event, StoreOpened) and is_unread(event):
            continue
        if isinstance(event, Asked | Promised | StoreOpened):
            promises.note(event)
    files = outside.files
    recovered = [
        prover.recover(files.fork()),
        prover.used(files.fork(), rng),
        *(prover.recover(image.files.fork()) for image in crash_images(files, rng, images)),
    ]
    faults = [fault for some in recovered for fault in some.faults]
    for some in recovered:
        faults += touched_files(promises, some.after)
        if some.observation is not None:
            faults += broken_promises(promises, some.observation)
    return faults


def is_unread(event: StoreOpened) -> bool:
    """Tell whether it was the drill's own look at an open store that failed, or a part of its
    opening that then stayed unread. It comes back with the next start."""
    return bool(event.observation.faults or event.observation.report.damage)


def was_unreadable(trace: Trace) -> bool:
    """Tell whether that happened at any opening."""
    return any(isinstance(event, StoreOpened) and is_unread(event) for event in trace.events)


def is_put_off(call: str) -> bool:
    """Tell whether a call is of background work, which is done again later when it fails."""
    verb, path = call.split(" ")
    if path.startswith(f"{DIRECTORY}/transient"):
        return False
    name = path.rpartition("/")[2]
    if name.startswith(DEFINITIONS):
        return verb in ("create", "append", "rename", "size")
    is_of_its_own = index_key(name) or (segment_number(name) or 0) >= FIRST_COMPACTED
    return verb in ("create", "append") and bool(is_of_its_own)


def check_what_came_of_it(
    kind: FaultKind, call: str, error: Exception | None, outside: Outside, logged: list[str]
) -> None:
    """A call failed in the short history, which ended with an error or went through."""
    verb, _, path = call.partition(" ")
    if path.startswith(f"{DIRECTORY}/transient") and verb not in ("open", "read"):
        # Transient messages then stay in memory: nothing was promised about them.
        pass
    elif path.startswith(f"{DIRECTORY}/{TRAILS}"):
        # The trail then does not note how far the log is durable.
        assert error is None, f"{call} failed, and with it the store: {error!r}"
        assert logged or verb == "create", f"{call} failed, and that was not reported"
    elif verb == "recycle" or (path.endswith(".spare") and verb in ("fill", "truncate", "size")):
        # The log goes on in a new file.
        assert error is None, f"{call} failed, and with it the store: {error!r}"
        assert logged, f"{call} failed, and that was not reported"
    elif kind is FaultKind.EMFILE and verb in ("create", "sync_directory") and error is None:
        pass  # A descriptor was spare.
    elif kind in NO_SPACE and verb in ("append", "create", "commit") and error is None:
        # The call was tried again with the room of the reserve, or is put off.
        pass
    elif is_put_off(call):
        assert error is None, f"{call} failed, and with it the store: {error!r}"
        assert outside.put_off or logged, f"{call} failed, and that was not reported"
    elif isinstance(error, DiskFullError):
        assert call.startswith("commit"), f"{call} failed, and something was refused for it"
    elif verb in ("datasync", "sync_directory", "commit") and outside.is_open:
        assert isinstance(error, DurabilityError), f"{call} failed, and the store went on"
    elif verb in ("open", "read") or path.removeprefix(f"{DIRECTORY}/") in UNKNOWN_FILES:
        # A start has looked whether unknown files are files of the store, and they are not. A store
        # goes on after that: it says which message it could not read, or puts off its work; or it
        # was being opened, and what could not be read was read in pieces.
        pass
    elif verb == "remove":
        assert error is not None or outside.put_off or logged
    else:
        assert error is not None, f"{call} failed, and nothing came of it"
    if verb not in ("open", "read"):
        assert not was_unreadable(outside.trace), f"{call} failed, and a message is lost"
        assert outside.damaged == [], f"{call} failed, and a message is lost"


@pytest.mark.rounds(1)
@pytest.mark.parametrize("kind", FaultKind)
def test_a_twelfth_of_the_calls_that_fail(
    kind: FaultKind, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    fail_calls(kind, caplog, seed, images=2, share=12)


@pytest.mark.long
@pytest.mark.rounds(3)
@pytest.mark.parametrize("kind", FaultKind)
def test_every_call_that_fails_and_many_power_cuts(
    kind: FaultKind, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    fail_calls(kind, caplog, seed, images=12)


def alike(call: str) -> str:
    """A call without the numbers in it."""
    return re.sub(r"[0-9]+", "N", call)


def drawn(calls: list[str], affected: tuple[str, ...], seed: int, share: int) -> list[int]:
    """One of `share` calls that are alike, but at least one of them, as the seed draws."""
    places: dict[str, list[int]] = {}
    for place, call in enumerate(calls):
        if call.startswith(affected):
            places.setdefault(alike(call), []).append(place)
    rng = random.Random(seed)
    some = (rng.sample(same, -(-len(same) // share)) for same in places.values())
    return sorted(place for same in some for place in same)


def fail_calls(
    kind: FaultKind,
    caplog: pytest.LogCaptureFixture,
    seed: int,
    *,
    images: int,
    share: int = 1,
) -> None:
    """Fail one call of the short history after the other, or one of each `share` calls that are
    alike, and then cut the power.
    """
    calls = calls_of_the_short_history()
    assert len(calls) > 300
    assert sum(map(is_put_off, calls)) > 30
    prover = Prover(open_store, 2)
    for nth in drawn(calls, AFFECTED[kind], seed, share):
        call = calls[nth]
        caplog.clear()
        faults = Faults(nth, kind)
        outside = outside_of(functools.partial(open_faulty_store, faults=faults))
        error: Exception | None = None
        try:
            short_history(outside)
        except (OSError, MemoryError, StoreError) as raised:
            error = raised
        assert faults.has_struck
        assert faults.calls[nth] == call
        logged = [
            record.message for record in caplog.records if record.name.startswith("amqpstore")
        ]
        check_what_came_of_it(kind, call, error, outside, logged)
        outside.kill()
        # Whatever failed, the lock is free again.
        open_store(outside.files.fork()).abandon()
        left_behind = faults_left_behind(
            outside, prover, random.Random(f"{kind} {nth} {seed}"), images
        )
        assert left_behind == [], f"{kind} at call {nth}, {call}: {left_behind}"


def failing(call: str, kind: FaultKind = FaultKind.EIO) -> tuple[Outside, Faults]:
    """A store with one queue and a message, and the next such call fails."""
    faults = Faults(-1, kind, of=call)
    outside = outside_of(functools.partial(open_faulty_store, faults=faults))
    outside.open()
    outside.create_queue("orders")
    outside.publish(["orders"], [b"before"])
    outside.sync()
    faults.nth = len(faults.calls)
    return outside, faults


@pytest.mark.parametrize("call", ["append", "datasync"])
def test_after_a_failed_sync_nothing_is_confirmed_or_retried(call: str) -> None:
    outside, faults = failing(call)
    confirmed: list[str] = []
    outside.publish(["orders"], [b"after"])
    outside.store.log.when_durable(lambda: confirmed.append("after"))
    with pytest.raises(DurabilityError):
        outside.sync()
    calls = len(faults.calls)
    with pytest.raises(StoreClosedError):
        outside.sync()
    assert len(faults.calls) == calls
    assert confirmed == []


def test_after_a_failed_commit_nothing_is_confirmed() -> None:
    """The catalog may or may not have the failed commit, so nothing may build upon it."""
    outside, _ = failing("commit")
    with pytest.raises(DurabilityError):
        outside.create_queue("audit")
    with pytest.raises(StoreClosedError):
        outside.publish(["orders"], [b"after"])
    with pytest.raises(StoreClosedError):
        outside.sync()


def test_a_store_that_failed_gives_its_lock_back_when_it_is_closed() -> None:
    outside, _ = failing("datasync")
    outside.publish(["orders"], [b"after"])
    with pytest.raises(DurabilityError):
        outside.sync()
    outside.store.close()
    open_store(outside.files).abandon()


def lost(call: str) -> Outside:
    """A store that ended with a failed sync: what the disk never got is still in memory."""
    outside, faults = failing(call, FaultKind.LOST)
    faults.nth = -1
    outside.close()
    # Without anything new in the log the next start commits nothing of its own.
    outside.open()
    faults.nth = len(faults.calls)
    with pytest.raises(DurabilityError):
        if call == "commit":
            outside.create_queue("audit")
        else:
            outside.publish(["orders"], [b"lost", bytes(700)])
            outside.sync()
    outside.kill()
    return outside


@pytest.mark.parametrize("call", ["datasync", "commit"])
def test_what_is_in_memory_only_is_not_adopted(call: str) -> None:
    """Such batches are not adopted after a crash of the recovery either, and their numbers may be
    given again.
    """
    outside = lost(call)
    assert ready_count(open_store(outside.files.fork())) == 1
    rng = random.Random(call)
    prover = Prover(open_store, 6)
    recovered = prover.used(outside.files.fork(), rng)
    assert recovered.faults == ()
    crashes = list(prover.recovery_crashes(outside.files, recovered.operations, rng))
    assert len(crashes) > 2
    for description, image, _ in crashes:
        again = prover.proven(image.files, rng)
        assert again.faults == ()
        assert again.observation == recovered.observation, (description, image.description)


@pytest.mark.parametrize("call", ["datasync", "commit"])
def test_a_store_that_adopts_it_is_caught(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = lost(call)
    monkeypatch.setattr(MemoryFile, "drop_cache", lambda self: None)
    found = faults_left_behind(outside, Prover(open_store, 2), random.Random(call))
    # What is served then is lost; a catalog that is older than the log is not even opened.
    assert {name for name, _ in found} & {"I1", "I9"}


@pytest.mark.parametrize("call", ["open", "read"])
def test_a_read_that_fails_once_loses_no_sound_message(call: str) -> None:
    """EMFILE, EIO of a cable: the bytes on the disk are as sound as they were."""
    outside = outside_of(open_store)
    outside.open()
    outside.create_queue("orders")
    for _ in range(4):
        outside.publish(["orders"], [bytes(3000)])
        outside.sync()
    outside.close()
    faults = Faults(-1, of=call)
    store = open_faulty_store(outside.files, faults)
    (queue,) = store.queues.values()
    for segment in store.log._segments:
        segment.close()
    faults.nth = len(faults.calls)
    with contextlib.suppress(OSError):
        store.take(queue, 1)
    assert faults.has_struck
    store.close()
    assert ready_count(open_store(outside.files)) == 4


def ready_count(store: Store) -> int:
    (queue,) = store.queues.values()
    count = 0
    while queue.ready_count:
        run = store.take(queue, 1)
        assert isinstance(run, Run)
        count += run.count
    store.abandon()
    return count


def test_after_a_short_write_the_rest_is_written() -> None:
    """The disk has taken half of the bytes, and the error is ENOSPC."""
    faults = Faults(-1, FaultKind.SHORT_WRITE, of="append")
    outside = outside_of(functools.partial(open_faulty_store, faults=faults))
    outside.open()
    outside.create_queue("orders")
    outside.publish(["orders"], [b"whole"])
    outside.sync()
    outside.publish(["orders"], [b"half"])
    faults.nth = len(faults.calls)
    outside.sync()
    *_, whole, half, rest = (
        event
        for event in outside.trace.events
        if isinstance(event, Write)
        and f"/{SEGMENTS}/" in event.path
        and not is_blank(event.content)
    )
    assert b"whole" in whole.content
    assert b"half" in half.content + rest.content
    assert 0 < len(half.content) < len(whole.content)
    outside.kill()
    assert ready_count(open_store(outside.files.power_cut({}, {}))) == 2


def test_which_calls_a_history_makes_does_not_depend_on_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beside other load an hour may pass between two of them."""
    expected = calls_of_the_short_history()
    hours = itertools.count(time.monotonic_ns(), 3_600_000_000_000)
    for name in ("time_ns", "monotonic_ns"):
        monkeypatch.setattr(time, name, lambda: next(hours))
    assert calls_of_the_short_history() == expected
