"""The expiry of messages: a heap for each queue, of the ready messages with an expiry time.

There is one entry for each run in memory, and one for each index file with other messages. An entry
is not searched for when its run is taken. It is recognised as stale when it reaches the top, or
when there are too many like it. A queue of messages that never expire has no entries.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter

from amqpstore.format.index import PagedFile
from amqpstore.format.runs import ReadyList, Run

_FEW = 64
"""Fewer stale entries than this are not worth removing."""

_FIRST = attrgetter("first")


def earliest(times_ms: Iterable[int]) -> int:
    """Return the earliest of some times; 0 is never."""
    return min(filter(None, times_ms), default=0)


class ExpiryHeap:
    """The expiry times (ms since 1970) and sequences of the queue whose `ready` and `paged` are
    given.

    The sequence is the last one of its run or index file: messages leave at the head first, and
    then the entry stays valid for the others.
    """

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, span: Run | PagedFile) -> None:
        """Add a run that is ready, or a file that is paged."""
        if span.expires_ms:
            heapq.heappush(self._entries, (span.expires_ms, span.end - 1))

    def first(self, ready: ReadyList, paged: Sequence[PagedFile]) -> Run | PagedFile | None:
        """Return what expires first; for a file, the time is when something in it may expire."""
        entries = self._entries
        while entries:
            # The entry may be of a run that was taken, and its sequence be in another one by now:
            # so the time is compared too.
            expires_ms, sequence = entries[0]
            run = ready.at(sequence)
            if run is not None and run.expires_ms == expires_ms:
                return run
            file = _file_at(paged, sequence)
            if file is not None and file.expires_ms == expires_ms:
                return file
            heapq.heappop(entries)
        return None

    def trim(self, ready: ReadyList, paged: Sequence[PagedFile]) -> None:
        """Remove stale entries if they may be more than the others."""
        # A queue with a TTL whose consumer keeps up would otherwise gather an entry for each
        # message, none of which comes to the top before it is due.
        if len(self._entries) > 2 * (len(ready) + len(paged)) + _FEW:
            spans: list[Run | PagedFile] = [*ready, *paged]
            self._entries = [(span.expires_ms, span.end - 1) for span in spans if span.expires_ms]
            heapq.heapify(self._entries)

    def clear(self) -> None:
        """Remove all entries: nothing is ready any more."""
        self._entries = []


def _file_at(paged: Sequence[PagedFile], sequence: int) -> PagedFile | None:
    """Return the file whose range includes a sequence."""
    index = bisect_right(paged, sequence, key=_FIRST) - 1
    return paged[index] if index >= 0 and sequence < paged[index].end else None
