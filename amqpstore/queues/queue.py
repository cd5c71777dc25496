"""A queue, as the store knows it: an identity, a counter of sequences, and the ready messages.

The caller that took a run off a queue holds it until `Store.ack` or `Store.requeue`. After a crash
the run is ready again, marked as delivered.

Three things about ready messages may be in memory: bodies, runs without bodies, and for the rest
only that an index file has it (`paged`). Bodies leave memory first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from amqpstore.errors import DamageError
from amqpstore.format.index import IndexState, Merged, PagedFile
from amqpstore.format.runs import ReadyList, Run
from amqpstore.queues.expiry import ExpiryHeap, earliest
from amqpstore.queues.transient import FIRST_TRANSIENT


class Placement(NamedTuple):
    """The end of a queue, as the place for published messages.

    They expire at `expires_ms` since 1970, or never if that is 0. With `most`, only the first
    `most` of them go there; with `indexes`, only those at these, ascending.
    """

    queue: Queue
    expires_ms: int = 0
    most: int | None = None
    indexes: Sequence[int] | None = None


class Unloaded:
    """Counts the runs that were taken from one queue, and whose messages have left memory."""

    __slots__ = ("body_bytes", "count")

    def __init__(self) -> None:
        self.count = self.body_bytes = 0

    def add(self, run: Run) -> None:
        """Count a run."""
        run.account = self
        self.count += run.count
        self.body_bytes += run.body_bytes

    def remove(self, run: Run) -> None:
        """Stop counting a run that is acked, requeued or read back."""
        run.account = None
        self.count -= run.count
        self.body_bytes -= run.body_bytes

    def note_split(self, run: Run, head: Run) -> None:  # noqa: ARG002 - as the other account
        """Note that a part of a run is a run of its own."""
        head.account = self


class Queue:
    """A message queue. Created by `Store.create_queue`, changed by the store alone.

    `id` is never reused. Only a durable queue has an id in the log and messages there; any other
    exists in memory only. `definition` is the owner's, stored as given. A `lazy` queue keeps no
    body in memory that is on disk. A durable one that `keeps_transient` has messages in the log
    that are not persistent, too. `quarantined` are messages that it still holds and that cannot be
    read, and `unreadable_count` is how many more there are whose index cannot be read: they are
    neither ready nor gone. `ready_bytes` are those in the bodies of all that is ready; of these,
    `unlogged` are messages that are not in the log, and `stored` are runs of `ready` that are on
    disk, each as a count and their bytes. They are exact once the queue `is_sized`: an index file
    of an old version has no sizes. `unloaded` counts what was taken and has left memory. `unread`
    are index files that could not be read, to be tried again. `asides` are the index files of
    messages that were purged, and may come back: a list for each purge.
    """

    __slots__ = (
        "asides",
        "definition",
        "deleted",
        "durable",
        "expiry",
        "id",
        "index",
        "is_sized",
        "keeps_transient",
        "lazy",
        "memory_bytes",
        "next_sequence",
        "paged",
        "paged_count",
        "quarantined",
        "ready",
        "ready_bytes",
        "share_bytes",
        "stored_bytes",
        "stored_count",
        "taken_bytes",
        "unloaded",
        "unlogged_bytes",
        "unlogged_count",
        "unread",
        "unreadable_count",
    )

    def __init__(self, id: int, definition: object, *, durable: bool) -> None:  # noqa: A002
        self.id = id
        self.definition = definition
        self.durable = durable
        self.lazy = False
        self.keeps_transient = False
        self.deleted = False
        self.next_sequence = 1
        self.ready = ReadyList()
        self.paged: list[PagedFile] = []
        self.paged_count = 0
        self.index: dict[int, IndexState] = {}
        self.quarantined = ReadyList()
        self.unreadable_count = 0
        self.unread: list[PagedFile] = []
        self.asides: list[list[PagedFile]] = []
        self.expiry = ExpiryHeap()
        # In memory: how much is, how much may be, and how much was taken from there lately.
        self.memory_bytes = 0
        self.share_bytes = 0
        self.taken_bytes = 0
        self.is_sized = True
        self.ready_bytes = 0
        self.unlogged_count = self.unlogged_bytes = 0
        self.stored_count = self.stored_bytes = 0
        self.unloaded = Unloaded()

    def count_in(self, run: Run) -> None:
        """Count a run that is ready from now on, and whose size is known."""
        self.ready_bytes += run.body_bytes
        if not is_logged(run):
            self.unlogged_count += run.count
            self.unlogged_bytes += run.body_bytes
        if run.messages is None:
            self.stored_count += run.count
            self.stored_bytes += run.body_bytes

    def count_out(self, run: Run, *, was_stored: bool) -> None:
        """Stop counting a run that is not ready any more, and whose size is known.

        Args: was_stored, whether it was on disk while it was ready.
        """
        self.ready_bytes -= run.body_bytes
        if not is_logged(run):
            self.unlogged_count -= run.count
            self.unlogged_bytes -= run.body_bytes
        if was_stored:
            self.stored_count -= run.count
            self.stored_bytes -= run.body_bytes

    @property
    def paged_bytes(self) -> int:
        """The bytes in the bodies of what is in index files only."""
        return sum([file.body_bytes or 0 for file in self.paged])

    @property
    def sized_bytes(self) -> int | None:
        """The bytes in the bodies of all that is ready; None while some of them are unknown."""
        if not self.is_sized and not self.ready_count:
            self.clear()
        return self.ready_bytes if self.is_sized else None

    def let_go(self, run: Run) -> bool:
        """Drop the bodies of a ready run from memory, which are on disk; the caller counts the
        memory. Returns False if it is not ready any more.
        """
        count, body_bytes = run.count, run.body_bytes
        if not self.ready.let_go(run):
            return False
        self.stored_count += count
        self.stored_bytes += body_bytes
        return True

    @property
    def ready_count(self) -> int:
        """Messages that wait to be taken."""
        return self.ready.count + self.paged_count

    @property
    def is_head_paged(self) -> bool:
        """Whether the next message to be taken is in an index file only."""
        paged = self.paged
        return bool(paged) and (
            not self.ready.count or paged[0].first < self.ready.first.first_sequence
        )

    @property
    def first_sequence(self) -> int:
        """A sequence that nothing ready comes before."""
        firsts = [self.next_sequence]
        if self.ready.count:
            firsts.append(self.ready.first.first_sequence)
        if self.paged:
            firsts.append(self.paged[0].first)
        return min(firsts)

    def restore_index(self, states: Sequence[IndexState]) -> None:
        """Start with only what is in index files."""
        self.index = {state.number: state for state in states}
        # Nothing is read at a start but these rows: a queue of a million messages opens as fast as
        # an empty one.
        self.paged = [
            PagedFile(
                *(state.number, state.first, state.end, state.live),
                state.expires_ms,
                state.body_bytes,
            )
            for state in sorted(states, key=lambda state: state.first)
            if state.live
        ]
        self.paged_count = sum(file.live for file in self.paged)

    def check_apart(self, runs: Sequence[Run], path: str) -> None:
        """Make sure that what an index file has, of that path, is not in the queue already.

        Raises: DamageError. No store writes that, but somebody may have changed its files.
        """
        if run := self.ready.overlap(runs):
            last = run.end - 1
            reason = f"the log has messages {run.first_sequence} to {last} of its queue, too"
            raise DamageError(path, 0, reason)

    def paged_in(self, file: PagedFile, runs: Sequence[Run]) -> None:
        """Note that the runs of a file are in memory again."""
        self.paged.remove(file)
        self.paged_count -= file.live
        self._count_stored(file, runs)
        self.ready.insert_all(runs)
        self.watch(runs)

    def _count_stored(self, file: PagedFile, runs: Sequence[Run]) -> None:
        """Count the runs of a file, which has no others, as runs on disk."""
        if runs:
            self.stored_count += sum([run.count for run in runs])
            self.stored_bytes += file.body_bytes or 0

    def cannot_read(self, file: PagedFile) -> None:
        """Note that an index file cannot be read: only the number of its messages is known."""
        self.paged_in(file, [])
        self.ready_bytes -= file.body_bytes or 0
        self.unreadable_count += file.live
        self.unread.append(file)

    def could_read(self, file: PagedFile, runs: Sequence[Run]) -> None:
        """Note that an index file that could not be read has these live runs."""
        self.unread.remove(file)
        self.unreadable_count -= file.live
        self._count_stored(file, runs)
        if runs:
            self.ready_bytes += file.body_bytes or 0
        self.ready.insert_all(runs)
        self.watch(runs)

    def paged_between(self, first: int, end: int) -> list[PagedFile]:
        """Return the files that may have messages from sequence `first` to before `end`."""
        start = bisect_right(self.paged, first, key=attrgetter("end"))
        return self.paged[start : bisect_left(self.paged, end, start, key=attrgetter("first"))]

    def drop_paged(self, files: Sequence[PagedFile]) -> None:
        """Remove neighbouring files whose messages are not ready any more; they need not be read
        for that.
        """
        if files:
            index = self.paged.index(files[0])
            del self.paged[index : index + len(files)]
            self.paged_count -= sum(file.live for file in files)
            self.ready_bytes -= sum(file.body_bytes or 0 for file in files)

    def set_aside(self, first: int, end: int) -> list[PagedFile]:
        """Remove the files that have messages from sequence `first` to before `end`, and no
        others. Returns them.
        """
        between = self.paged_between(first, end)
        # A file that reaches beyond the range has messages that stay.
        files = [file for file in between if first <= file.first and file.end <= end]
        self.drop_paged(files)
        return files

    def bring_back(self, files: Sequence[PagedFile]) -> None:
        """Put files back that were removed: their messages are ready."""
        self.paged = sorted([*self.paged, *files], key=attrgetter("first"))
        self.paged_count += sum(file.live for file in files)
        self.ready_bytes += sum(file.body_bytes or 0 for file in files)
        self.is_sized = self.is_sized and all(file.body_bytes is not None for file in files)
        self.watch(files)

    def paged_before(self, first_sequence: int) -> PagedFile | None:
        """Return the index file that may have the first ready message from a sequence on; None if
        that is in memory, or does not exist.
        """
        index = bisect_right(self.paged, first_sequence, key=attrgetter("end"))
        if index == len(self.paged):
            return None
        file = self.paged[index]
        run = self.ready.at_or_after(first_sequence)
        if run and run.first_sequence <= max(file.first, first_sequence):
            return None
        return file

    def watch(self, spans: Iterable[Run | PagedFile]) -> None:
        """Note when runs that are ready, or files that are paged, expire."""
        for span in spans:
            self.expiry.add(span)
        self.expiry.trim(self.ready, self.paged)

    def first_to_expire(self) -> Run | PagedFile | None:
        """Return what is ready and expires first; an index file, if that is in one only."""
        self.expiry.trim(self.ready, self.paged)
        return self.expiry.first(self.ready, self.paged)

    def clear(self) -> list[Run]:
        """Remove everything that is ready. Returns the runs that were in memory."""
        self.paged.clear()
        self.paged_count = 0
        self.is_sized = True
        self.ready_bytes = self.stored_count = self.stored_bytes = 0
        self.unlogged_count = self.unlogged_bytes = 0
        self.expiry.clear()
        return self.ready.clear()

    def merged(self, merged: Merged) -> None:
        """Note that runs of some index files are in another one from now on."""
        numbers = {state.number for state in merged.old}
        for files in (self.paged, self.unread, *self.asides):
            files[:] = [
                file._replace(number=merged.new) if file.number in numbers else file
                for file in files
            ]

    def page_out(self, states: Sequence[IndexState], most_runs: int) -> int:
        """Leave runs to the index files that have them, if there are many.

        Args: states, of the queue's index files, ascending; most_runs, that may stay.
        Returns: bytes that left memory with them.
        """
        self.index = {state.number: state for state in states}
        freed = 0
        paged_out = []
        files_of: dict[int, list[PagedFile]] = {}
        for file in self.paged:
            files_of.setdefault(file.number, []).append(file)
        # The first file's messages are taken next, except from a queue that keeps nothing in
        # memory.
        for state in reversed(states[1:] if most_runs else states):
            if len(self.ready) <= most_runs:
                break
            # A part of it may be paged out already.
            of_file = files_of.get(state.number, [])
            first = max((file.end for file in of_file), default=state.first)
            live = state.live - sum(file.live for file in of_file)
            if not live or state.delivered or state.end > self.next_sequence:
                continue
            runs = self.ready.between(first, state.end)
            if (
                not runs
                or runs[0].first_sequence < first
                or runs[-1].end > state.end
                or sum(run.count for run in runs) != live
                or any(map(_is_more_than_its_entry, runs))
            ):
                continue  # Some of them are held by a consumer, or the index is behind.
            freed += sum(run.memory_bytes for run in runs)
            self.ready.remove(first, state.end - first)
            in_memory = [run for run in runs if run.messages is not None]
            expires_ms = earliest(run.expires_ms for run in runs)
            file = PagedFile(
                *(state.number, first, state.end, live),
                expires_ms,
                _less(state.body_bytes, [file.body_bytes for file in of_file]),
            )
            self.stored_count -= live - sum([run.count for run in in_memory])
            self.stored_bytes -= (file.body_bytes or 0) - body_bytes_of(in_memory)
            self.paged.append(file)
            self.paged_count += live
            paged_out.append(file)
        self.paged.sort(key=attrgetter("first"))
        self.watch(paged_out)
        return freed


def is_logged(run: Run) -> bool:
    """Tell whether the messages of a run are in the log, and so survive a restart."""
    return 0 < run.first_id < FIRST_TRANSIENT


def body_bytes_of(runs: Iterable[Run]) -> int:
    """Return the bytes in the bodies of runs whose sizes are known."""
    return sum([run.body_bytes for run in runs])


def _less(total: int | None, parts: Iterable[int | None]) -> int | None:
    """Return a total without some parts; None if one of these is unknown."""
    for part in parts:
        total = None if total is None or part is None else total - part
    return total


def _is_more_than_its_entry(run: Run) -> bool:
    """Tell whether an index file, as of the last checkpoint, does not have everything about a
    run.
    """
    return bool(run.delivery_count or run.returned_by is not None or not is_logged(run))
