"""Scans a segment for a check: every record, its checksums and its order.

For plain messages with contiguous ids that is two slices and two checksums per record.
"""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import NamedTuple

from crc32c import crc32c

from amqpstore.format.batches import is_whole
from amqpstore.format.compression import body_size
from amqpstore.format.enqueue_order import EnqueueOrder
from amqpstore.format.message import HEAD
from amqpstore.format.records import (
    Gap,
    Kind,
    Operation,
    OperationKind,
    Record,
    head_size,
)
from amqpstore_tools.offline.scanning import BATCH_BITS, LEADS, PLAIN_MESSAGE, RecordScanner

_MAX_NAMES = 16_384


class Ids(NamedTuple):
    """Sound MESSAGE records of contiguous ids; `sizes` are in bytes and without compression."""

    first_id: int
    offset: int
    sizes: array[int]

    @property
    def end_id(self) -> int:
        return self.first_id + len(self.sizes)


class Unread(NamedTuple):
    """A sound MESSAGE record whose payload or body is malformed."""

    message_id: int
    offset: int
    reason: str
    is_body: bool = False


@dataclass
class ScannedBatch:
    """The records up to and including one TRANSACTION, number `lsn`, at `transaction` (0: it has
    none).

    `tag` is the batch number in its records: -1 if none is sound. `messages` are runs of ids, each
    the first and the one after the last, ascending. One that `is_blank` is only zeros, behind the
    last record.
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
    is_blank: bool = False

    @cached_property
    def enqueued(self) -> list[tuple[int, int]]:
        """The ids that it puts in queues, in the form of `messages`."""
        kind = OperationKind.ENQUEUE
        ranges = [(one[4], one[4] + one[1]) for one in self.operations if one[0] == kind]
        found: list[tuple[int, int]] = []
        begin = reached = 0
        for first, end in sorted(ranges):
            if first > reached:
                if reached:
                    found.append((begin, reached))
                begin = first
            if end > reached:
                reached = end
        return [*found, (begin, reached)] if reached else found

    @property
    def is_whole(self) -> bool:
        """Whether the TRANSACTION exists, and each message that it enqueues."""
        # Usually it enqueues all that it has: then it has all that it enqueues.
        operations = [] if self.enqueued == self.messages else self.operations
        return is_whole(self.lsn, operations, self.has)

    @property
    def is_damaged(self) -> bool:
        """Whether any of its messages may be missing."""
        return self.gaps > 0

    @property
    def end_id(self) -> int:
        """The id after its last sound message; 0 if it has none."""
        return self.messages[-1][1] if self.messages else 0

    @property
    def possible_operations(self) -> list[Operation]:
        """The batch's operations without those that contradict others, or its messages."""
        return EnqueueOrder({}, 0).split(self)[0]

    @property
    def contradiction(self) -> str:
        """The reason why one of the operations is not possible; empty if all are."""
        return next(iter(EnqueueOrder({}, 0).split(self)[1]), "")

    def has(self, first_id: int, count: int) -> bool:
        """Tell whether it has sound MESSAGE records of contiguous ids."""
        messages = self.messages
        # Usually all of them are one run.
        at = 0 if len(messages) == 1 else bisect_right(messages, first_id, key=itemgetter(0)) - 1
        if at < 0:
            return False
        first, end = messages[at]
        return first <= first_id and first_id + count <= end


@dataclass
class Scanned:
    """The content of a segment, as far as it was read. `headers` are its SEGMENT records."""

    headers: list[tuple[int, int, bytes]] = field(default_factory=list)
    runs: list[Ids] = field(default_factory=list)
    batches: list[ScannedBatch] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)


class Scanner(RecordScanner):
    """Scans one segment up to `end`. Use it once.

    Args: those of `RecordScanner`; measure, returns how large a body was before it was compressed,
    and raises ValueError if it cannot be decompressed.
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
        super().__init__(read, 0, end, segment=segment, seed=seed)
        self._measure = measure
        self._out = Scanned(gaps=self.gaps)
        self._batch = ScannedBatch(0)
        # Names that are UTF-8, each with the length of the exchange's before both.
        self._names: set[tuple[int, bytes]] = set()
        self._head = b""
        self._ids: Ids | None = None

    def run(self) -> Scanned:
        for _ in self._windows():
            pass
        return self._out

    def _messages(self, offset: int) -> int:
        """Scan messages that follow the last one."""
        content = self._content
        size = len(content)
        seed, segment = self._seed, self._segment
        unpack = LEADS.unpack_from
        checksum = crc32c
        starts = content.startswith
        ids = self._ids
        at = offset - self._base
        last = size - 32
        if ids is None or at > last:
            return offset
        lead = PLAIN_MESSAGE + self._tag
        if self._tag < 0:
            # The first record of a batch says which batch it is.
            lead = unpack(content, at)[0]
            if lead & ~BATCH_BITS != PLAIN_MESSAGE:
                return offset
        head = self._head
        append = ids.sizes.append
        wanted = first = ids.end_id
        while at <= last:
            leads, number, written_in, length, header_checksum, payload_checksum = unpack(
                content, at
            )
            start = at + 32
            end = start + length
            if (
                number != wanted
                or leads != lead
                or end > size
                or checksum(content[at : at + 24], seed) != header_checksum
                or checksum(content[start:end], header_checksum) != payload_checksum
                or written_in != segment
            ):
                break
            if not starts(head, start) or not head:
                if not self._is_known(content, start, end) and self._malformed(content[start:end]):
                    break
                head = self._head
            append(length + 32)
            wanted += 1
            at = end
        if wanted > first:
            self._tag = lead & BATCH_BITS
            self._note(first, wanted)
        return self._base + at

    def _is_known(self, content: bytes, start: int, end: int) -> bool:
        """Tell whether the payload of a MESSAGE is consistent, and its names were seen before:
        properties differ from message to message, names hardly ever do.
        """
        if end - start < HEAD.size:
            return False
        exchange, key, properties = HEAD.unpack_from(content, start)
        names = start + HEAD.size
        names_end = names + exchange + key
        head_end = names_end + properties
        if head_end > end or (exchange, content[names:names_end]) not in self._names:
            return False
        self._head = content[start:head_end]
        return True

    def _malformed(self, payload: bytes) -> str:
        """Return why the payload of a MESSAGE is inconsistent."""
        try:
            size = head_size(payload)
            exchange, key, _ = HEAD.unpack_from(payload)
            names = payload[HEAD.size : HEAD.size + exchange + key]
            names[:exchange].decode()
            names[exchange:].decode()
            if len(self._names) >= _MAX_NAMES:
                self._names.clear()
            self._names.add((exchange, names))
        except ValueError as error:
            return str(error)
        self._head = payload[:size]
        return ""

    def _note(self, first: int, end: int) -> None:
        """Note that messages with these ids are in the batch."""
        messages = self._batch.messages
        self._last[Kind.MESSAGE] = end - 1
        if messages and messages[-1][1] == first:
            messages[-1] = messages[-1][0], end
        else:
            messages.append((first, end))

    def _header(self, record: Record, payload: bytes) -> None:
        self._out.headers.append((record.offset, record.number, payload))

    def _gap(self, gap: Gap, offset: int) -> int:
        self._batch.gaps += 1
        return super()._gap(gap, offset)

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

    def _is_whole(self) -> bool:
        return self._batch.is_whole

    def _transaction(
        self,
        record: Record,
        time_ms: int,  # noqa: ARG002 - nothing depends on when it was
        operations: list[Operation],
    ) -> None:
        batch = self._batch
        batch.lsn, batch.transaction = record.number, record.offset
        batch.operations = operations

    def _malformed_transaction(self, record: Record, reason: str) -> None:
        self._batch.transaction, self._batch.malformed = record.offset, reason

    def _end_batch(self, end: int) -> None:
        batch = self._batch
        if end > batch.start and (self._tag != -1 or batch.gaps):
            batch.end, batch.tag, batch.is_blank = end, self._tag, self.is_blank
            self._out.batches.append(batch)
        self._batch = ScannedBatch(end)
