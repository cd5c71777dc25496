"""A shared store in a directory of the test's, and threads that end with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from amqpstore import Options, SharedStore
from amqpstore.system.clock import SimulatedClock

OPTIONS = Options(reserve_bytes=0, least_free_bytes=0)


class Threads:
    """Starts threads; at the end, all have returned and none has raised."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def start(self, work: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 (raised by `join`)
                self._errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def join(self) -> None:
        """Raises: what the first of them raised."""
        end = time.monotonic() + 60
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0))
            assert not thread.is_alive(), "a thread waits for ever"
        if self._errors:
            raise self._errors[0]


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock(1_000)


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@pytest.fixture
def shared(directory: str, clock: SimulatedClock) -> Iterator[SharedStore]:
    with SharedStore.open(directory, options=OPTIONS, clock=clock) as store:
        store.declare("q")
        yield store


@pytest.fixture
def threads() -> Threads:
    return Threads()
