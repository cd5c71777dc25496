"""The log as it grows, transaction by transaction, like `tail -f`.

Nothing is locked, and the store is not opened: a broker may start, stop and crash meanwhile. A
batch is shown when it is on disk, whole and synced. The end of the last segment is checked ten
times a second, which costs next to nothing; names of queues are read again when an unknown queue
occurs.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from amqpstore import DamageError
from amqpstore.catalog import tables
from amqpstore.format.batches import StoredBatch, batches, torn_bytes, written_end
from amqpstore.format.records import Gap, Kind, Record
from amqpstore.format.windows import scan_file
from amqpstore.identity import marker
from amqpstore.identity.expected_segments import log_segments
from amqpstore.system.filenames import SEGMENTS, segment_path
from amqpstore.system.files import File, OsFiles
from amqpstore_tools.inspect.names import Names, StoredName
from amqpstore_tools.inspect.transaction import operation_text, transaction_facts
from amqpstore_tools.offline.catalog import current_catalog
from amqpstore_tools.offline.contents import TransactionImage
from amqpstore_tools.offline.json_output import write_line
from amqpstore_tools.offline.read_only_files import ReadOnlyFiles
from amqpstore_tools.offline.segments import SegmentImage, SegmentState
from amqpstore_tools.offline.terminal import console, counted, shown, size, when

Facts = dict[str, Any]

_POLL_S = 0.1


def follow(
    directory: str,
    show: Callable[[Facts], None],
    most: int | None,
    wait: Callable[[], None] | None = None,
) -> None:
    """Show the last `most` transactions of the last segment, None is all, and then new ones.

    Returns on KeyboardInterrupt.
    Args: wait, called while there is nothing new.
    Raises: NotAStoreError, FormatVersionError, DamageError (the marker), OSError.
    """
    wait = wait or partial(time.sleep, _POLL_S)
    marked = marker.require(ReadOnlyFiles(), directory)
    log = _Log(directory, marked.seed)
    names: Names = {}
    try:
        past = deque(log.new(), maxlen=most)
        for image in past:
            _show(image, directory, names, show)
        while True:
            is_any = False
            for image in log.new():
                is_any = True
                _show(image, directory, names, show)
            if not is_any:
                wait()
    except KeyboardInterrupt:
        return
    finally:
        log.close()


def _show(
    found: TransactionImage | Facts, directory: str, names: Names, show: Callable[[Facts], None]
) -> None:
    if isinstance(found, dict):
        show(found)
        return
    if not names.keys() >= {operation.queue_id for operation in found.operations}:
        names |= _names(directory)
        for operation in found.operations:
            # Its queue has been deleted: it is not looked up again.
            names.setdefault(operation.queue_id, StoredName(None, None))
    show({"event": "transaction", **transaction_facts(found, names)})


def _names(directory: str) -> Names:
    """Return the queues that the catalog has now; none if it cannot be read."""
    try:
        with current_catalog(directory) as catalog:
            definitions = tables.QUEUES.read(catalog.rows)
    except (DamageError, OSError):
        return {}
    return {
        queue_id: StoredName(row.get("vhost"), row.get("name"))
        for queue_id, row in definitions.items()
        if isinstance(row, dict)
    }


class _Log:
    """The log of the store in `directory`, from its last segment on."""

    def __init__(self, directory: str, seed: int) -> None:
        self._directory = directory
        self._seed = seed
        self._files = OsFiles()
        self._number = max(self._numbers(), default=0)
        # The end of the last batch that was returned, and how much of the file was checked.
        self._offset = 0
        self._length = 0
        # Of each kind of record up to there.
        self._last_numbers: dict[int, int] = {}
        self._file: File | None = None

    def new(self) -> list[TransactionImage | Facts]:
        """Return what is on disk, synced, and was not returned yet: transactions, and gaps."""
        found: list[TransactionImage | Facts] = []
        file = self._file or self._open()
        if file is None:
            return found
        # In this order: content of the next segment was begun when this one was whole.
        later = [number for number in self._numbers() if number > self._number]
        length = written_end(file)
        if length > self._length:
            self._length = length
            found += self._read(file, length)
        if later:
            left = torn_bytes(file.read(self._offset, length - self._offset))
            if left:
                found.append(self._left_out(left))
            if min(later) > self._number + 1:
                found.append({"event": "skipped", "segment": min(later)})
            self._go_to(min(later))
        return found

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read(self, file: File, length: int) -> list[TransactionImage | Facts]:
        file.datasync()
        segment = self._segment(length)
        scanned = scan_file(
            file,
            length,
            self._number,
            self._seed,
            start=self._offset,
            last_numbers=self._last_numbers,
        )
        shown: list[TransactionImage | Facts] = []
        doubtful: StoredBatch | None = None
        for batch in batches(scanned, partial(_payload, file), self._offset, length):
            if doubtful is not None and not batch.is_blank:
                # Another one was begun after it: this one was durable, and what is missing is
                # damaged.
                shown += self._shown(segment, doubtful)
            doubtful = None if batch.is_whole() else batch
            if doubtful is None:
                shown += self._shown(segment, batch)
        return shown

    def _shown(
        self, segment: SegmentImage, batch: StoredBatch
    ) -> Iterator[TransactionImage | Facts]:
        """Yield the facts of a durable batch, and continue after it."""
        self._offset = batch.end
        if batch.messages:
            self._last_numbers[Kind.MESSAGE] = batch.messages[-1].number
        if batch.lsn:
            self._last_numbers[Kind.TRANSACTION] = batch.lsn
        yield from map(self._gap, batch.gaps)
        if transaction := TransactionImage.of(segment, batch):
            yield transaction

    def _left_out(self, size: int) -> Facts:
        return {
            "event": "left out",
            "segment": self._number,
            "offset": self._offset,
            "bytes": size,
            "reason": "a batch is incomplete, but the log goes on in another segment",
        }

    def _gap(self, gap: Gap) -> Facts:
        return {
            "event": "gap",
            "segment": self._number,
            "offset": gap.offset,
            "bytes": gap.end - gap.offset,
            "reason": gap.reason,
        }

    def _segment(self, length: int) -> SegmentImage:
        path = segment_path(self._directory, self._number)
        return SegmentImage(
            ReadOnlyFiles(), path, self._number, self._seed, length, SegmentState.OPEN
        )

    def _go_to(self, number: int) -> None:
        self.close()
        self._number = number
        self._offset = self._length = 0

    def _open(self) -> File | None:
        """Open the next segment, if it exists."""
        if not self._number:
            self._number = min(self._numbers(), default=0)
        try:
            self._file = self._files.open(segment_path(self._directory, self._number))
        except FileNotFoundError:
            # It was dropped before it was read: nothing in it was needed any more.
            self._number = min([one for one in self._numbers() if one > self._number], default=0)
        return self._file

    def _numbers(self) -> list[int]:
        names = ReadOnlyFiles().list_directory(os.path.join(self._directory, SEGMENTS))
        return log_segments(names)


def _payload(file: File, record: Record) -> bytes:
    return file.read(record.payload_offset, record.end - record.payload_offset)


def show_line(found: Facts) -> None:
    """Print what was found for people."""
    from rich.text import Text

    out = console()
    if found["event"] == "skipped":
        out.print(f"goes on in segment {found['segment']}: those before it are gone", style="dim")
        return
    if found["event"] != "transaction":
        text = f"{found['event']}: segment {found['segment']} at {found['offset']:,}, "
        out.print(Text(shown(f"{text}{found['bytes']:,} bytes: {found['reason']}"), "red"))
        return
    bytes_ = size(found["end"] - found["batch_offset"])
    head = f"{when(found['time_ms'])[11:]}  LSN {found['lsn']}  segment {found['segment']}"
    out.print(Text.assemble((head, "bold"), f"  {counted(found['messages'], 'message')}, {bytes_}"))
    for operation in found["operations"]:
        kind, queue, sequences, rest = operation_text(operation)
        count = operation["message_count"]
        text = f"    {kind:9} {count:>6,}  {queue}  {sequences}"
        out.print(Text(f"{text}  {rest}".rstrip()), soft_wrap=True)


def show_json(found: Facts) -> None:
    """Print what was found as a line of JSON."""
    write_line(found)
