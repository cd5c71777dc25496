"""Lists a store's directory with a digest of each file, so that its state can be recognised."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator

from amqpstore.system.filenames import (
    CATALOG,
    KEPT,
    LOCK,
    QUARANTINE,
    RESERVE,
    TRANSIENT,
    repair_number,
)

Listing = dict[str, list[object]]
"""By name, relative to the store's directory: the type (`file`, `directory`, `link`, `other`), the
size in bytes, and the SHA-256 of the content: for a file with gaps of zeros, as in sparse files,
that of the rest, and of its places.
"""

_IGNORED = {KEPT, LOCK, RESERVE, TRANSIENT, "reports", f"{CATALOG}/lock.mdb"}
"""Files that a repair neither reads nor changes; their content means nothing to the store."""

_CHUNK_BYTES = 1 << 20

Tell = Callable[[str, int, int], None]


def listing(directory: str, tell: Tell = lambda *_: None) -> Listing:
    """List everything in a directory that is part of the store. Raises: OSError."""
    names = list(_names(directory, ""))
    sizes = {name: os.lstat(os.path.join(directory, name)).st_size for name in names}
    total, done = sum(sizes.values()), 0
    found: Listing = {}
    for name in names:
        tell(name, done, total)
        found[name] = entry(os.path.join(directory, name))
        done += sizes[name]
    tell("", total, total)
    return found


def entry(path: str) -> list[object]:
    """Return the entry of one name. Raises: OSError."""
    found = os.lstat(path)
    if stat.S_ISDIR(found.st_mode):
        return ["directory", 0, ""]
    if stat.S_ISLNK(found.st_mode):
        return ["link", 0, hashlib.sha256(os.fsencode(os.readlink(path))).hexdigest()]
    # Such a file is not opened: a pipe would keep the repair waiting.
    if not stat.S_ISREG(found.st_mode):
        return ["other", 0, ""]
    with open(path, "rb", buffering=0) as file:
        return ["file", found.st_size, _digest_of_file(file.fileno(), found.st_size)]


def digest_of(found: Listing) -> str:
    """Return one digest of a whole listing, 64 hexadecimal digits."""
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def differences(before: Listing, after: Listing) -> list[str]:
    """Return the names whose entries differ, sorted."""
    return sorted(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    )


def _names(directory: str, prefix: str) -> Iterator[str]:
    for name in sorted(os.listdir(os.path.join(directory, prefix))):
        full = f"{prefix}{name}"
        if full in _IGNORED or (prefix == f"{QUARANTINE}/" and repair_number(name)):
            continue
        if full != QUARANTINE:
            # Its existence means nothing: its content does.
            yield full
        path = os.path.join(directory, full)
        if os.path.isdir(path) and not os.path.islink(path):
            yield from _names(directory, f"{full}/")


def _digest_of_file(descriptor: int, size: int) -> str:
    """Return the SHA-256 of a file in hexadecimal digits. Raises: OSError.

    Whole chunks of zeros are left out, and ranges without blocks are not even read: a file of one
    page may claim a size of a TiB.
    """
    digest = hashlib.sha256()
    gaps: list[tuple[int, int]] = []
    offset = 0
    while offset < size:
        end = _next_data(descriptor, offset, size) // _CHUNK_BYTES * _CHUNK_BYTES
        if end <= offset:
            chunk = _read(descriptor, offset, size)
            end = offset + len(chunk)
            if len(chunk) < _CHUNK_BYTES or chunk.count(0) < _CHUNK_BYTES:
                digest.update(chunk)
                offset = end
                continue
        start = gaps.pop()[0] if gaps and gaps[-1][1] == offset else offset
        gaps.append((start, end))
        offset = end
    if not gaps:
        return digest.hexdigest()
    return hashlib.sha256(digest.digest() + json.dumps(gaps).encode()).hexdigest()


def _next_data(descriptor: int, offset: int, size: int) -> int:
    """Return where the file's next block is, from an offset on; its size if none is left."""
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        # A file system that cannot tell reports everything as data.
        return size if error.errno == errno.ENXIO else offset


def _read(descriptor: int, offset: int, size: int) -> bytes:
    """Read a chunk of a file. What the disk cannot read counts as zeros, as elsewhere."""
    wanted = min(_CHUNK_BYTES, size - offset)
    try:
        return os.pread(descriptor, wanted, offset).ljust(wanted, b"\0")
    except OSError:
        return bytes(wanted)
