"""The store that a directory is, by its marker, its catalog and its segments.

A store id is 16 random bytes, so two never agree by chance. A store is opened only if marker and
catalog agree: `check_catalog`. If they do not, or one of them is lost, the directory is still some
store's, and a tool that looks for its messages has to know which: they are sound only under the id
of their own store, as the checksums of all their records start with it. So then the segments
decide: `find_store_id`. FORMAT.md, "Which store it is", describes the same.

Opening, check, repair, copies, the offline tools and Spark all use this module.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from amqpstore.catalog.definitions import read_copy
from amqpstore.catalog.tables import RowsOf, StoreRows
from amqpstore.errors import DamageError
from amqpstore.format.records import HEADER, READ_VERSIONS, SEGMENT_PAYLOAD, Gap, Kind, record_at
from amqpstore.identity.marker import Marker
from amqpstore.system.filenames import CATALOG, SEGMENTS, segment_numbers, segment_path
from amqpstore.system.files import Files


class SegmentHeader(NamedTuple):
    """The content of a segment's SEGMENT record: format version and store id."""

    version: int
    store_id: bytes
    created_ms: int

    @classmethod
    def of_payload(cls, payload: bytes) -> SegmentHeader:
        """Decode the record's payload. Raises: ValueError."""
        if len(payload) != SEGMENT_PAYLOAD.size:
            raise ValueError("its header is not a segment's")
        return cls(*SEGMENT_PAYLOAD.unpack(payload))

    @property
    def is_readable(self) -> bool:
        """Whether its version can be read."""
        return self.version in READ_VERSIONS

    def why_foreign(self, store_id: bytes) -> str:
        """Return why nothing in the segment belongs to the store; empty if nothing says so."""
        if not self.is_readable:
            return f"its format version is {self.version}"
        if self.store_id != store_id:
            return f"it is of another store ({self.store_id.hex()})"
        return ""


def read_header(files: Files, path: str, number: int) -> SegmentHeader | Gap:
    """Read the SEGMENT record of segment `number`, or return why there is none.

    It works for any store: the checksums of this one record have no seed.
    Raises: OSError, unless the disk cannot read it (EIO).
    """
    file = files.open(path)
    try:
        content = file.read(0, HEADER.size + SEGMENT_PAYLOAD.size)
    except OSError as error:
        # A lack of descriptors says nothing of the file. An unreadable sector does.
        if error.errno != errno.EIO:
            raise
        return Gap(0, 0, str(error))
    finally:
        file.close()
    if not content:
        return Gap(0, 0, "it is empty")
    record = record_at(content, 0, number, 0)
    if isinstance(record, Gap):
        return record
    if record.kind != Kind.SEGMENT:
        return Gap(0, record.end, "it does not begin with a SEGMENT record")
    try:
        return SegmentHeader.of_payload(content[record.payload_offset : record.end])
    except ValueError as error:
        return Gap(0, record.end, str(error))


def check_catalog(directory: str, marked: Marker, rows_of: RowsOf) -> None:
    """Make sure that the catalog belongs to the store in the marker. Raises: DamageError.

    With another store's catalog every message in the segments would count as one of a deleted
    queue.
    """
    if reason := why_foreign_catalog(rows_of, marked.store_id.bytes):
        raise DamageError(os.path.join(directory, CATALOG), 0, reason)


def why_foreign_catalog(rows_of: RowsOf, store_id: bytes) -> str:
    """Return why the catalog does not belong to a store; empty if it does."""
    in_catalog = StoreRows.read(rows_of).store_id
    if in_catalog is None:
        return "the catalog is empty"
    if in_catalog != store_id:
        return f"the catalog belongs to another store ({in_catalog.hex()})"
    return ""


def find_store_id(
    files: Files, directory: str, *, in_marker: bytes | None, in_catalog: bytes | None
) -> bytes | None:
    """Return the id of a store, which may be damaged; None if nothing has it.

    1. If marker and catalog agree it is theirs, whatever the segments are: that is the store that a
       start opens.
    2. Otherwise the id that most segments have. Of several with equal numbers: the marker's, else
       the catalog's, else that of the segment with the lowest number.
    3. If no segment has one: the marker's, else the catalog's, else that of the copy of the
       definitions.

    The segments come before the marker, as it has no checksum: a flipped digit is another id.
    Raises: OSError.
    """
    # Two witnesses that agree outvote any number of segments, which may have been copied in from
    # elsewhere.
    if in_marker and in_marker == in_catalog:
        return in_marker
    in_segments = Counter(_ids_in_segments(files, directory))
    if in_segments:
        most = max(in_segments.values())
        # A Counter keeps the order in which it first met the ids.
        leading = [one for one, count in in_segments.items() if count == most]
        preferred = [one for one in (in_marker, in_catalog) if one in leading]
        return (preferred or leading)[0]
    if known := in_marker or in_catalog:
        return known
    with contextlib.suppress(DamageError):
        if copy := read_copy(files, directory):
            return copy.store_id
    return None


def _ids_in_segments(files: Files, directory: str) -> Iterator[bytes]:
    """Yield the id in each sound SEGMENT record, in the order of the segments' numbers."""
    names = files.list_directory(os.path.join(directory, SEGMENTS))
    for number in segment_numbers(names):
        with contextlib.suppress(FileNotFoundError):
            header = read_header(files, segment_path(directory, number), number)
            if isinstance(header, SegmentHeader):
                yield header.store_id
