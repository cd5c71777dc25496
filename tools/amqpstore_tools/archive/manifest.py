"""The manifest of one run of an archive, stored as `_archive/NUMBER.json`."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec

from amqpstore_tools.archive.layout import QueueName, is_event_file, is_staging_name, manifest_name

FORMAT = 1

Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class FileEntry(msgspec.Struct, frozen=True):
    """A Parquet file: `path` relative to the archive's directory. Times are in ms since 1970."""

    path: str
    queue_id: Number
    rows: Number
    bytes: Number
    first_lsn: Number
    last_lsn: Number
    first_ms: Number
    last_ms: Number


class LogPosition(NamedTuple):
    """The position where the next run continues: an offset in a segment of the log, and the LSN
    there.
    """

    segment: Number
    offset: Number
    lsn: Number


class ArchiveManifest(msgspec.Struct, frozen=True):
    """The manifest of run `run`, which archived the log up to before `position`.

    `first_lsn` is that of the first batch that it found, 0 if none. `missing` LSNs no longer
    existed, `damaged` places were left out, and `unreadable` messages have no content. `queues` are
    those of the store by id, `next_positions` their next positions, `deleted` the queues that were
    deleted since the run before. `staging` is where the files were before the commit.
    """

    run: Number
    store_id: str
    taken_ms: Number
    position: LogPosition
    first_lsn: Number
    batches: Number
    missing: Number
    damaged: Number
    unreadable: Number
    events: dict[str, Number]
    queues: dict[Number, QueueName]
    next_positions: dict[Number, Number]
    deleted: list[Number]
    files: list[FileEntry]
    staging: str
    format: int = FORMAT


def encode(manifest: ArchiveManifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1)


def decode(octets: bytes, name: str) -> ArchiveManifest:
    """Decode a manifest. Args: name, of its file. Raises: ValueError, RecursionError."""
    found = msgspec.json.decode(octets, type=ArchiveManifest)
    if found.format != FORMAT:
        raise ValueError(f"it is of format {found.format}, and this version knows {FORMAT}")
    if manifest_name(found.run, "") != name:
        raise ValueError(f"it is of run {found.run}")
    # Files are renamed and removed by these names: none of them may lead out of the archive.
    if not is_staging_name(found.staging):
        raise ValueError(f"{found.staging!r} is not the name of a staging directory")
    for entry in found.files:
        if not is_event_file(entry.path):
            raise ValueError(f"{entry.path!r} is not the name of a file in an archive")
    return found
