"""Reads the contents of many messages from segments, in columns.

The price of a message is what its own bytes cost: it does not depend on which messages are asked
for with it, or on how many queues the messages of a segment are in.
"""

from __future__ import annotations

import contextlib
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from crc32c import crc32c

from amqpstore.message import HEAD
from amqpstore.records import COMPRESSED, HEADER, MAGIC, Kind, MessageDecoder, Record
from amqpstore.segments import Segment
from amqpstore.windows import scan_file

_READ_BYTES = 1 << 20
"""How much of a segment is read at once, and about how much is in one `Contents`."""

_SPARSE_BYTES = 4 << 10
"""Bytes of a segment for each message wanted of it, from which on each is read alone: to read the
others with it takes longer than another read.
"""

_MAX_STARTS = 4 << 20
"""Messages of which it is known where their records start: 16 bytes each."""


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
        self._starts = 0

    def read(self, ids: array[int]) -> Iterator[Contents]:
        """Yield the contents of messages of ascending ids, in parts."""
        place = 0
        while place < len(ids):
            first_id = ids[place]
            at = bisect_right(self._segments, first_id, key=attrgetter("first_id")) - 1
            if at >= 0 and first_id < self._segments[at].end_id:
                stop = bisect_left(ids, self._segments[at].end_id, place)
                yield from self._reader(at).read(ids[place:stop])
            else:
                behind = self._segments[at + 1 : at + 2]
                stop = bisect_left(ids, behind[0].first_id, place) if behind else len(ids)
                missing = stop - place
                yield Contents([""] * missing, [""] * missing, [b""] * missing, [None] * missing)
            place = stop

    def _reader(self, at: int) -> SegmentColumnReader:
        if at not in self._readers:
            if self._starts > _MAX_STARTS:
                self._readers.clear()
                self._starts = 0
            self._readers[at] = SegmentColumnReader(self._segments[at], self._decoder, self._seed)
            self._starts += self._readers[at].message_count
        return self._readers[at]


class SegmentColumnReader:
    """Reads messages of one segment by id.

    Looks through the segment first, for where its records start. What is not sound there, or when
    it is read, is left to `Segment.read`, which finds what is sound behind it.
    """

    def __init__(self, segment: Segment, decoder: MessageDecoder, seed: int) -> None:
        self._segment = segment
        self._decoder = decoder
        self._seed = seed
        self._ids, self._offsets = _starts(segment, seed)

    @property
    def message_count(self) -> int:
        """Messages of which it is known where their records start."""
        return len(self._ids)

    def read(self, ids: array[int]) -> Iterator[Contents]:
        """Yield the contents of messages of ascending ids of this segment, in parts."""
        offsets, ends = self._places(ids)
        last_end = ends[-1]
        is_dense = last_end - offsets[0] < _SPARSE_BYTES * len(ids)
        ahead = _READ_BYTES if is_dense else 0
        read = self._file_read()
        seed, number, decompress = self._seed, self._segment.number, self._decoder.decompress
        unpack, unpack_head, kind_wanted = HEADER.unpack_from, HEAD.unpack_from, int(Kind.MESSAGE)
        content = b""
        start = end = decompressed_bytes = 0
        found = Contents([], [], [], [])
        exchanges, routing_keys, properties, bodies = found
        part_bytes = 0
        for message_id, offset, record_end in zip(ids, offsets, ends, strict=True):
            if record_end > end:
                if part_bytes + decompressed_bytes >= _READ_BYTES:
                    yield found
                    # The caller may have read others, and the file may be closed by now.
                    read = self._file_read()
                    found = Contents([], [], [], [])
                    exchanges, routing_keys, properties, bodies = found
                    part_bytes = decompressed_bytes = 0
                size = record_end - offset
                if size < ahead:
                    size = min(ahead, last_end - offset)
                try:
                    content = read(offset, size)
                except (OSError, MemoryError):
                    content = b""  # what can be read of it is read alone
                part_bytes += size
                start, end = offset, offset + size
            try:
                at = offset - start
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
                    self._add_alone(message_id, found)
                    continue
                exchange_size, key_size, properties_size = unpack_head(payload)
                exchange_end = 6 + exchange_size
                key_end = exchange_end + key_size
                properties_end = key_end + properties_size
                if properties_end > size:
                    self._add_alone(message_id, found)
                    continue
                exchange = payload[6:exchange_end].decode()
                routing_key = payload[exchange_end:key_end].decode()
                body = payload[properties_end:]
                if flags:
                    body = decompress(body)
                    decompressed_bytes += len(body)
                    if decompressed_bytes >= _READ_BYTES:
                        # A few bytes of zstd may expand to a large body: the part ends here.
                        end = 0
            except (ValueError, struct.error, MemoryError):
                self._add_alone(message_id, found)
                continue
            exchanges.append(exchange)
            routing_keys.append(routing_key)
            properties.append(payload[key_end:properties_end])
            bodies.append(body)
        yield found

    def _places(self, ids: array[int]) -> tuple[array[int], array[int]]:
        """Return where the records of messages start, and where each ends at the latest.

        One that was not found is read alone: it gets no bytes.
        """
        known, size = self._ids, self._segment.size
        first = bisect_left(known, ids[0])
        stop = first + len(ids)
        if known[first:stop] == ids:
            ends = self._offsets[first + 1 : stop + 1]
            ends.extend([size] * (len(ids) - len(ends)))
            return self._offsets[first:stop], ends
        offsets, ends = array("Q"), array("Q")
        bounds = self._offsets + array("Q", [size, size])
        for message_id in ids:
            first = bisect_left(known, message_id, first)
            is_there = first < len(known) and known[first] == message_id
            offsets.append(bounds[first])
            ends.append(bounds[first + is_there])
        return offsets, ends

    def _file_read(self) -> Callable[[int, int], bytes]:
        """Return how to read the segment; nothing can be read if it cannot be opened."""
        try:
            return self._segment.file().read
        except (OSError, MemoryError):
            return lambda _offset, _size: b""

    def _add_alone(self, message_id: int, to: Contents) -> None:
        """Read a message as a broker would, which tells what is sound in a damaged segment."""
        read = self._segment.read(message_id, 1, self._decoder)
        message = read[0] if isinstance(read, list) else None
        to.exchanges.append(message.envelope.exchange if message else "")
        to.routing_keys.append(message.envelope.routing_key if message else "")
        to.properties.append(message.envelope.properties if message else b"")
        to.bodies.append(message.body if message else None)


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
            found, kind, _, _, message_id, of, length, checksum, _ = unpack(content, at)
            if (
                crc32c(content[at : at + 24], 0 if kind == kind_without_seed else seed) != checksum
                or found != magic
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
