"""Many threads lose no wake-up, receive each message once, and share syncs."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from amqpstore import DurabilityError, QueueNotFoundError, SharedStore, StoreClosedError
from amqpstore.shared.arrivals import Arrivals
from amqpstore.system.files import File, OsFiles
from tests.unit.shared.conftest import OPTIONS, Threads
from tests.unit.shared.waiting import ready, send, waiting
from tests.waiting import wait_until


class UndoneError(Exception):
    """A transaction is to be rolled back."""


def test_a_receive_waits_for_a_message(shared: SharedStore, threads: Threads) -> None:
    received: list[bytes] = []

    def work() -> None:
        with shared.transaction() as transaction:
            received.append(transaction.receive("q", timeout_s=60)[0].body)

    threads.start(work)
    wait_until(lambda: waiting(shared, "q") == 1)
    send(shared, "q", b"one")
    threads.join()
    assert received == [b"one"]


def test_a_receive_gives_up_in_time(shared: SharedStore) -> None:
    with shared.transaction() as transaction:
        for timeout_s in (-1.0, 0.0, 0.05):
            before = time.monotonic()
            with pytest.raises(TimeoutError, match="'q'"):
                transaction.receive("q", timeout_s=timeout_s)
            assert timeout_s <= time.monotonic() - before < 60
        transaction.send("q", [b"goes on"])
    assert waiting(shared, "q") == 0
    assert ready(shared, "q") == 1


@pytest.mark.parametrize("sent", [1, 2, 3])
def test_one_is_woken_for_each_message(shared: SharedStore, threads: Threads, sent: int) -> None:
    received: list[bytes] = []

    def work() -> None:
        with shared.transaction() as transaction:
            received.append(transaction.receive("q")[0].body)

    for count in range(1, 5):
        threads.start(work)
        wait_until(lambda count=count: waiting(shared, "q") == count)  # type: ignore[misc]
    send(shared, "q", *(b"%d" % number for number in range(sent)))
    wait_until(lambda: len(received) == sent)
    assert waiting(shared, "q") == 4 - sent
    send(shared, "q", *[b"rest"] * (4 - sent))
    threads.join()
    assert sorted(received)[:sent] == [b"%d" % number for number in range(sent)]


def test_a_rollback_wakes_who_waits(shared: SharedStore, threads: Threads) -> None:
    received: list[int] = []

    def work() -> None:
        with shared.transaction() as transaction:
            received.append(transaction.receive("q", timeout_s=60)[0].delivery_count)

    send(shared, "q", b"one")
    with pytest.raises(UndoneError), shared.transaction() as transaction:
        transaction.receive("q")
        threads.start(work)
        wait_until(lambda: waiting(shared, "q") == 1)
        raise UndoneError
    threads.join()
    assert received == [1]


def test_who_was_woken_and_comes_too_late_waits_on_as_the_first() -> None:
    lock = threading.Lock()
    arrivals = Arrivals(lock)
    order: list[int] = []
    threads = Threads()

    def work(number: int, *, is_first: bool) -> None:
        with lock:
            assert arrivals.wait(60, is_first=is_first)
            order.append(number)

    for number, is_first in ((1, False), (2, False), (3, True)):
        threads.start(lambda number=number, is_first=is_first: work(number, is_first=is_first))  # type: ignore[misc]
        wait_until(lambda number=number: len(arrivals) == number)  # type: ignore[misc]
    for count in range(1, 4):
        with lock:
            arrivals.arrived(1)
        wait_until(lambda count=count: len(order) == count)  # type: ignore[misc]
    threads.join()
    assert order == [3, 1, 2]


@pytest.mark.parametrize("end", ["close", "abandon", "delete"])
def test_who_waits_is_told_of_the_end(shared: SharedStore, threads: Threads, end: str) -> None:
    errors: list[type[Exception]] = []

    def work() -> None:
        try:
            with shared.transaction() as transaction:
                transaction.receive("q")
        except (StoreClosedError, QueueNotFoundError) as error:
            errors.append(type(error))

    for _ in range(3):
        threads.start(work)
    wait_until(lambda: waiting(shared, "q") == 3)
    calls: dict[str, Callable[[], None]] = {
        "close": shared.close,
        "abandon": shared.abandon,
        "delete": lambda: shared.delete("q"),
    }
    calls[end]()
    threads.join()
    assert errors == [QueueNotFoundError if end == "delete" else StoreClosedError] * 3


def interrupt_when(condition: Callable[[], bool]) -> None:
    """Send SIGALRM to the main thread once a condition holds."""
    wait_until(condition)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)


def test_a_receive_that_is_interrupted_takes_nobodys_wake_up(
    shared: SharedStore, threads: Threads
) -> None:
    def interrupt(*arguments: object) -> None:
        raise UndoneError

    before = signal.signal(signal.SIGALRM, interrupt)
    threads.start(lambda: interrupt_when(lambda: waiting(shared, "q") == 1))
    try:
        with pytest.raises(UndoneError), shared.transaction() as transaction:
            transaction.receive("q")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert waiting(shared, "q") == 0
    send(shared, "q", b"one")
    assert ready(shared, "q") == 1


def test_who_is_interrupted_while_it_waits_for_the_disk_holds_nobody_up(
    directory: str, threads: Threads
) -> None:
    files = SlowFiles()
    with SharedStore.open(directory, options=OPTIONS, files=files) as shared:
        shared.declare("q")
        files.gate.clear()
        threads.start(lambda: send(shared, "q", b"leads"))
        wait_until(lambda: files.syncs == 1)

        def interrupt(*arguments: object) -> None:
            threads.start(lambda: send(shared, "q", b"follows"))
            raise UndoneError

        before = signal.signal(signal.SIGALRM, interrupt)

        def has_waiting() -> bool:
            with shared._locked_store.lock:
                return len(shared._locked_store._waiting) == 1

        threads.start(lambda: interrupt_when(has_waiting))
        try:
            with pytest.raises(UndoneError):
                send(shared, "q", b"interrupted")  # which can no longer be taken back
        finally:
            signal.signal(signal.SIGALRM, before)
        wait_until(lambda: len(shared._locked_store._waiting) == 1)
        files.gate.set()
        threads.join()
        assert ready(shared, "q") == 3


class SlowFiles(OsFiles):
    """Files whose syncs wait for a gate, and then do nothing, or fail."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.syncs = 0
        self.failure: OSError | None = None

    def create(self, path: str) -> File:
        file = super().create(path)
        if path.endswith(".segment"):
            file.datasync = self._datasync  # type: ignore[method-assign]
        return file

    def _datasync(self) -> None:
        self.syncs += 1
        assert self.gate.wait(60)
        if self.failure:
            raise self.failure


def test_transactions_that_commit_during_one_sync_share_the_next(
    directory: str, threads: Threads
) -> None:
    files = SlowFiles()
    with SharedStore.open(directory, options=OPTIONS, files=files) as shared:
        shared.declare("q")
        send(shared, "q", b"first")
        files.gate.clear()
        before = files.syncs
        threads.start(lambda: send(shared, "q", b"leads"))
        wait_until(lambda: files.syncs == before + 1)
        for _ in range(20):
            threads.start(lambda: send(shared, "q", b"follows"))
        wait_until(lambda: len(shared._locked_store._waiting) == 20)
        assert ready(shared, "q") == 1
        files.gate.set()
        threads.join()
        assert files.syncs == before + 2
        assert ready(shared, "q") == 22


def test_a_failed_sync_is_told_to_all_who_wait_for_it(directory: str, threads: Threads) -> None:
    files = SlowFiles()
    shared = SharedStore.open(directory, options=OPTIONS, files=files)
    shared.declare("q")
    shared.declare("other")
    files.gate.clear()
    errors: list[type[Exception]] = []

    def work(call: Callable[[], object]) -> None:
        try:
            call()
        except (DurabilityError, StoreClosedError) as error:
            errors.append(type(error))

    def wait_for_ever() -> None:
        with shared.transaction() as transaction:
            transaction.receive("other")

    threads.start(lambda: work(lambda: send(shared, "q", b"leads")))
    wait_until(lambda: files.syncs == 1)
    for _ in range(3):
        threads.start(lambda: work(lambda: send(shared, "q", b"follows")))
    threads.start(lambda: work(wait_for_ever))
    wait_until(lambda: len(shared._locked_store._waiting) == 3 and waiting(shared, "other") == 1)
    files.failure = OSError("no more")
    files.gate.set()
    threads.join()
    assert Counter(errors) == {DurabilityError: 4, StoreClosedError: 1}
    with pytest.raises(StoreClosedError, match="no more"):
        shared.queues()
    shared.close()


def lost_wake_up(self: Arrivals, count: int) -> None:
    """Wake only one of the waiting threads when several messages come together."""
    for _ in range(min(1, count, len(self._waiting))):
        self._waiting.popleft().notify()


def test_a_lost_wake_up_is_caught(
    shared: SharedStore, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[bytes] = []

    def work() -> None:
        with shared.transaction() as transaction:
            received.append(transaction.receive("q", timeout_s=60)[0].body)

    monkeypatch.setattr(Arrivals, "arrived", lost_wake_up)
    for _ in range(2):
        threads.start(work)
    wait_until(lambda: waiting(shared, "q") == 2)
    send(shared, "q", b"one", b"two")
    wait_until(lambda: len(received) >= 1)
    assert waiting(shared, "q") == 1, "a message is ready, and somebody waits for one"
    assert ready(shared, "q") == 1
    with shared._locked_store.lock:
        (waiter,) = shared._queues.get("q").arrivals._waiting
        waiter.notify()  # its time is over
    threads.join()
    assert len(received) == 2  # the last look before it gives up
