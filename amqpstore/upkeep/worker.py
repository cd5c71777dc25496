"""Workers, which do the store's background work: checkpoints and compaction, one at a time."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

ResultT = TypeVar("ResultT")

_log = logging.getLogger(__name__)


class Outcome(Generic[ResultT]):
    """The outcome of a piece of work: a result or an error."""

    def __init__(self, result: ResultT | None, error: BaseException | None) -> None:
        self._result = result
        self._error = error

    @classmethod
    def of(cls, work: Callable[[], ResultT]) -> Outcome[ResultT]:
        """Do the work, and return its outcome."""
        try:
            return cls(work(), None)
        except BaseException as error:  # noqa: BLE001 (raised by `get`, in the owner's thread)
            return cls(None, error)

    def get(self) -> ResultT:
        """Return the result. Raises: what the work raised."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value] # a result of type ResultT, or an error


class Worker(Protocol):
    """Does one piece of work at a time."""

    def start(self, work: Callable[[], object]) -> None:
        """Start work. None may be running."""

    def poll(self, *, wait: bool = False) -> Outcome[object] | None:
        """Return the outcome of the work that was started, once; None while it is running."""

    def close(self) -> None:
        """End, once running work is done."""


class InlineWorker:
    """Does the work in `start`: everything happens in one thread, in one order."""

    def __init__(self) -> None:
        self._outcome: Outcome[object] | None = None

    def start(self, work: Callable[[], object]) -> None:
        self._outcome = Outcome.of(work)

    def poll(self, *, wait: bool = False) -> Outcome[object] | None:  # noqa: ARG002
        outcome, self._outcome = self._outcome, None
        return outcome

    def close(self) -> None:
        """Do nothing: no work is running."""


class ThreadWorker:
    """Does the work in a thread of its own."""

    def __init__(self) -> None:
        self._works: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[Outcome[object]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, work: Callable[[], object]) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="store worker", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                # There are too many threads already: it takes longer here, but it is done.
                _log.warning("the store's worker cannot be started: %s", error)
                self._outcomes.put(Outcome.of(work))
                return
            self._thread = thread
        self._works.put(work)

    def poll(self, *, wait: bool = False) -> Outcome[object] | None:
        try:
            return self._outcomes.get(block=wait)
        except queue.Empty:
            return None

    def close(self) -> None:
        if self._thread is not None:
            self._works.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (work := self._works.get()) is not None:
            self._outcomes.put(Outcome.of(work))
