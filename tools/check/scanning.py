"""The fast scan: every record of a segment, its checksums and its order.

A segment is mostly MESSAGE records back to back, with ids one apart. For these a tight loop does
as little as can be done in Python: two slices and two checksums a record. Whatever is not one of
them leaves the loop for `records.record_at`, the engine's own word on what is sound.
"""

from __future__ import annotations

import contextlib
import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from crc32c import crc32c

from amqpstore.compression import body_size
from amqpstore.message import HEAD
from amqpstore.records import (
    HEADER,
    MAGIC,
    Gap,
    Kind,
    Operation,
    OperationKind,
    Record,
    decode_transaction,
    head_size,
    record_at,
)

_HEADER = struct.Struct(">QQIIII")
"""As `records.HEADER`, with all before the number as one integer."""

_PLAIN_MESSAGE = int.from_bytes(MAGIC + bytes([Kind.MESSAGE, 0, 0, 0]), "big")
"""That integer, of a MESSAGE that is not compressed, of batch 0."""


WINDOW_BYTES = 512 << 10
"""Read at a time: what fits the processor's cache is checked twice as fast as what does not."""


class Ids(NamedTuple):
    """Sound MESSAGE records of contiguous ids; `sizes`, of each without compression, in bytes."""

    first_id: int
    offset: int
    sizes: array[int]

    @property
    def end_id(self) -> int:
        return self.first_id + len(self.sizes)


class Unread(NamedTuple):
    """A sound MESSAGE record whose payload, or whose body, does not say what it should."""

    message_id: int
    offset: int
    reason: str
    is_body: bool = False


@dataclass
class Batch:
    """Records up to and with one TRANSACTION, number `lsn`, at `transaction` (0: it has none).

    `tag` is what its records say of their batch: -1 where none is sound. `messages` are runs of
    ids, each the first and the one after the last, ascending.
    """

    start: int
    end: int = 0
    tag: int = -1
    messages: list[tuple[int, int]] = field(default_factory=list)
    lsn: int = 0
    transaction: int = 0
    operations: list[Operation] = field(default_factory=list)
    malformed: str = ""
    gaps: int = 0

    @property
    def enqueued(self) -> list[tuple[int, int]]:
        """The ids that it puts in queues, as `messages`."""
        found: list[tuple[int, int]] = []
        for one in sorted(self.operations, key=attrgetter("first_id")):
            if one.kind == OperationKind.ENQUEUE:
                end = one.first_id + one.message_count
                if found and one.first_id <= found[-1][1]:
                    found[-1] = found[-1][0], max(found[-1][1], end)
                else:
                    found.append((one.first_id, end))
        return found

    @property
    def is_whole(self) -> bool:
        """Whether the TRANSACTION is there, and each message that it enqueues."""
        return bool(self.lsn) and all(
            any(first <= start and end <= stop for first, stop in self.messages)
            for start, end in self.enqueued
        )


@dataclass
class Scanned:
    """What is in a segment, as far as it was read. `headers` are its SEGMENT records."""

    headers: list[tuple[int, int, bytes]] = field(default_factory=list)
    runs: list[Ids] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)


class Scanner:
    """Scans one segment up to `end`. Use it once.

    Args: read, of a file, from an offset, so many bytes; segment, its number; seed, of the
    checksums; measure, how large a body was before it was compressed, raises ValueError where it
    cannot be decompressed.
    """

    def __init__(
        self,
        read: Callable[[int, int], bytes],
        end: int,
        *,
        segment: int,
        seed: int,
        measure: Callable[[bytes], int],
    ) -> None:
        self._read = read
        self._end = end
        self._segment = segment
        self._seed = seed
        self._measure = measure
        self._out = Scanned()
        self._batch = Batch(0)
        self._names = (0, b"")
        self._head = b""
        self._last = dict.fromkeys(map(int, Kind), 0)
        self._ids: Ids | None = None
        # What is in memory of the file: `_content` from `_base` on.
        self._content = b""
        self._base = 0

    def run(self) -> Scanned:
        offset = 0
        while offset < self._end:
            self._load(offset)
            while self._has_record(offset):
                after = self._messages(offset)
                if after == offset:
                    after = self._other(offset)
                offset = after
        self._end_batch(self._end)
        return self._out

    def _load(self, offset: int) -> None:
        """Have the record at `offset` in memory, whole where it can be."""
        size = WINDOW_BYTES
        if offset == self._base and self._content:
            # One longer than the window, as its header says; or where none is sound, all the rest.
            size = self._end - offset
        self._content = self._read(offset, min(size, self._end - offset))
        self._base = offset
        if not self._content:
            # The file has become shorter.
            self._end = offset

    def _has_record(self, offset: int) -> bool:
        """Whether what is in memory holds the record at `offset`, or all that follows."""
        start = offset - self._base
        if self._base + len(self._content) >= self._end:
            return start < len(self._content)
        if start + HEADER.size > len(self._content):
            return False
        # A length that is wrong leads to a damaged record, which is looked at in all the rest.
        length = HEADER.unpack_from(self._content, start)[6]
        return start + HEADER.size + int(length) <= len(self._content)

    def _messages(self, offset: int) -> int:
        """Sound plain MESSAGE records from `offset` on that go on where the last one ended.

        Returns where the first record starts that is none of these, or is not in memory.
        """
        content = self._content
        size = len(content)
        seed, segment = self._seed, self._segment
        unpack = _HEADER.unpack_from
        checksum = crc32c
        starts = content.startswith
        ids = self._ids
        place = offset - self._base
        last = size - 32
        if ids is None or place > last:
            return offset
        lead = _PLAIN_MESSAGE + self._batch.tag
        if self._batch.tag < 0:
            # The first record of a batch says which batch it is.
            lead = unpack(content, place)[0]
            if lead & ~0xFFFF != _PLAIN_MESSAGE:
                return offset
        head = self._head
        append = ids.sizes.append
        wanted = first = ids.end_id
        while place <= last:
            leads, number, written_in, length, header_checksum, payload_checksum = unpack(
                content, place
            )
            start = place + 32
            end = start + length
            if (
                number != wanted
                or leads != lead
                or end > size
                or checksum(content[place : place + 24], seed) != header_checksum
                or checksum(content[start:end], header_checksum) != payload_checksum
                or written_in != segment
            ):
                break
            if not starts(head, start) or not head:
                if self._malformed(content[start:end]):
                    break
                head = self._head
            append(length + 32)
            wanted += 1
            place = end
        if wanted > first:
            self._batch.tag = lead & 0xFFFF
            self._note(first, wanted)
        return self._base + place

    def _malformed(self, payload: bytes) -> str:
        """Why the payload of a MESSAGE does not fit together."""
        try:
            size = head_size(payload)
            exchange, key, _ = HEAD.unpack_from(payload)
            names = exchange, payload[HEAD.size : HEAD.size + exchange + key]
            # Properties differ from message to message, names hardly ever do.
            if names != self._names:
                names[1][:exchange].decode()
                names[1][exchange:].decode()
                self._names = names
        except ValueError as error:
            return str(error)
        self._head = payload[:size]
        return ""

    def _note(self, first: int, end: int) -> None:
        """Messages of these ids are in the batch."""
        messages = self._batch.messages
        self._last[Kind.MESSAGE] = end - 1
        if messages and messages[-1][1] == first:
            messages[-1] = messages[-1][0], end
        else:
            messages.append((first, end))

    def _other(self, offset: int) -> int:
        """Whatever is at `offset`. Returns where it ends."""
        content, base = self._content, self._base
        found = record_at(content, offset - base, self._segment, self._seed)
        if isinstance(found, Record) and found.number <= self._last[found.kind]:
            found = Gap(found.offset, found.end, f"number {found.number} does not ascend")
        if isinstance(found, Gap):
            return self._gap(found, offset)
        kind, batch, number, _, start, end, flags = found
        record = Record(kind, batch, number, offset, base + start, base + end, flags)
        payload = content[found.payload_offset : found.end]
        self._last[record.kind] = record.number
        if record.kind == Kind.SEGMENT:
            self._out.headers.append((offset, record.number, payload))
            return record.end
        if self._batch.tag not in (-1, record.batch):
            self._end_batch(offset)
        self._batch.tag = record.batch
        if record.kind == Kind.MESSAGE:
            self._message(record, payload)
        elif record.kind == Kind.TRANSACTION:
            self._transaction(record, payload)
        else:
            self._out.gaps.append(Gap(offset, record.end, "an INDEX record is in a segment"))
        return record.end

    def _gap(self, gap: Gap, offset: int) -> int:
        if gap.end == gap.offset:
            # The next record may be anywhere.
            if self._base + len(self._content) < self._end:
                self._content = self._read(offset, self._end - offset)
                self._base = offset
            end = self._base + self._next_record(offset - self._base + 1)
        else:
            end = self._base + gap.end
        gaps = self._out.gaps
        if gaps and (gaps[-1].end, gaps[-1].reason) == (offset, gap.reason):
            gaps[-1] = gaps[-1]._replace(end=end)
        else:
            gaps.append(Gap(offset, end, gap.reason))
        self._batch.gaps += 1
        return end

    def _message(self, record: Record, payload: bytes) -> None:
        size = record.end - record.offset
        if reason := self._malformed(payload):
            self._out.unread.append(Unread(record.number, record.offset, reason))
        elif record.flags:
            try:
                compressed = payload[len(self._head) :]
                size += self._measure(compressed) - len(compressed)
            except ValueError as error:
                unread = Unread(record.number, record.offset, str(error), is_body=True)
                self._out.unread.append(unread)
                with contextlib.suppress(ValueError):
                    size += body_size(compressed) - len(compressed)
        if self._ids is None or self._ids.end_id != record.number:
            self._ids = Ids(record.number, record.offset, array("I"))
            self._out.runs.append(self._ids)
        self._ids.sizes.append(size)
        self._note(record.number, record.number + 1)

    def _transaction(self, record: Record, payload: bytes) -> None:
        batch = self._batch
        batch.lsn, batch.transaction = record.number, record.offset
        try:
            _, batch.operations = decode_transaction(payload)
        except ValueError as error:
            batch.malformed = str(error)
        self._end_batch(record.end)

    def _end_batch(self, end: int) -> None:
        """The batch ends at `end`; what follows is another's."""
        if end > self._batch.start and (self._batch.tag != -1 or self._batch.gaps):
            self._batch.end = end
            self._out.batches.append(self._batch)
        self._batch = Batch(end)

    def _next_record(self, offset: int) -> int:
        """Where in what is in memory the next sound record starts, or its end."""
        content = self._content
        while (offset := content.find(MAGIC, offset)) != -1:
            if isinstance(record_at(content, offset, self._segment, self._seed), Record):
                return offset
            offset += 1
        return len(content)
