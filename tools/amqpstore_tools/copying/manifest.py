"""The manifest of a copy: the file `COPY.json`, which the engine does not read."""

from __future__ import annotations

import json
import os

import msgspec

from amqpstore.system.files import NotAFileError, open_regular
from amqpstore_tools.copying.errors import CopyError

MANIFEST = "COPY.json"

VERSION = 1


class Listed(msgspec.Struct, frozen=True):
    """A file of a copy: `path` relative to its directory; CRC-32C of all of its bytes, in hex.

    `how` it was copied; `mtime_ns` of the original file.
    """

    path: str
    bytes: int
    crc32c: str
    how: str
    mtime_ns: int


class DamagedBytes(msgspec.Struct, frozen=True):
    """Bytes that were not a sound record in the store already: `offset` and `bytes` in its file."""

    path: str
    offset: int
    bytes: int
    reason: str


class CopyManifest(msgspec.Struct, frozen=True):
    """The manifest of one copy. `log_segment` and `log_offset` say where the copy's log ends.

    `trails` are the files in `trails/`, and `files` all others: versions that copied no trails
    expect to find what is in `files`, and nothing else.
    """

    copy: int
    store_id: str
    format_version: int
    taken_at: str
    source: str
    was_running: bool
    log_segment: int
    log_offset: int
    files: list[Listed]
    damage: list[DamagedBytes]
    trails: list[Listed] = []

    @property
    def all_files(self) -> list[Listed]:
        """All files of the copy."""
        return [*self.files, *self.trails]


def read(directory: str) -> CopyManifest | None:
    """Read the manifest of the copy in `directory`; None if it has none. Raises: CopyError."""
    path = os.path.join(directory, MANIFEST)
    try:
        with open(open_regular(path), "rb") as file:
            manifest = msgspec.convert(json.load(file), CopyManifest)
    except NotAFileError as error:
        raise CopyError(
            f"{path} should be the manifest of a copy, but {error.strerror}. Put the manifest "
            "back, or move this away: then the copy is a store like any other."
        ) from None
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CopyError(f"{path} cannot be parsed as the manifest of a copy: {error}") from None
    if manifest.copy != VERSION:
        raise CopyError(f"{path} is of version {manifest.copy}; this amqpstore reads {VERSION}")
    return manifest


def encode(manifest: CopyManifest) -> bytes:
    """Encode as JSON that people can read, too: in ASCII, as a path need not be UTF-8."""
    return json.dumps(msgspec.to_builtins(manifest), indent=1).encode()
