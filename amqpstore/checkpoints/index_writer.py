"""Writes index files: a checkpoint's new entries are appended to the file of each queue."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from copy import copy

from amqpstore.checkpoints.checkpoint_state import Block, IndexFile, QueueIndex, Sizes
from amqpstore.format.index import (
    IndexState,
    encode_block,
    entries_of,
    no_entries,
)
from amqpstore.format.limits import LIMITS, StoreLimits
from amqpstore.system.durability import sync_directory, sync_file
from amqpstore.system.filenames import INDEX, index_path
from amqpstore.system.files import File, Files
from amqpstore.system.removal import attempt


class _Appended:
    """An index file that this process created and may append to, as long as it has `room`."""

    def __init__(self, queue: QueueIndex, file: File, of: IndexFile, room: int) -> None:
        self.queue = queue
        self.file = file
        self.of = of
        self.is_new = True
        self._room = room
        self._end_bytes = 0
        self._block: Block | None = None

    @property
    def is_full(self) -> bool:
        return self._room <= 0

    def append(self, sizes: Sizes, seed: int) -> None:
        """Write as many of the queue's fresh runs as fit. Raises: OSError."""
        room = self._room
        entries = no_entries()
        for run in self.queue.fresh:
            part = copy(run).split(room) if run.count > room else run
            entries.extend(entries_of(part, *sizes.of(part)))
            room -= part.count
            if not room:
                break
        block = encode_block(self.queue.id, self.of.state.number, entries, seed)
        self.file.append([block])
        self._block = Block.of(entries, self._end_bytes + len(block))

    def count_in(self) -> None:
        """Count what was appended, and is durable now, as entries of the queue that are no longer
        fresh.
        """
        if self._block is None:
            return
        block, self._block = self._block, None
        if self.is_new:
            self.queue.files.append(self.of)
            self.is_new = False
        self.of.append(block)
        self._room -= block.entries
        self._end_bytes = block.end_bytes
        self.queue.fresh.remove(block.first, block.end - block.first)


class IndexWriter:
    """Appends to index files that it created, as long as they are open.

    A checkpoint may write for more queues than a process may have files open. So they are written
    in groups, and the entries of a group belong to its queues before the next one is begun.
    """

    def __init__(
        self, files: Files, directory: str, seed: int, limits: StoreLimits = LIMITS
    ) -> None:
        self._files = files
        self._directory = directory
        self._seed = seed
        self._entries_a_file = limits.entries_a_file
        self._max_open = limits.max_open_index_files
        # By queue, the last written one at the end: so that no file of a group is closed to make
        # room for another one of it.
        self._open: OrderedDict[int, _Appended] = OrderedDict()

    def write(self, queues: Iterable[QueueIndex], sizes: Sizes) -> None:
        """Write the fresh runs of queues, durably, and count them among their entries.

        Raises: OSError (runs that are still fresh can be written by another call), DurabilityError
        (a datasync failed).
        """
        waiting = [queue for queue in queues if queue.fresh.count]
        while waiting:
            for start in range(0, len(waiting), self._max_open):
                self._write_group(waiting[start : start + self._max_open], sizes)
            # A file has room for this many; a queue gets another file for the rest.
            waiting = [queue for queue in waiting if queue.fresh.count]

    def appends_to(self, queue_id: int) -> IndexFile | None:
        """Return the queue's file that the next entries go to, if there is one."""
        found = self._open.get(queue_id)
        return found.of if found else None

    def forget(self, queue_id: int, of: IndexFile) -> None:
        """Close an index file, if it is open: nothing is appended to it any more."""
        found = self._open.get(queue_id)
        if found and found.of is of:
            self._close(found)

    def close(self) -> None:
        """Close all files."""
        for one in list(self._open.values()):
            self._close(one)

    def _write_group(self, queues: Sequence[QueueIndex], sizes: Sizes) -> None:
        try:
            group = [self._of(queue) for queue in queues]
            for one in group:
                one.append(sizes, self._seed)
        except OSError:
            self._abandon(queues)
            raise
        self._sync(group)
        # Counted only now: what a crash or a failure left before the sync is after the end that the
        # catalog knows, and is written again by the next checkpoint.
        for one in group:
            one.count_in()
            if one.is_full:
                self._close(one)

    def _of(self, queue: QueueIndex) -> _Appended:
        """Return the file that the queue's next entries go to, one with some room."""
        one = self._open.get(queue.id)
        if one is None:
            while len(self._open) >= self._max_open:
                self._close(next(iter(self._open.values())))
            file, number = self._create(queue)
            one = _Appended(
                queue, file, IndexFile(IndexState(number, 0, 0, 0, 0)), self._entries_a_file
            )
            self._open[queue.id] = one
        self._open.move_to_end(queue.id)
        return one

    def _create(self, queue: QueueIndex) -> tuple[File, int]:
        while True:
            number = queue.next_number
            queue.next_number += 1
            try:
                return self._files.create(index_path(self._directory, queue.id, number)), number
            except FileExistsError:
                # A start has kept a file that has no row, as it may be needed.
                continue

    def _sync(self, group: Sequence[_Appended]) -> None:
        for one in group:
            sync_file(one.file)
        if any(one.is_new for one in group):
            sync_directory(self._files, f"{self._directory}/{INDEX}")

    def _abandon(self, queues: Iterable[QueueIndex]) -> None:
        """Leave appended bytes where they are, after the ends that the catalog knows."""
        # It is unknown how much of the failed append is there: nothing is appended after it.
        for queue in queues:
            if one := self._open.get(queue.id):
                self._close(one)
                if one.is_new:
                    attempt(self._files.remove, one.file.path)

    def _close(self, one: _Appended) -> None:
        one.file.close()
        del self._open[one.queue.id]
