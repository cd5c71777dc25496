"""Retries failed reads: a cable was loose, or the disk needed several attempts.

A message that cannot be read is in quarantine, so that those after it are served; once it can be
read again it is ready in its old place. Retries take a few reads a second in all, however much is
damaged, and so do the lines of the log about it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator

from amqpstore.catalog.catalog import Value
from amqpstore.errors import MessageDamagedError, ReadLaterError
from amqpstore.format.index import PagedFile
from amqpstore.format.message import Message
from amqpstore.format.runs import Run
from amqpstore.log.segments import Unread
from amqpstore.queues.queue import Queue
from amqpstore.system.clock import Clock

_log = logging.getLogger(__name__)

_PAUSE_MS = 1000
"""The time between two tries, and between two lines of the log."""

_MAX_NAMED = 10
"""How many queues, and how many files, a line of the log names; the others are summed up."""

_MAX_READS = 64
_MAX_FAILED = 4
"""How many messages may still be unreadable in one try: each may cost a scan of its segment."""

_MAX_INDEX_FILES = 16

_FORGET_MS = 10_000
"""How long the result of a scan of a damaged segment is used."""


class UnreadLog:
    """Sums up for the log what could not be read, by queue and by file: it gets at most one line a
    second, however many messages, queues and files they are.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due_ms = 0
        self._queues: Counter[str] = Counter()
        self._files: Counter[str] = Counter()
        self._reason = ""

    def note(self, definition: Value, error: MessageDamagedError) -> None:
        """Note that messages of a queue could not be read. Args: definition, of the queue."""
        # The first error is mostly the cause; ten thousand others say the same.
        self._reason = self._reason or error.reason
        self._queues[_label(definition)] += error.message_count
        self._files[error.path or "unknown"] += error.message_count
        self.write()

    def write(self) -> None:
        """Write a line, if anything was noted, and the last line was at least a second ago."""
        now_ms = self._clock.monotonic_ms()
        if not self._queues or now_ms < self._due_ms:
            return
        self._due_ms = now_ms + _PAUSE_MS
        _log.error(
            "some messages cannot be read; the others are served: %d; queues: %s; files: %s; the "
            "first: %s",
            *(self._queues.total(), _listed(self._queues), _listed(self._files), self._reason),
        )
        self._queues.clear()
        self._files.clear()
        self._reason = ""


def _label(definition: Value) -> str:
    """Return the name of a queue for people, as far as its definition has one."""
    if not isinstance(definition, dict):
        return str(definition) if definition else "without a name"
    return f"{definition.get('vhost', '')} {definition.get('name', 'without a name')}".lstrip()


def _listed(counts: Counter[str]) -> str:
    named = counts.most_common(_MAX_NAMED)
    text = ", ".join(f"{name}={count}" for name, count in named)
    others = counts.total() - sum(count for _, count in named)
    return f"{text}, others={others}" if others else text


class Rereading:
    """Queues with unreadable messages, and how far they were tried.

    Args: read, reads some messages of a run, after skipping the first few, up to a count;
    forget_damage, called now and then, makes it look again at damage that it knows of.
    """

    def __init__(
        self,
        read: Callable[[Run, int, int], list[Message] | Unread],
        forget_damage: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._read = read
        self._forget_damage = forget_damage
        self._clock = clock
        # The next sequence to try, by queue. The first queue is the next one.
        self._next_sequences: dict[Queue, int] = {}
        self._due_ms = clock.monotonic_ms() + _PAUSE_MS
        self._forget_ms = 0

    def add(self, queue: Queue) -> None:
        """Add a queue with something that could not be read."""
        self._next_sequences.setdefault(queue, 0)

    def is_due(self) -> bool:
        """Tell whether to try again now; then not again for a second."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._due_ms:
            return False
        self._due_ms = now_ms + _PAUSE_MS
        if now_ms >= self._forget_ms:
            self._forget_ms = now_ms + _FORGET_MS
            self._forget_damage()
        return True

    def messages(self) -> Iterator[tuple[Queue, Run]]:
        """Take some readable messages out of quarantine. Their bodies are not kept."""
        failed = 0
        for _ in range(_MAX_READS):
            if not self._next_sequences or failed >= _MAX_FAILED:
                return
            queue, next_sequence = next(iter(self._next_sequences.items()))
            run = None if queue.deleted else queue.quarantined.at_or_after(next_sequence)
            if run is None:
                self._move_on(queue)
                continue
            sequence = max(next_sequence, run.first_sequence)
            skipped = sequence - run.first_sequence
            read = self._read(run, skipped, run.count - skipped)
            # Descriptors or memory are short, and the next one would fail as well.
            if isinstance(read, ReadLaterError):
                return
            if isinstance(read, list):
                self._next_sequences[queue] = sequence + len(read)
                (part,) = queue.quarantined.remove(sequence, len(read))
                yield queue, part
            else:
                self._next_sequences[queue] = sequence + 1
                failed += 1

    def index_files(self) -> Iterator[tuple[Queue, PagedFile]]:
        """Yield some index files to be tried again, until the caller stops at one that cannot be
        read; others the next time.
        """
        for _ in range(_MAX_INDEX_FILES):
            queue = next(
                (one for one in self._next_sequences if one.unread and not one.deleted), None
            )
            if queue is None:
                return
            # The file goes to the end first, as the caller may stop here: another one is tried the
            # next time.
            file = queue.unread.pop(0)
            queue.unread.append(file)
            yield queue, file

    def _move_on(self, queue: Queue) -> None:
        """Continue with another queue; come back to this one if anything is left."""
        del self._next_sequences[queue]
        if not queue.deleted and (queue.quarantined.count or queue.unread):
            self._next_sequences[queue] = 0
