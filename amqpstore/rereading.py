"""What could not be read is tried again: a cable was loose, or the disk needed several attempts.

A message that cannot be read is in quarantine, so that those behind it are served; one that can be
read again is ready in its old place. It takes a few reads a second in all, however much is damaged.
"""

from __future__ import annotations

from collections.abc import Iterator

from amqpstore.clock import Clock
from amqpstore.errors import ReadLaterError
from amqpstore.log import Log
from amqpstore.queue import PagedFile, Queue
from amqpstore.runs import Run

_PAUSE_MS = 1000
"""From one try to the next."""

_MAX_READS = 64
_MAX_FAILED = 4
"""Messages that are tried at once, and that are found unreadable still: each may cost a scan of
its segment."""

_FORGET_MS = 10_000
"""How long it is believed what a scan of a damaged segment found."""


class Rereading:
    """Queues of which something cannot be read, and how far they were tried."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        # The next sequence to be tried of each. The first queue is the next one.
        self._places: dict[Queue, int] = {}
        self._due_ms = clock.monotonic_ms() + _PAUSE_MS
        self._forget_ms = 0

    def add(self, queue: Queue) -> None:
        """Something of a queue could not be read."""
        self._places.setdefault(queue, 0)

    def is_due(self) -> bool:
        """Whether to try again now; then it is not for a second."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._due_ms:
            return False
        self._due_ms = now_ms + _PAUSE_MS
        if now_ms >= self._forget_ms:
            self._forget_ms = now_ms + _FORGET_MS
            self._log.forget_damage()
        return True

    def messages(self) -> Iterator[tuple[Queue, Run]]:
        """Take what can be read again out of quarantine, some of it. Their bodies are not kept."""
        failed = 0
        for _ in range(_MAX_READS):
            if not self._places or failed >= _MAX_FAILED:
                return
            queue, place = next(iter(self._places.items()))
            run = None if queue.deleted else queue.quarantined.at_or_after(place)
            if run is None:
                self._is_through(queue)
                continue
            sequence = max(place, run.first_sequence)
            skipped = sequence - run.first_sequence
            found = self._log.read(run.first_id + skipped, run.count - skipped)
            if isinstance(found, ReadLaterError):
                return
            if isinstance(found, list):
                self._places[queue] = sequence + len(found)
                (part,) = queue.quarantined.remove(sequence, len(found))
                yield queue, part
            else:
                self._places[queue] = sequence + 1
                failed += 1

    def index_file(self) -> tuple[Queue, PagedFile] | None:
        """An index file to be tried again, another one each time."""
        for queue in self._places:
            if queue.unread and not queue.deleted:
                file = queue.unread.pop(0)
                queue.unread.append(file)
                return queue, file
        return None

    def _is_through(self, queue: Queue) -> None:
        """Another queue is next; this one again, if there is anything left."""
        del self._places[queue]
        if not queue.deleted and (queue.quarantined.count or queue.unread):
            self._places[queue] = 0
