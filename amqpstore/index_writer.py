"""Writing index files: a checkpoint's new entries, appended to the file of each queue."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Collection

from amqpstore.errors import DurabilityError
from amqpstore.filenames import INDEX, index_path
from amqpstore.files import File, Files
from amqpstore.index import (
    ENTRIES_A_FILE,
    Entries,
    IndexState,
    encode_block,
    entries_of,
    no_entries,
)
from amqpstore.ledger import Block, IndexLedger, Ledger, QueueLedger

_OPEN_FILES = 64
"""Index files that are kept open to be appended to by the next checkpoint."""


class _Appended:
    """An index file that this process created and may append to, and what it appended."""

    def __init__(self, queue: QueueLedger, file: File, of: IndexLedger) -> None:
        self.queue = queue
        self.file = file
        self.of = of
        self.is_new = True
        self.count = 0
        self.end_bytes = 0
        self._blocks: list[Block] = []

    def append(self, entries: Entries, seed: int) -> int:
        """Write as many entries as there is room for. Returns how many. Raises: OSError."""
        part = entries.part(0, ENTRIES_A_FILE - self.count)
        block = encode_block(self.queue.id, self.of.state.number, part, seed)
        self.file.append([block])
        self.count += len(part.ids)
        self.end_bytes += len(block)
        self._blocks.append(Block.of(part, self.end_bytes))
        return len(part.ids)

    def count_in(self) -> None:
        """What was appended is durable: it is part of the queue from now on."""
        if self.is_new:
            self.queue.files.append(self.of)
            self.is_new = False
        for block in self._blocks:
            self.of.append(block)
        self._blocks.clear()


class IndexWriter:
    """Only who created an index file appends to it, as long as it keeps it open."""

    def __init__(self, files: Files, directory: str, seed: int) -> None:
        self._files = files
        self._directory = directory
        self._seed = seed
        self._open: OrderedDict[int, _Appended] = OrderedDict()

    def write(self, queues: Collection[QueueLedger], ledger: Ledger) -> None:
        """Write the fresh runs of queues, durably, and count them among their entries.

        Raises: OSError (nothing is counted then), DurabilityError (a datasync failed).
        """
        appended: list[_Appended] = []
        try:
            for queue in queues:
                self._append(queue, ledger, appended)
        except OSError:
            self._abandon(appended)
            raise
        self._sync(appended)
        for one in appended:
            one.count_in()
            if self._open.get(one.queue.id) is not one:
                one.file.close()
        for queue in queues:
            queue.fresh.clear()
        while len(self._open) > _OPEN_FILES:
            self._open.popitem(last=False)[1].file.close()

    def appends_to(self, queue_id: int) -> IndexLedger | None:
        """The queue's file that the next entries go to, where there is one."""
        found = self._open.get(queue_id)
        return found.of if found else None

    def forget(self, queue_id: int, of: IndexLedger) -> None:
        """Close an index file, where it is open: nothing is appended to it any more."""
        found = self._open.get(queue_id)
        if found and found.of is of:
            found.file.close()
            del self._open[queue_id]

    def close(self) -> None:
        """Close all files."""
        for one in self._open.values():
            one.file.close()
        self._open.clear()

    def _append(self, queue: QueueLedger, ledger: Ledger, appended: list[_Appended]) -> None:
        entries = no_entries()
        for run in queue.fresh:
            entries.extend(entries_of(run, ledger.sizes.of(run)))
        while entries.ids:
            one = self._open.get(queue.id)
            if one is None or one.count >= ENTRIES_A_FILE:
                one = self._create(queue)
            self._open.move_to_end(queue.id)
            if one not in appended:
                appended.append(one)
            count = one.append(entries, self._seed)
            entries = entries.part(count, len(entries.ids))

    def _create(self, queue: QueueLedger) -> _Appended:
        number = queue.next_number
        queue.next_number += 1
        file = self._files.create(index_path(self._directory, queue.id, number))
        one = _Appended(queue, file, IndexLedger(IndexState(number, 0, 0, 0, 0)))
        self._open[queue.id] = one
        return one

    def _sync(self, appended: list[_Appended]) -> None:
        path = f"{self._directory}/{INDEX}"
        try:
            for one in appended:
                path = one.file.path
                one.file.datasync()
            if any(one.is_new for one in appended):
                path = f"{self._directory}/{INDEX}"
                self._files.sync_directory(path)
        except OSError as error:
            raise DurabilityError(path, error) from error

    def _abandon(self, appended: list[_Appended]) -> None:
        """Leave what was appended where it is, behind the ends that the catalog knows."""
        for one in {*appended, *self._open.values()}:
            one.file.close()
            if one.is_new:
                with contextlib.suppress(OSError):
                    self._files.remove(one.file.path)
        self._open.clear()
