"""Reading the segments of a store that a broker may be writing: some may be removed meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from amqpstore.format.batches import StoredBatch, batches, written_end
from amqpstore.format.message import Message
from amqpstore.format.records import Kind, MessageDecoder, Record, decode_message
from amqpstore.format.windows import read_around, scan_file
from amqpstore.provenance.trails import Provenance
from amqpstore.system.filenames import SEGMENTS, segment_numbers, segment_path
from amqpstore.system.files import File, Files

MAX_READ_BYTES = 1 << 30
"""How much of the log and of compacted segments is read for one answer."""

_FIRST_WINDOW_BYTES = 64 << 10

GoesOn = Callable[[], bool]
"""Asked between batches whether the log is to be read further. It may wait before it answers."""


class OpenSegment(NamedTuple):
    """A segment that is being read: the first `size` bytes of it are written."""

    number: int
    file: File
    size: int


class LogReading:
    """Reads segments, at most `left_bytes` in all, and counts in `answer` what could not be read.

    It changes nothing, and may be used in another thread than the one that owns the store.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        seed: int,
        decoder: MessageDecoder,
        goes_on: GoesOn = lambda: True,
        left_bytes: int = MAX_READ_BYTES,
    ) -> None:
        self.files = files
        self.directory = directory
        self.seed = seed
        self.left_bytes = left_bytes
        self.answer = Provenance()
        self._decoder = decoder
        self._goes_on = goes_on

    def again(self) -> LogReading:
        """Return a reader with an answer of its own that may read as many bytes as this one has
        left.
        """
        return LogReading(
            *(self.files, self.directory, self.seed, self._decoder),
            *(self._goes_on, self.left_bytes),
        )

    def numbers(self) -> list[int]:
        """Return the numbers of all segments there are now, in order."""
        return sorted(segment_numbers(self.files.list_directory(f"{self.directory}/{SEGMENTS}")))

    def size_of(self, number: int) -> int:
        """Return the size of a segment in bytes; 0 if it was removed."""
        try:
            return self.files.size_of(segment_path(self.directory, number))
        except FileNotFoundError:
            return 0

    @contextlib.contextmanager
    def opened(self, number: int) -> Iterator[OpenSegment | None]:
        """Open a segment, and close it again; None if it was removed."""
        try:
            file = self.files.open(segment_path(self.directory, number))
        except FileNotFoundError:
            yield None
            return
        try:
            # Behind the written end there are zeros that were put there ahead of use.
            yield OpenSegment(number, file, written_end(file))
        finally:
            file.close()

    def may_read(self, size: int) -> bool:
        """Count bytes that are to be read. Returns False if that is too much: the answer is cut."""
        self.left_bytes -= size
        self.answer.is_cut = self.answer.is_cut or self.left_bytes < 0
        # A question of a single user must not read the disk for minutes.
        if self.left_bytes >= 0:
            self.answer.read_bytes += size
        return self.left_bytes >= 0

    def goes_on(self) -> bool:
        """Tell whether to read further; if not, the answer is cut."""
        goes_on = self._goes_on()
        self.answer.is_cut = self.answer.is_cut or not goes_on
        return goes_on

    def batches_of(self, segment: OpenSegment) -> Iterator[StoredBatch]:
        """Yield the batches of a segment of the log."""
        number, file, size = segment

        def payload_of(record: Record) -> bytes:
            # Pages that cannot be read count as zeros, so that the other batches are told all the
            # same.
            return read_around(file, record.payload_offset, record.end - record.payload_offset)

        return batches(scan_file(file, size, number, self.seed), payload_of, 0, size)

    def message(self, file: File, record: Record) -> Message | None:
        """Return the message of a record; None, and a count in the answer, if it is damaged."""
        payload = read_around(file, record.payload_offset, record.end - record.payload_offset)
        try:
            return decode_message(payload, record.flags, self._decoder)
        except ValueError:
            self.answer.damaged += 1
            return None

    def first_number(self, number: int, kind: Kind) -> int:
        """Return the number of a segment's first record of a kind; 0 if it has none."""
        with self.opened(number) as segment:
            if segment is None:
                return 0
            records = scan_file(
                *(segment.file, segment.size, number, self.seed), window_bytes=_FIRST_WINDOW_BYTES
            )
            return next(
                (one.number for one in records if isinstance(one, Record) and one.kind == kind), 0
            )
