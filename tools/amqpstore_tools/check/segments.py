"""Checks one segment after another: its content, and the findings in it alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from crc32c import crc32c

from amqpstore.format.batches import torn_bytes
from amqpstore.format.records import HEADER, MAGIC, SEGMENT_PAYLOAD, Kind
from amqpstore.identity.identity import SegmentHeader
from amqpstore.system.filenames import is_compacted, segment_path
from amqpstore.system.files import Files
from amqpstore_tools.check.findings import Findings
from amqpstore_tools.check.reading import StoreFile
from amqpstore_tools.check.scanning import Scanned, Scanner

_MAX_LISTED = 100
"""Damaged places of one segment that are listed one by one."""


@dataclass
class CheckedSegment:
    """Segment `number` as far as it is part of the store: `end` bytes of its file.

    `is_open`: it is the log's last one and its end is not recorded, so its last batch may be torn.
    """

    number: int
    name: str
    end: int
    is_open: bool
    scanned: Scanned

    @property
    def is_compacted(self) -> bool:
        return is_compacted(self.number)

    def in_gap(self, offset: int) -> bool:
        """Tell whether an offset is in a damaged place, or behind the end."""
        gaps = self.scanned.gaps
        return offset >= self.end or any(gap.offset <= offset < gap.end for gap in gaps)


class SegmentReader:
    """Reads the segments of one store.

    Args: store_id, of 16 bytes, None if unknown; seed, of its checksums; measure, returns how large
    a body was before it was compressed, raises ValueError.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        findings: Findings,
        *,
        store_id: bytes | None,
        seed: int,
        measure: Callable[[bytes], int],
    ) -> None:
        self._files = files
        self._directory = directory
        self._findings = findings
        self._store_id = store_id
        self._seed = seed
        self._measure = measure

    def read(
        self, number: int, *, end: int | None, least: int, is_open: bool
    ) -> CheckedSegment | None:
        """Read a segment; None if its file is missing, which is a finding.

        Args: end, its recorded end, if any; least, its size according to the catalog.
        """
        name = segment_name(number)
        try:
            file = StoreFile(self._files, self._directory, name, self._findings)
        except FileNotFoundError:
            self._findings.add("segment-missing", name, "the file is missing")
            return None
        try:
            return self._read(file, number, end, least, is_open=is_open)
        finally:
            file.close()

    def _read(
        self, file: StoreFile, number: int, end: int | None, least: int, *, is_open: bool
    ) -> CheckedSegment:
        if file.size < max(end or 0, least):
            missing = f"it has {file.size} bytes, but {max(end or 0, least)} were written"
            self._findings.add("segment-short", file.name, missing, file.size)
        stop = file.size if end is None else min(end, file.size)
        scanned = self._scan(file.read, stop, number)
        segment = CheckedSegment(number, file.name, stop, is_open, scanned)
        torn, messages = _remove_torn(segment)
        if torn is not None:
            size = torn_bytes(file.read(torn, segment.end - torn))
            text = (
                f"the last batch is not complete: {size} bytes with {messages} whole messages are "
                "ignored. After a crash, nobody had been told that they are safe"
            )
            if not torn and (of := copied_from(file.read(0, HEADER.size), number)):
                text = f"it is a copy of segment {of}: its content is ignored"
                self._findings.add("segment-copied", file.name, text, 0)
            elif size:
                self._findings.add("batch-torn", file.name, text, torn)
            segment.end = torn
        # For a segment that a crash tore from its first byte on, recovery notes that nothing is
        # left.
        if torn != 0 and end != 0:
            self._check_header(segment)
        self._check_records(segment)
        if stop < file.size:
            self._check_behind_end(file, number, stop)
        return segment

    def _scan(self, read: Callable[[int, int], bytes], end: int, number: int) -> Scanned:
        scanner = Scanner(read, end, segment=number, seed=self._seed, measure=self._measure)
        return scanner.run()

    def _check_header(self, segment: CheckedSegment) -> None:
        """Check that the segment begins with a SEGMENT record, and has no other."""
        findings, name = self._findings, segment.name
        headers = segment.scanned.headers
        if not headers or headers[0][0]:
            text = "it does not begin with its SEGMENT record"
            findings.add("segment-header", name, text, 0)
        for offset, number, payload in headers:
            if offset:
                findings.add("segment-header", name, "it has a second SEGMENT record", offset)
            elif number != segment.number or len(payload) != SEGMENT_PAYLOAD.size:
                findings.add(
                    "segment-header", name, "its SEGMENT record belongs to another segment", offset
                )
            else:
                self._check_store(name, payload)

    def _check_store(self, name: str, payload: bytes) -> None:
        header = SegmentHeader.of_payload(payload)
        # If nothing says which store it is, each of its segments belongs to it.
        if reason := header.why_foreign(self._store_id or header.store_id):
            code = "store-id-differs" if header.is_readable else "segment-header"
            offset = HEADER.size + (4 if header.is_readable else 0)
            self._findings.add(code, name, f"{reason}: it is not read", offset)

    def _check_records(self, segment: CheckedSegment) -> None:
        findings, name = self._findings, segment.name
        gaps = segment.scanned.gaps
        for gap in gaps[:_MAX_LISTED]:
            text = f"{gap.end - gap.offset} bytes are not a record: {gap.reason}"
            findings.add("record-damaged", name, text, gap.offset)
        if rest := gaps[_MAX_LISTED:]:
            size = sum(gap.end - gap.offset for gap in rest)
            text = f"{size} bytes in {len(rest)} more places are not records"
            findings.add("record-damaged", name, text, rest[0].offset)
        for message_id, offset, reason, is_body in segment.scanned.unread:
            code = "body-damaged" if is_body else "message-malformed"
            findings.add(code, name, reason, offset, message_id=message_id, messages=1)

    def _check_behind_end(self, file: StoreFile, number: int, end: int) -> None:
        """Check the bytes after a recorded end: they are not part of the store, and should be
        torn."""

        def read(offset: int, size: int) -> bytes:
            return file.read(end + offset, size)

        for batch in self._scan(read, file.size - end, number).batches:
            if batch.is_whole:
                text = (
                    f"batch {batch.lsn} lies after the segment's recorded end, {end}, and is "
                    "complete"
                )
                self._findings.add("batch-behind-end", file.name, text, end + batch.start)


def has_message_at(file: StoreFile, offset: int, message_id: int) -> bool:
    """Tell whether the record at an offset looks like that of a message."""
    header = file.read(offset, HEADER.size)
    if len(header) < HEADER.size:
        return False
    magic, kind, _, _, number, *_ = HEADER.unpack(header)
    return bool(magic == MAGIC and kind == Kind.MESSAGE and number == message_id)


def copied_from(header: bytes, number: int) -> int:
    """Return the number that a file was written as, if it is another segment's; else 0."""
    if len(header) < HEADER.size:
        return 0
    magic, kind, _, _, of, written_in, _, checksum, _ = HEADER.unpack(header)
    is_sound = magic == MAGIC and kind == Kind.SEGMENT and crc32c(header[:24]) == checksum
    return int(of) if is_sound and of == written_in != number else 0


def segment_name(number: int) -> str:
    """Return the path of a segment, relative to the store's directory."""
    return segment_path("", number)


def _remove_torn(segment: CheckedSegment) -> tuple[int | None, int]:
    """Remove the torn batch at the end of the log from what was scanned. Returns its offset, None
    if there is none, and how many whole messages it has.
    """
    scanned = segment.scanned
    # Everything before a recorded end was durable: nothing of it can be torn.
    if not segment.is_open:
        return None, 0
    if not scanned.batches:
        # Only the start of a new segment.
        return (None if scanned.gaps else 0), 0
    last = scanned.batches[-1]
    if last.is_whole:
        return None, 0
    scanned.batches.pop()
    if last.is_blank and scanned.batches and not scanned.batches[-1].is_whole:
        # Zeros were there before: no batch was begun after that one.
        last = scanned.batches.pop()
    scanned.gaps = [gap for gap in scanned.gaps if gap.offset < last.start]
    scanned.unread = [one for one in scanned.unread if one.offset < last.start]
    for first, _ in last.messages:
        while scanned.runs and scanned.runs[-1].first_id >= first:
            scanned.runs.pop()
        if scanned.runs and scanned.runs[-1].end_id > first:
            run = scanned.runs[-1]
            scanned.runs[-1] = run._replace(sizes=run.sizes[: first - run.first_id])
    return last.start, sum(end - first for first, end in last.messages)
