"""Memory that is not needed any more, freed a piece at a time.

To free a million messages of a deleted queue takes many milliseconds, in which nothing else would
be done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from amqpstore.format.message import Message
from amqpstore.format.runs import Run

_MAX_FREED = 4096
"""Messages that are freed before others have their turn, in whole runs."""

_RUN = 8
"""The cost of a run, counted in messages."""


class Disposal:
    """`runs` that were acked, purged or deleted, and `lists` of messages, which others may share.

    Args: release, releases what a run has elsewhere.
    """

    def __init__(self, release: Callable[[Run], None]) -> None:
        self._release = release
        self.lists: deque[list[Message]] = deque()
        self.runs: deque[Run] = deque()

    def add(self, lists: Iterable[list[Message]]) -> None:
        """Free lists of messages, some time later."""
        self.lists.extend(lists)

    def add_runs(self, runs: Iterable[Run]) -> None:
        """Release runs, and free their messages: some of them now, and the others later."""
        self.runs.extend(runs)
        self.free()

    def free(self) -> bool:
        """Free some of the messages. Returns whether there are more."""
        runs, lists = self.runs, self.lists
        left = _MAX_FREED
        while runs and left > 0:
            run = runs.popleft()
            self._release(run)
            # Counted after it is freed: a run is never cut, so one of a million messages takes a
            # step of its own.
            left -= _RUN if run.messages is None else _RUN + run.count
        while lists and left > 0:
            left -= len(lists.popleft())
        return bool(runs or lists)
