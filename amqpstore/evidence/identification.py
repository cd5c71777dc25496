"""Identifies a file by its records, whatever its name and its directory: which store it belongs to,
and which of that store's files it is.

Each record names the segment, or the index file, that it was written for, and its checksum shows
which store it belongs to. So a file that was renamed, moved or swapped with another one (a copy in
`.bak`, what fsck puts in `lost+found/`, a segment in `quarantine/`) still says what it is.
"""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Collection, Iterator
from typing import NamedTuple

from amqpstore.format.index import BLOCK, MAX_FILE_BYTES
from amqpstore.format.records import (
    HEADER,
    MAGIC,
    SEGMENT_PAYLOAD,
    Gap,
    Kind,
    Record,
    checksum_seed,
    not_next,
    record_at,
)
from amqpstore.identity.identity import SegmentHeader
from amqpstore.system.filenames import (
    CATALOG,
    INDEX,
    QUARANTINE,
    RESERVE,
    SEGMENTS,
    TRAILS,
    TRANSIENT,
    index_path,
    is_spare,
    rejoin_number,
    repair_number,
    segment_path,
)
from amqpstore.system.files import File, Files, FileType

_WINDOW_BYTES = 1 << 20
_SEARCHED_BYTES = 64 << 20
"""How far into a file the first sound record is looked for: a segment has 16 MiB by default."""

_MAX_DEPTH = 8
"""How many directories deep files are looked for."""

_PASSED_OVER = (CATALOG, RESERVE, TRAILS, TRANSIENT)
"""Files and folders in which no such records are looked for. Records in `transient/` have numbers
of their own.
"""

_OURS = (SEGMENTS, INDEX, QUARANTINE)
"""Directories of a store that may be links to another disk."""


class FileKind(enum.Enum):
    """The kind of a file of records. The value is text for people."""

    SEGMENT = "segment"
    INDEX = "index file"


class IdentifiedFile(NamedTuple):
    """A file that has sound records of a store.

    `path` is as it was given; `number` is that of the segment or index file, and `queue_id` is 0
    for a segment. The first sound record starts at `offset`: 0, unless the start is damaged.
    """

    path: str
    kind: FileKind
    number: int
    queue_id: int
    store_id: bytes
    size: int
    offset: int

    def home(self, directory: str) -> str:
        """Return the path that it should have in the store in `directory`."""
        if self.kind is FileKind.SEGMENT:
            return segment_path(directory, self.number)
        return index_path(directory, self.queue_id, self.number)


def identify(
    files: Files, path: str, store_id: bytes, searched_bytes: int = _SEARCHED_BYTES
) -> IdentifiedFile | None:
    """Find out what a file is, by its first sound record; None if it has none of any store.

    Records other than the one at the start of a segment can only be recognised if they belong to
    the store `store_id`: the result's own `store_id` may be another.
    Raises: OSError, also for anything but a regular file.
    """
    file = files.open(path)
    try:
        # The header comes first: it names its store without a seed, so a file of another store is
        # recognised as such.
        return _by_header(file, path) or _by_record(file, path, store_id, searched_bytes)
    finally:
        file.close()


def find_files(
    files: Files,
    directory: str,
    store_id: bytes,
    *,
    but: Collection[str] = (),
    searched_bytes: int = _SEARCHED_BYTES,
) -> Iterator[IdentifiedFile]:
    """Yield each file below `directory` that has records of the store, whatever its name.

    Files that belong where they are come too: see `IdentifiedFile.home`. Of one segment there may
    be several files. Symbolic links are not followed, except those at the top, such as a
    `segments` on another disk. What cannot be read is left out.
    Nothing is yielded of what a repair replaced or a follower discarded: that was given up.
    Args: but, paths of files and directories that are not looked at; searched_bytes, how far into
    a file its first sound record is looked for.
    Raises: OSError, if a directory of the store cannot be listed.
    """
    for path in _walk(files, directory, but):
        # One unreadable file must not end the search for the others.
        with contextlib.suppress(OSError):
            identified = identify(files, path, store_id, searched_bytes)
            if identified and identified.store_id == store_id:
                yield identified


def _walk(
    files: Files, directory: str, but: Collection[str], depth: int = 0, *, given_up: bool = False
) -> Iterator[str]:
    """Yield the path of each regular file below a directory. Args: given_up, whether the directory
    is the one with what was given up.
    """
    names = []
    try:
        names = files.list_directory(directory)
    except OSError as error:
        # Somebody else's directories may be unreadable. If one of the store's own is, what is in
        # it would seem to be missing.
        is_ours = depth == 0 or (depth == 1 and os.path.basename(directory) in _OURS)
        if is_ours and not isinstance(error, PermissionError | FileNotFoundError):
            raise
    for name in names:
        path = f"{directory}/{name}"
        # A link could lead to another store, or in a circle.
        if files.is_link(path) and (depth or name not in _OURS):
            continue
        if path in but or (depth == 0 and name in _PASSED_OVER):
            continue
        if given_up and (repair_number(name) or rejoin_number(name)):
            continue
        kind = FileType.MISSING
        with contextlib.suppress(OSError):
            kind = files.type_of(path)
        if kind is FileType.DIRECTORY and depth < _MAX_DEPTH:
            is_quarantine = depth == 0 and name == QUARANTINE
            yield from _walk(files, path, but, depth + 1, given_up=is_quarantine)
        # Spares are old segments that wait to be used again: their records are sound and stand for
        # nothing.
        elif kind is FileType.FILE and not is_spare(name):
            yield path


def _by_header(file: File, path: str) -> IdentifiedFile | None:
    """Identify a segment by the SEGMENT record at its start: it works for any store."""
    content = file.read(0, HEADER.size + SEGMENT_PAYLOAD.size)
    found = _record(content, 0, 0)
    if not isinstance(found, Record) or found.kind != Kind.SEGMENT:
        return None
    try:
        header = SegmentHeader.of_payload(content[found.payload_offset : found.end])
    except ValueError:
        return None
    return IdentifiedFile(path, FileKind.SEGMENT, found.number, 0, header.store_id, file.size(), 0)


def _by_record(
    file: File, path: str, store_id: bytes, searched_bytes: int
) -> IdentifiedFile | None:
    """Identify a file by the first record in it that belongs to a store."""
    seed = checksum_seed(store_id)
    size = file.size()
    base = 0
    while base < min(size, searched_bytes):
        # An INDEX record is read whole, as its payload says which queue it is of.
        content = file.read(base, _WINDOW_BYTES + MAX_FILE_BYTES)
        # The start may be damaged: any later record says the same about the file.
        offset = content.find(MAGIC)
        while 0 <= offset < _WINDOW_BYTES:
            if found := _at(content, offset, seed):
                kind, number, queue_id = found
                return IdentifiedFile(path, kind, number, queue_id, store_id, size, base + offset)
            offset = content.find(MAGIC, offset + 1)
        base += _WINDOW_BYTES
    return None


def _at(content: bytes, offset: int, seed: int) -> tuple[FileKind, int, int] | None:
    """Return kind and number of the file, and the queue, that the record at `offset` was written
    for; None if it is not sound.

    A SEGMENT record does not count: its checksum has no seed, so a message may contain one.
    """
    found = _record(content, offset, seed)
    # A number that no store can have reached is not a record, whatever its checksum.
    if not isinstance(found, Record) or not_next(found.number, 0):
        return None
    (segment,) = HEADER.unpack_from(content, offset)[5:6]
    if found.kind in (Kind.MESSAGE, Kind.TRANSACTION):
        return FileKind.SEGMENT, segment, 0
    payload = content[found.payload_offset : found.end]
    if found.kind != Kind.INDEX or len(payload) < BLOCK.size:
        return None
    return FileKind.INDEX, segment, BLOCK.unpack_from(payload)[0]


def _record(content: bytes, offset: int, seed: int) -> Record | Gap:
    """Return the record at `offset`, whatever file it was written for, or why there is none."""
    if len(content) - offset < HEADER.size:
        return Gap(offset, offset, "shorter than a record's header")
    written_in = HEADER.unpack_from(content, offset)[5]
    return record_at(content, offset, written_in, seed)
