"""Work in the background: one piece at a time, whose result its owner's thread takes over."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import TypeVar

from amqpstore.upkeep.worker import Worker

ResultT = TypeVar("ResultT")


class Background:
    """The work of a worker: `work` names it, and is empty if it does nothing."""

    def __init__(self, worker: Worker) -> None:
        self.work = ""
        self._worker = worker
        # Made in the worker's thread, and read once the worker says that it is done.
        self._take_over: Callable[[], None] = _nothing_to_take_over

    def begin(
        self, name: str, work: Callable[[], ResultT], take_over: Callable[[ResultT], None]
    ) -> None:
        """Start a piece of work. None may be running. Args: take_over, uses its result."""

        # A worker may be watched: it sees which work it does, and its result.
        @wraps(work)
        def run() -> ResultT:
            result = work()
            self._take_over = partial(take_over, result)
            return result

        self.work = name
        self._worker.start(run)

    def poll(self, *, wait: bool = False) -> Callable[[], None] | None:
        """Return what takes over the result of the work, once it is done; None while it is running.

        Raises: what the work raised.
        """
        outcome = self._worker.poll(wait=wait)
        if outcome is None:
            return None
        self.work = ""
        outcome.get()
        take_over, self._take_over = self._take_over, _nothing_to_take_over
        return take_over


def _nothing_to_take_over() -> None:
    pass
