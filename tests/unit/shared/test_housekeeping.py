"""Work that waits for a time is done at that time, even without a commit."""

import gc
import os
import threading
import weakref

import pytest

from amqpstore import MessageDamagedError, SharedStore
from amqpstore.format.limits import StoreLimits
from amqpstore.system.clock import SimulatedClock
from amqpstore.system.files import OsFiles
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.simulation.faulty_files import UnreadableFiles
from tests.unit.shared import conftest
from tests.unit.shared.conftest import Threads
from tests.unit.shared.waiting import receive, send, waiting
from tests.waiting import wait_until

OPTIONS = conftest.OPTIONS._replace(limits=StoreLimits(housekeep_s=0.01))


def index_files(directory: str) -> list[str]:
    return os.listdir(os.path.join(directory, "index"))


def test_an_idle_store_makes_its_checkpoint_when_that_is_due(
    directory: str, clock: SimulatedClock
) -> None:
    with SharedStore.open(directory, options=OPTIONS, clock=clock) as shared:
        shared.declare("q")
        send(shared, "q", b"one")
        assert index_files(directory) == []
        clock.advance(OPTIONS.checkpoint_ms)
        wait_until(lambda: index_files(directory) != [])


def test_an_idle_store_gives_back_the_room_of_what_was_received(
    directory: str, clock: SimulatedClock
) -> None:
    options = OPTIONS._replace(segment_bytes=1 << 10)
    with SharedStore.open(directory, options=options, clock=clock) as shared:
        shared.declare("q")
        for _ in range(20):
            send(shared, "q", bytes(1000))
        receive(shared, "q", 1000)
        segments = os.path.join(directory, "segments")

        def is_compacted() -> bool:
            clock.advance(OPTIONS.checkpoint_ms)
            return len(os.listdir(segments)) <= 3

        wait_until(is_compacted)


def test_who_waits_is_woken_for_a_message_that_can_be_read_again(
    directory: str, clock: SimulatedClock, threads: Threads
) -> None:
    with SharedStore.open(directory, options=OPTIONS) as shared:
        shared.declare("q")
        send(shared, "q", b"one")
    files = UnreadableFiles(OsFiles(), (f"{directory}/segments/{1:010}.segment", 0, 1 << 20))
    with SharedStore.open(directory, options=OPTIONS, clock=clock, files=files) as shared:
        with pytest.raises(MessageDamagedError):
            receive(shared, "q")
        received: list[bytes] = []

        def wait() -> None:
            with shared.transaction() as transaction:
                received.extend(one.body for one in transaction.receive("q", timeout_s=20))

        threads.start(wait)
        wait_until(lambda: waiting(shared, "q") == 1)
        files.bad = []
        clock.advance(10_000)
        threads.join()
        assert received == [b"one"]


def test_with_a_worker_of_ones_own_one_says_when(directory: str, clock: SimulatedClock) -> None:
    worker = InlineWorker()
    before = threading.active_count()
    with SharedStore.open(directory, options=OPTIONS, clock=clock, worker=worker) as shared:
        assert threading.active_count() == before
        shared.declare("q")
        send(shared, "q", b"one")
        shared.housekeep()
        assert index_files(directory) == []
        clock.advance(OPTIONS.checkpoint_ms)
        shared.housekeep()
        shared.housekeep()
        assert index_files(directory) != []


def test_the_thread_ends_with_the_store(directory: str) -> None:
    shared = SharedStore.open(directory, options=OPTIONS)
    found = [one for one in threading.enumerate() if one.name == "housekeeping"]
    assert len(found) == 1
    shared.close()
    assert not found[0].is_alive()
    shared.close()


def test_a_store_that_was_forgotten_is_freed(directory: str) -> None:
    shared = SharedStore.open(directory, options=OPTIONS)
    found = [one for one in threading.enumerate() if one.name == "housekeeping"]
    locked_store = shared._locked_store
    freed = weakref.ref(shared)
    locked_store.on_stop = None
    del shared
    gc.collect()
    wait_until(lambda: freed() is None)
    wait_until(lambda: not found[0].is_alive())
    locked_store.close()
