"""Browsing: the ready messages of a queue from any sequence on, read and left as they are.

A step costs what it reads, however deep in the queue it starts and however much is behind it: of an
index file it makes runs of the entries that it needs, and nothing is paged into the queue. The
queue may change between two steps, in any way: a step sees it as it is then.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import NamedTuple

from amqpstore.errors import DamageError, MessageDamagedError, PartlyReadError, ReadLaterError
from amqpstore.format.index import Entries, PagedFile, live_runs
from amqpstore.format.message import Message
from amqpstore.format.runs import Run
from amqpstore.queues.queue import Queue
from amqpstore.queues.stored_runs import StoredRuns
from amqpstore.system.descriptors import is_shortage

_STEP_BYTES = 1 << 20
"""About how many bytes of bodies a step returns."""

_SKIPPED_AT_ONCE = 1024
"""How many entries of one index file a step skips."""


class Browsed(NamedTuple):
    """A message of a queue; without `message`, one that cannot be read."""

    sequence: int
    message: Message | None
    delivery_count: int
    expires_ms: int


class RunSlice(NamedTuple):
    """`length` messages of a run, after the first `skipped`."""

    run: Run
    skipped: int
    length: int

    @property
    def first_sequence(self) -> int:
        """The sequence of the first of them."""
        return self.run.first_sequence + self.skipped


class Browser:
    """Reads ready messages of one queue."""

    def __init__(self, stored: StoredRuns, queue: Queue) -> None:
        self._stored = stored
        self._queue = queue
        self._known: tuple[tuple[int, int], Entries] | None = None

    def read(self, first_sequence: int, most: int) -> tuple[list[Browsed], int]:
        """Return the messages of one step, up to about `most` and 1 MiB, and where the next step
        starts; 0 if nothing is left.

        There may be none in a step that is not the last: a large message takes some steps.
        Raises: ReadLaterError.
        """
        read_pieces = self._pieces(first_sequence, most)
        if read_pieces is None:
            return [], 0
        pieces, end = read_pieces
        browsed: list[Browsed] = []
        size = 0
        for piece in pieces:
            index = 0
            while index < piece.length:
                sequence = piece.first_sequence + index
                if size >= _STEP_BYTES or len(browsed) >= most:
                    return browsed, sequence
                wanted = min(piece.length - index, most - len(browsed))
                messages = read_messages(self._stored, piece.run, piece.skipped + index, wanted)
                if not messages:
                    return browsed, sequence
                size += sum(len(message.body) for message in messages if message)
                browsed += [
                    Browsed(sequence + i, one, piece.run.delivery_count, piece.run.expires_ms)
                    for i, one in enumerate(messages)
                ]
                index += len(messages)
        return browsed, 0 if self._is_end(end) else end

    def skip(self, first_sequence: int, count: int) -> tuple[int, int]:
        """Skip messages from a sequence on, as many as one step can.

        Returns where the rest starts, 0 if nothing is left there, and how many of `count` are still
        to be skipped.
        Raises: ReadLaterError.
        """
        if file := self._whole_file(first_sequence, count):
            return file.end, count - file.live
        found = self._pieces(first_sequence, min(count, _SKIPPED_AT_ONCE))
        if found is None:
            return 0, count
        pieces, end = found
        for piece in pieces:
            if piece.length > count:
                return piece.first_sequence + count, 0
            count -= piece.length
        return end, count

    def message_id(self, sequence: int) -> int:
        """Return the id of the message that is ready at a sequence; 0 if none is, or it is not in
        the log. Raises: ReadLaterError.
        """
        found = self._pieces(sequence, 1)
        piece = next(iter(found[0]), None) if found else None
        if piece is None or piece.first_sequence != sequence or not piece.run.first_id:
            return 0
        return piece.run.id_at(piece.skipped)

    def _whole_file(self, first_sequence: int, count: int) -> PagedFile | None:
        """Return the index file that has the next messages, if all of them are to be skipped: it
        need not be read.
        """
        queue = self._queue
        file = queue.paged_before(first_sequence)
        if file is None or first_sequence > file.first or file.live > count:
            return None
        # Messages that are in memory only may lie between those of a file.
        return None if queue.ready.between(first_sequence, file.end) else file

    def _pieces(self, first: int, most: int) -> tuple[list[RunSlice], int] | None:
        """Return what is ready from a sequence on, about as many messages, and where the rest
        starts; None if nothing is.
        """
        queue = self._queue
        if queue.deleted:
            return None
        files = queue.paged
        index = bisect_right(files, first, key=attrgetter("end"))
        file = files[index] if index < len(files) else None
        run = queue.ready.at_or_after(first)
        if file is None:
            return self._in_memory(first, queue.next_sequence, most) if run else None
        if run and max(run.first_sequence, first) < file.first:
            return self._in_memory(first, file.first, most)
        start = max(first, file.first)
        stored, end = self._in_file(file, start, most)
        between = [_cut(one, start, end) for one in queue.ready.between(start, end)]
        return sorted([*stored, *between], key=attrgetter("first_sequence")), end

    def _in_memory(self, first: int, stop: int, most: int) -> tuple[list[RunSlice], int]:
        """Return what is ready from a sequence on, and before another one, and no index file is
        between.
        """
        pieces: list[RunSlice] = []
        while most and (run := self._queue.ready.at_or_after(first)):
            if run.first_sequence >= stop:
                return pieces, stop
            piece = _cut(run, first, stop)
            piece = piece._replace(length=min(piece.length, most))
            pieces.append(piece)
            first = piece.first_sequence + piece.length
            most -= piece.length
        return pieces, first

    def _in_file(self, file: PagedFile, start: int, most: int) -> tuple[list[RunSlice], int]:
        """Return live entries of an index file from a sequence on, and where the rest starts."""
        try:
            entries = self._entries(file)
        except (DamageError, OSError) as error:
            # A lack of descriptors or memory is not damage: the caller tries again.
            if is_shortage(error):
                raise ReadLaterError(f"index file {file.number}", str(error)) from error
            self._stored.paging.note_file(self._queue, file, error)
            return [], file.end
        sequences = entries.sequences
        index = bisect_left(sequences, start) + most
        end = sequences[index] if index < len(sequences) else file.end
        end = min(end, file.end)
        runs = live_runs(entries, self._queue.index[file.number], start, end)
        return [RunSlice(run, 0, run.count) for run in runs], end

    def _entries(self, file: PagedFile) -> Entries:
        """Return the entries of an index file, which are kept for the next step. Raises:
        DamageError, OSError.
        """
        state = self._queue.index[file.number]
        # Blocks are only added to a file, so with the same end it is the same.
        # Not the acks, which change all the time and are looked up in the queue's own state.
        key = file.number, state.end_bytes
        if self._known is None or self._known[0] != key:
            self._known = key, self._stored.paging.entries_of(self._queue, file)
        return self._known[1]

    def _is_end(self, sequence: int) -> bool:
        """Tell whether nothing is ready from a sequence on."""
        queue = self._queue
        is_paged = bool(queue.paged) and queue.paged[-1].end > sequence
        return not is_paged and queue.ready.at_or_after(sequence) is None


def _cut(run: Run, first: int, end: int) -> RunSlice:
    """Return the messages of a run from a sequence on, and before another one."""
    skipped = max(first - run.first_sequence, 0)
    return RunSlice(run, skipped, min(run.end, end) - run.first_sequence - skipped)


def read_messages(stored: StoredRuns, run: Run, skipped: int, count: int) -> list[Message | None]:
    """Return some of `count` messages of a run after the first ones; None stands for one that
    cannot be read. There are none while a large message is being read, which takes some calls.

    Raises: ReadLaterError.
    """
    if run.messages is not None:
        return [*run.messages[skipped : skipped + count]]
    found = stored.reader.read_back(run, skipped, count, in_chunks=True)
    if isinstance(found, PartlyReadError):
        return []
    if isinstance(found, ReadLaterError):
        raise found
    return [None] if isinstance(found, MessageDamagedError) else [*found]
