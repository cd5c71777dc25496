"""Threads of which one runs at a time, and a seed says which: the order of their steps is drawn.

A thread gives up its turn where it waits for another, and wherever `pause` is called: what a disk
is asked for is such a place. So real threads, with their real queues and locks, run in an order
that can be repeated; between two such places nothing else runs.
"""

from __future__ import annotations

import contextlib
import queue
import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import trio

_CHANGES = 0.2
"""How likely another thread goes on than the one that did."""


class _OverError(BaseException):
    """The schedule is over, and with it each thread that waits."""


@dataclass(eq=False)
class _Waiting:
    """A thread that waits for its turn. `is_patient`: it also goes on when no other thread can."""

    name: str
    is_ready: Callable[[], bool]
    is_patient: bool = False
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))


class Schedule:
    """The turns of the threads begun within its `with`, and of the one that made it.

    What is still under way at the end of it is ended where it waits.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._owner = threading.current_thread().name
        self._favourite = self._owner
        self._waiting: list[_Waiting] = []
        self._threads: list[threading.Thread] = []
        self._is_stuck = False
        self._is_over = False

    def __enter__(self) -> Schedule:
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_over = True
        for one in self._waiting:
            one.turn.release()
        for thread in self._threads:
            threading.Thread.join(thread)

    def run_threads_of(self, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have threads and queues that the module makes take turns here."""
        scheduled = self

        class Thread(_Thread):
            schedule = scheduled

        class Queue(_Queue):
            schedule = scheduled

        monkeypatch.setattr(module, "threading", SimpleNamespace(Thread=Thread))
        queues = SimpleNamespace(SimpleQueue=Queue, Empty=queue.Empty)
        monkeypatch.setattr(module, "queue", queues)

    def pause(self) -> None:
        """Perhaps another goes on first."""
        self.wait_until(lambda: True)

    def wait_until(self, is_ready: Callable[[], bool], *, is_patient: bool = False) -> None:
        """Have others go on until this one is ready: or, where it is patient, until none can."""
        if self._is_over:
            raise _OverError
        me = self.expect(threading.current_thread().name, is_ready, is_patient=is_patient)
        self.give_up()
        me.turn.acquire()
        if self._is_over:
            raise _OverError
        if self._is_stuck:
            raise RuntimeError("each thread waits for another")

    def expect(
        self, name: str, is_ready: Callable[[], bool], *, is_patient: bool = False
    ) -> _Waiting:
        """A thread that is to go on at some time."""
        self._waiting.append(waiting := _Waiting(name, is_ready, is_patient))
        return waiting

    def give_up(self) -> None:
        """Have one that can go on do so."""
        ready = [one for one in self._waiting if one.is_ready()]
        if not ready:
            ready = [one for one in self._waiting if one.is_patient]
        if not ready:
            self._is_stuck = True
            ready = [one for one in self._waiting if one.name == self._owner]
        names = [one.name for one in ready]
        if self._favourite not in names or self._rng.random() < _CHANGES:
            self._favourite = self._rng.choice(names)
        chosen = ready[names.index(self._favourite)]
        self._waiting.remove(chosen)
        chosen.turn.release()

    def begin(self, thread: threading.Thread) -> None:
        self._threads.append(thread)

    def end(self) -> None:
        """The present thread ends."""
        if not self._is_over:
            self.give_up()


class _Thread(threading.Thread):
    """A thread that runs in its turns."""

    schedule: Schedule

    def start(self) -> None:
        self._has_ended = False
        self._waiting = self.schedule.expect(self.name, lambda: True)
        self.schedule.begin(self)
        super().start()

    def run(self) -> None:
        self._waiting.turn.acquire()
        try:
            with contextlib.suppress(_OverError):
                super().run()
        finally:
            self._has_ended = True
            self.schedule.end()

    def join(self, timeout: float | None = None) -> None:
        self.schedule.wait_until(lambda: self._has_ended)
        super().join(timeout)


class _Queue:
    """A `queue.SimpleQueue` where who waits gives up its turn. No time passes while others run."""

    schedule: Schedule

    def __init__(self) -> None:
        self._items: deque[Any] = deque()

    def put(self, item: object) -> None:
        self._items.append(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if block:
            self.schedule.wait_until(lambda: bool(self._items), is_patient=timeout is not None)
        if not self._items:
            raise queue.Empty
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items


class LoopTurns(trio.abc.Instrument):
    """Has trio's thread give up its turn when it waits for what other threads have for it."""

    def __init__(self, schedule: Schedule, has_something: Callable[[], bool]) -> None:
        self._schedule = schedule
        self._has_something = has_something

    def before_io_wait(self, timeout: float) -> None:
        if timeout > 0:
            self._schedule.wait_until(self._has_something, is_patient=True)
