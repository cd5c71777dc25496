"""What one run added to an archive, as `_archive/NUMBER.json` has it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from tools.jobs.archive.layout import QueueName

FORMAT = 1


class FileEntry(msgspec.Struct, frozen=True):
    """A Parquet file: `path` from the archive's directory on. Times are in ms since 1970."""

    path: str
    queue_id: int
    rows: int
    bytes: int
    first_lsn: int
    last_lsn: int
    first_ms: int
    last_ms: int


class LogPosition(NamedTuple):
    """Where the next run goes on: an offset in a segment of the log, and the LSN there."""

    segment: int
    offset: int
    lsn: int


class Manifest(msgspec.Struct, frozen=True):
    """Of run `run`, which archived the log up to before `position`.

    `first_lsn` is that of the first batch that it found, 0: none. `missing` LSNs were not there any
    more, `damaged` places were left out, and `unreadable` messages have no content. `queues` are
    those of the store by id, `next_positions` where they go on, `deleted` those that were there
    before it. `staging` is where the files were before it was committed.
    """

    run: int
    store_id: str
    taken_ms: int
    position: LogPosition
    first_lsn: int
    batches: int
    missing: int
    damaged: int
    unreadable: int
    events: dict[str, int]
    queues: dict[int, QueueName]
    next_positions: dict[int, int]
    deleted: list[int]
    files: list[FileEntry]
    staging: str
    format: int = FORMAT


def encode(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1)


def decode(octets: bytes) -> Manifest:
    """Raises: ValueError."""
    found = msgspec.json.decode(octets, type=Manifest)
    if found.format != FORMAT:
        raise ValueError(f"it is of format {found.format}, and this version knows {FORMAT}")
    return found
