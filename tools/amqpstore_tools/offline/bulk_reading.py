"""Reads the contents of many messages from segments, in columns.

The price of a message is what its own bytes cost: it does not depend on which messages are asked
for with it, or on how many queues the messages of a segment are in.
"""

from __future__ import annotations

import contextlib
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterator, Sequence
from itertools import accumulate, repeat
from operator import attrgetter, sub
from typing import NamedTuple

from crc32c import crc32c

from amqpstore.format.index import contiguous
from amqpstore.format.message import HEAD
from amqpstore.format.records import COMPRESSED, HEADER, MAGIC, Kind, MessageDecoder, Record
from amqpstore.format.windows import scan_file
from amqpstore.log.segments import Segment

_READ_BYTES = 1 << 17
"""How much of a segment is read at once, and about how much is in one `Contents`: more does not
stay in the processor's cache until it is encoded.
"""

_SPARSE_BYTES = 4 << 10
"""Bytes of a segment for each message wanted of it, from which on each is read alone: to read the
others with it takes longer than another read.
"""

_MAX_STARTS = 4 << 20
"""Messages of which it is known where their records start: 16 bytes each."""

_LENGTH = struct.Struct(">I")
_LENGTH_OFFSET = 20
"""The offset of the length of a record's payload in its header."""

_MESSAGE = int(Kind.MESSAGE)
_KIND_OFFSET = 4


class Contents(NamedTuple):
    """The contents of messages, a column each. The body of one that cannot be read is None, and its
    other fields are empty.
    """

    exchanges: list[str]
    routing_keys: list[str]
    properties: list[bytes]
    bodies: list[bytes | None]


class BulkReader:
    """Reads messages by id. Args: segments, in the order of their ids; seed, of the checksums of
    the store's records.
    """

    def __init__(self, segments: Sequence[Segment], decoder: MessageDecoder, seed: int) -> None:
        self._segments = [one for one in segments if not one.is_empty]
        self._decoder = decoder
        self._seed = seed
        self._readers: dict[int, SegmentColumnReader] = {}

    def read(self, ids: array[int]) -> Iterator[Contents]:
        """Yield the contents of messages of ascending ids, in parts."""
        index = 0
        while index < len(ids):
            first_id = ids[index]
            at = bisect_right(self._segments, first_id, key=attrgetter("first_id")) - 1
            if at >= 0 and first_id < self._segments[at].end_id:
                stop = bisect_left(ids, self._segments[at].end_id, index)
                yield from self._reader(at).read(ids[index:stop])
            else:
                behind = self._segments[at + 1 : at + 2]
                stop = bisect_left(ids, behind[0].first_id, index) if behind else len(ids)
                missing = stop - index
                yield Contents([""] * missing, [""] * missing, [b""] * missing, [None] * missing)
            index = stop

    def _reader(self, at: int) -> SegmentColumnReader:
        if at not in self._readers:
            if sum(one.message_count for one in self._readers.values()) > _MAX_STARTS:
                self._readers.clear()
            self._readers[at] = SegmentColumnReader(self._segments[at], self._decoder, self._seed)
        return self._readers[at]


class SegmentColumnReader:
    """Reads messages of one segment by id.

    As long as all messages are wanted, it goes from record to record. Once one is not, it looks
    through the segment, for where its records start. What is not sound there, or when it is read,
    is left to `Segment.read`, which finds what is sound behind it.
    """

    def __init__(self, segment: Segment, decoder: MessageDecoder, seed: int) -> None:
        self._segment = segment
        self._decoder = decoder
        self._seed = seed
        # Where the record starts that follows those that were read so far.
        self._next = 0
        # The ids of messages, and where their records start, and twice the segment's end.
        self._starts: tuple[array[int], array[int]] | None = None

    @property
    def message_count(self) -> int:
        """Messages of which it is known where their records start."""
        return len(self._starts[0]) if self._starts else 0

    def read(self, ids: array[int]) -> Iterator[Contents]:
        """Yield the contents of messages of ascending ids of this segment, in parts."""
        if self._starts is None:
            ids = ids[(yield from self._following(ids)) :]
            if not ids:
                return
            self._starts = _starts(self._segment, self._seed)
            # Once, as it takes as long as the segment has messages.
            self._starts[1].extend([self._segment.size] * 2)
        offsets, ends = _bounds(ids, *self._starts)
        is_dense = ends[-1] - offsets[0] < _SPARSE_BYTES * len(ids)
        read = self._read_range if is_dense else self._read_each
        # How many bytes are read up to the end of each record.
        read_to = ends if is_dense else array("Q", accumulate(map(sub, ends, offsets)))
        start = read_from = 0
        while start < len(ids):
            read_from = offsets[start] if is_dense else read_from
            stop = max(bisect_right(read_to, read_from + _READ_BYTES, start), start + 1)
            content, indexes = read(offsets[start:stop], ends[start:stop])
            done = start
            while done < stop:
                done += yield from self._sound(ids[done:stop], content, indexes[done - start :])
                if done < stop:
                    yield self._read_alone(ids[done])
                    done += 1
            start, read_from = stop, read_to[stop - 1]

    def _following(self, ids: array[int]) -> Generator[Contents, None, int]:
        """Yield the contents of messages whose records follow those that were read before, up to
        a record of another message, or anything that is not sound. Returns how many there were.

        So a segment of which everything is wanted is read once, and not looked through before.
        """
        segment = self._segment
        done = 0
        while done < len(ids):
            try:
                content = segment.file().read(
                    self._next, max(min(_READ_BYTES, segment.size - self._next), 0)
                )
            except (OSError, MemoryError):
                break
            *records, end = _starts_by_length(content)
            if end > len(content) and records:
                end = records.pop()
            if not records:
                break
            indexes = [index for index in records if content[index + _KIND_OFFSET] == _MESSAGE]
            if len(indexes) > len(ids) - done:
                end = indexes[len(ids) - done]
                del indexes[len(ids) - done :]
            part = ids[done : done + len(indexes)]
            read = yield from self._sound(part, content, indexes)
            done += read
            if read < len(indexes):
                break
            self._next += end
        return done

    def _read_range(self, offsets: array[int], ends: array[int]) -> tuple[bytes, list[int]]:
        """Return everything from the first record to the last, and where in it each starts; nothing
        if it cannot be read.
        """
        start = offsets[0]
        indexes = [offset - start for offset in offsets]
        try:
            return self._segment.file().read(start, ends[-1] - start), indexes
        except (OSError, MemoryError):
            return b"", indexes

    def _read_each(self, offsets: array[int], ends: array[int]) -> tuple[bytes, list[int]]:
        """Return the records, read one by one, and where each starts; zeros for one that cannot be
        read.
        """
        sizes = list(map(sub, ends, offsets))
        indexes = list(accumulate(sizes, initial=0))[:-1]
        try:
            file = self._segment.file()
            records = list(map(file.read, offsets, sizes))
        except (OSError, MemoryError):
            records = list(map(self._read_record, offsets, sizes))
        content = b"".join(records)
        if len(content) < indexes[-1] + sizes[-1]:
            # The file has become shorter.
            content = b"".join(map(bytes.ljust, records, sizes, repeat(b"\0")))
        return content, indexes

    def _read_record(self, offset: int, size: int) -> bytes:
        try:
            return self._segment.file().read(offset, size)
        except (OSError, MemoryError):
            return bytes(size)

    def _sound(
        self, ids: Sequence[int], content: bytes, indexes: Sequence[int]
    ) -> Generator[Contents, None, int]:
        """Yield messages whose records start at places of what was read, up to one that is not
        sound. Returns how many there were.
        """
        done = 0
        while done < len(ids):
            part = Contents([], [], [], [])
            decompressed_bytes = self._add_sound(ids[done:], content, indexes[done:], part)
            if part.bodies:
                yield part
            done += len(part.bodies)
            if decompressed_bytes < _READ_BYTES:
                break
        return done

    def _add_sound(
        self, ids: Sequence[int], content: bytes, indexes: Sequence[int], to: Contents
    ) -> int:
        """Add messages up to one that is not sound, or until many bytes were decompressed: a few
        bytes of zstd may expand to any number. Returns how many bytes were decompressed.
        """
        seed, number, decompress = self._seed, self._segment.number, self._decoder.decompress
        unpack, unpack_head, kind_wanted = HEADER.unpack_from, HEAD.unpack_from, int(Kind.MESSAGE)
        exchanges, routing_keys, properties, bodies = to
        decompressed_bytes = 0
        try:
            for message_id, at in zip(ids, indexes, strict=True):
                magic, kind, flags, _, found_id, of, size, checksum, payload_checksum = unpack(
                    content, at
                )
                payload = content[at + 32 : at + 32 + size]
                if (
                    found_id != message_id
                    or crc32c(content[at : at + 24], seed) != checksum
                    or crc32c(payload, checksum) != payload_checksum
                    or (magic, kind, of) != (MAGIC, kind_wanted, number)
                    or flags > COMPRESSED
                ):
                    break
                exchange_size, key_size, properties_size = unpack_head(payload)
                exchange_end = 6 + exchange_size
                key_end = exchange_end + key_size
                properties_end = key_end + properties_size
                if properties_end > size:
                    break
                exchange = payload[6:exchange_end].decode()
                routing_key = payload[exchange_end:key_end].decode()
                body = payload[properties_end:]
                if flags:
                    body = decompress(body)
                    decompressed_bytes += len(body)
                exchanges.append(exchange)
                routing_keys.append(routing_key)
                properties.append(payload[key_end:properties_end])
                bodies.append(body)
                if decompressed_bytes >= _READ_BYTES:
                    break
        except (ValueError, struct.error, MemoryError):
            pass
        return decompressed_bytes

    def _read_alone(self, message_id: int) -> Contents:
        """Read a message as a broker would, which tells what is sound in a damaged segment."""
        read = self._segment.read(message_id, 1, self._decoder)
        if not isinstance(read, list):
            return Contents([""], [""], [b""], [None])
        envelope = read[0].envelope
        return Contents(
            [envelope.exchange], [envelope.routing_key], [envelope.properties], [read[0].body]
        )


def _bounds(
    ids: array[int], known: array[int], bounds: array[int]
) -> tuple[array[int], array[int]]:
    """Return where the records of messages start, and where each ends at the latest.

    One that was not found is read alone: it gets no bytes.
    Args: known, the ids of messages of which it is known where they start; bounds, where, and twice
    the end of the segment.
    """
    first = bisect_left(known, ids[0])
    stop = bisect_left(known, ids[-1])
    if stop < len(known) and known[first] == ids[0] and contiguous(known, first, stop + 1):
        shift = first - ids[0]
        offsets = array("Q", [bounds[message_id + shift] for message_id in ids])
        return offsets, array("Q", [bounds[message_id + shift + 1] for message_id in ids])
    offsets, ends = array("Q"), array("Q")
    for message_id in ids:
        first = bisect_left(known, message_id, first)
        is_there = first < len(known) and known[first] == message_id
        offsets.append(bounds[first])
        ends.append(bounds[first + is_there])
    return offsets, ends


def _starts(segment: Segment, seed: int) -> tuple[array[int], array[int]]:
    """Return the ids of a segment's messages, and where their records start.

    Trusts the lengths in sound headers, and looks at no payload before something is not sound.
    """
    ids, offsets = array("Q"), array("Q")
    unpack, magic, number, size = HEADER.unpack_from, MAGIC, segment.number, segment.size
    kind_wanted, kind_without_seed = int(Kind.MESSAGE), int(Kind.SEGMENT)
    content = b""
    base = offset = last = 0
    try:
        file = segment.file()
        while offset + 32 <= size:
            at = offset - base
            if at + 32 > len(content):
                base, at = offset, 0
                content = file.read(base, min(_READ_BYTES, size - base))
            record_magic, kind, _, _, message_id, of, length, checksum, _ = unpack(content, at)
            if (
                crc32c(content[at : at + 24], 0 if kind == kind_without_seed else seed) != checksum
                or record_magic != magic
                or of != number
            ):
                break
            if kind == kind_wanted:
                if message_id <= last:
                    break
                last = message_id
                ids.append(message_id)
                offsets.append(offset)
            offset += 32 + length
        else:
            return ids, offsets
    except (OSError, struct.error, MemoryError):
        pass
    _add_starts_behind(segment, seed, offset, ids, offsets)
    return ids, offsets


def _starts_by_length(content: bytes) -> list[int]:
    """Return where records start, and where the last one ends, if the lengths in them are right."""
    indexes = []
    index = 0
    unpack, end = _LENGTH.unpack_from, len(content) - HEADER.size
    while index <= end:
        indexes.append(index)
        index += HEADER.size + unpack(content, index + _LENGTH_OFFSET)[0]
    indexes.append(index)
    return indexes


def _add_starts_behind(
    segment: Segment, seed: int, offset: int, ids: array[int], offsets: array[int]
) -> None:
    """Add those from an offset on, where something is not sound."""
    last = {int(Kind.MESSAGE): ids[-1]} if ids else {}
    with contextlib.suppress(OSError, MemoryError):
        for found in scan_file(
            segment.file(), segment.size, segment.number, seed, start=offset, last_numbers=last
        ):
            if isinstance(found, Record) and found.kind == Kind.MESSAGE:
                ids.append(found.number)
                offsets.append(found.offset)
