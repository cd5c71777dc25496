"""Memory that nobody needs any more, freed a part at a time.

To free a million messages of a deleted queue takes many milliseconds, in which nothing else would
be done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from amqpstore.message import Message
from amqpstore.runs import Run

_MAX_FREED = 4096
"""Messages that are freed before others have their turn, in whole runs."""


class Disposal:
    """The messages that are to be freed: `lists`, which may share messages with others."""

    def __init__(self) -> None:
        self.lists: deque[list[Message]] = deque()

    def add(self, lists: Iterable[list[Message]]) -> None:
        """Free lists of messages, some time later."""
        self.lists.extend(lists)

    def add_runs(self, runs: Iterable[Run]) -> None:
        """Free the messages of runs, some time later."""
        self.lists.extend([run.messages for run in runs if run.messages])

    def free(self) -> bool:
        """Free some. Returns whether there are more."""
        lists = self.lists
        count = 0
        while lists and count < _MAX_FREED:
            count += len(lists.popleft())
        return bool(lists)
