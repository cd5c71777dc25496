"""Scans a segment for Spark: messages as columns, batch by batch, each checked.

A message's head (exchange, routing key and properties) is mostly equal to that of the message
before, so a tight loop parses a header, checks the checksums and cuts out the body.
"""

from __future__ import annotations

import contextlib
import functools
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from crc32c import crc32c

from amqpstore.format.batches import is_whole
from amqpstore.format.compression import Decompressor, body_size
from amqpstore.format.records import (
    COMPRESSED,
    Gap,
    Kind,
    Operation,
    Record,
    head_size,
)
from amqpstore.format.windows import read_around
from amqpstore.system.filenames import is_compacted
from amqpstore.system.files import File
from amqpstore_tools.offline.scanning import BATCH_BITS, LEADS, PLAIN_MESSAGE, RecordScanner

NO_DICTIONARIES: Mapping[int, bytes] = MappingProxyType({})

_MAX_MESSAGES = 8192
"""How many messages of a compacted segment are treated as one batch: it has no batches."""


@dataclass
class BatchColumns:
    """Sound messages of one batch, as columns of one length, and its TRANSACTION.

    `ids` ascend. `heads` are numbers of the scanner's `heads`, -1 if a payload is inconsistent;
    `bodies` is empty if they were not requested, and has None for a body that cannot be
    decompressed. `lsn` is 0 without a sound TRANSACTION; that begins at `offset` and ends at `end`.
    """

    ids: array[int] = field(default_factory=lambda: array("Q"))
    offsets: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    heads: array[int] = field(default_factory=lambda: array("i"))
    bodies: list[bytes | memoryview | None] = field(default_factory=list)
    lsn: int = 0
    offset: int = -1
    end: int = -1
    time_ms: int = 0
    operations: list[Operation] = field(default_factory=list)

    def is_whole(self) -> bool:
        """Tell whether the TRANSACTION is there, and each message that it enqueues."""
        return is_whole(self.lsn, self.operations, self._has)

    def _has(self, first_id: int, count: int) -> bool:
        ids = self.ids
        return bisect_left(ids, first_id + count) - bisect_left(ids, first_id) == count


class ColumnScanner(RecordScanner):
    """Reads a segment's file: `size` bytes of it, from offset `start` on, after batch `last_lsn`.

    `heads` are the heads of messages, each once; `gaps` are the ranges that are not records.
    Args: dictionaries, of compressed bodies; want_bodies, whether bodies are kept.
    """

    def __init__(
        self,
        file: File,
        number: int,
        size: int,
        seed: int,
        *,
        dictionaries: Mapping[int, bytes] = NO_DICTIONARIES,
        want_bodies: bool = True,
        start: int = 0,
        last_lsn: int = 0,
    ) -> None:
        read = functools.partial(read_around, file)
        super().__init__(read, start, size, segment=number, seed=seed, last_lsn=last_lsn)
        self._is_compacted = is_compacted(number)
        self._decompress = Decompressor(dict(dictionaries)).decompress
        self._want_bodies = want_bodies
        self._batch = BatchColumns()
        self._ready: list[BatchColumns] = []
        self._numbers: dict[bytes, int] = {}
        self.heads: list[bytes] = []

    def batches(self) -> Iterator[BatchColumns]:
        """Yield its batches, including those without a TRANSACTION. Raises: OSError."""
        for _ in self._windows():
            yield from self._ready
            self._ready.clear()
        yield from self._ready

    def _messages(self, offset: int) -> int:
        """Scan the messages of one batch."""
        if self._is_compacted and len(self._batch.ids) >= _MAX_MESSAGES:
            self._finish(offset)
        content, seed, number = self._content, self._seed, self._segment
        batch, want_bodies = self._batch, self._want_bodies
        unpack, checksum, starts = LEADS.unpack_from, crc32c, content.startswith
        view = memoryview(content)
        ids, offsets, sizes = batch.ids.append, batch.offsets.append, batch.sizes.append
        heads, bodies = batch.heads.append, batch.bodies.append
        head, head_bytes, head_number = b"", 0, -1
        last_id = self._last[Kind.MESSAGE]
        lead = PLAIN_MESSAGE | self._tag if self._tag >= 0 else -1
        base, last = self._base, len(content) - 32
        at = offset - base
        while at <= last:
            leads, message_id, written_in, length, header_checksum, payload_checksum = unpack(
                content, at
            )
            start = at + 32
            end = start + length
            if leads != lead:
                if lead != -1 or leads & ~BATCH_BITS != PLAIN_MESSAGE:
                    break
                lead = leads
            if (
                written_in != number
                or message_id <= last_id
                or end > last + 32
                or checksum(content[at : at + 24], seed) != header_checksum
            ):
                break
            if head_number < 0 or not starts(head, start):
                try:
                    head_bytes = head_size(content[start:end])
                except ValueError:
                    break
                head = content[start : start + head_bytes]
                head_number = self._number_of(head)
            body_at = start + head_bytes
            if want_bodies:
                # A view: the bytes are copied once, into the column.
                body = view[body_at:end]
                if checksum(body, checksum(head, header_checksum)) != payload_checksum:
                    break
                bodies(body)
            elif checksum(view[start:end], header_checksum) != payload_checksum:
                break
            ids(message_id)
            offsets(base + at)
            sizes(end - body_at)
            heads(head_number)
            last_id = message_id
            at = end
            if self._is_compacted and len(batch.ids) >= _MAX_MESSAGES:
                break
        return self._went_to(base + at, offset, lead, last_id)

    def _went_to(self, end: int, start: int, lead: int, last_id: int) -> int:
        """Use the sound messages from `start` to `end`, if there are any."""
        if end > start:
            # Only a sound record says which batch it is of.
            self._tag = lead & BATCH_BITS
            self._last[Kind.MESSAGE] = last_id
        return end

    def _header(self, record: Record, payload: bytes) -> None:
        """Do nothing: the header is not needed."""

    def durable_batches(self) -> Iterator[BatchColumns]:
        """Yield the batches of the log's last segment, without the torn tail. Raises: OSError."""
        doubtful: BatchColumns | None = None
        for batch in self.batches():
            if doubtful is not None:
                # Another one was begun after it: this one was durable, and what is missing is
                # damaged.
                yield doubtful
            doubtful = None if batch.is_whole() else batch
            if doubtful is None:
                yield batch
        if doubtful is not None and doubtful.lsn and self.whole_end >= doubtful.end:
            yield doubtful

    def _is_whole(self) -> bool:
        return self._batch.is_whole()

    def _transaction(self, record: Record, time_ms: int, operations: list[Operation]) -> None:
        batch = self._batch
        batch.lsn = record.number
        batch.offset, batch.end = record.offset, record.end
        batch.time_ms, batch.operations = time_ms, operations

    def _malformed_transaction(self, record: Record, reason: str) -> None:
        self.gaps.append(Gap(record.offset, record.end, reason))

    def _message(self, record: Record, payload: bytes) -> None:
        """Handle a message whose body is compressed, or whose payload is inconsistent."""
        body: bytes | None = None
        number, size = -1, 0
        with contextlib.suppress(ValueError):
            head_bytes = head_size(payload)
            number = self._number_of(payload[:head_bytes])
            stored = payload[head_bytes:]
            if record.flags & COMPRESSED:
                size = body_size(stored)
                body = self._decompress(stored) if self._want_bodies else b""
            else:
                body, size = stored, len(stored)
        batch = self._batch
        batch.ids.append(record.number)
        batch.offsets.append(record.offset)
        batch.sizes.append(size)
        batch.heads.append(number)
        if self._want_bodies:
            batch.bodies.append(body)

    def _number_of(self, head: bytes) -> int:
        number = self._numbers.get(head)
        if number is None:
            number = self._numbers[head] = len(self.heads)
            self.heads.append(head)
        return number

    def _end_batch(self, end: int) -> None:  # noqa: ARG002 - batches know where they end
        if self._batch.ids or self._batch.lsn:
            self._ready.append(self._batch)
        self._batch = BatchColumns()
