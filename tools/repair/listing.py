"""What is in a store's directory, with a digest of each file: so that a state can be told again."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator

from amqpstore.filenames import CATALOG, LOCK, QUARANTINE, RESERVE, TRANSIENT, repair_number

Listing = dict[str, list[object]]
"""By name, from the store's directory on: what it is (`file`, `directory`, `link`, `other`), its
size in bytes, and the SHA-256 of what is in it."""

_NO_PART = {LOCK, RESERVE, TRANSIENT, "reports", f"{CATALOG}/lock.mdb"}
"""What a repair neither reads nor changes, and what is in it means nothing to the store."""

_CHUNK_BYTES = 1 << 20

Tell = Callable[[str, int, int], None]


def listing(directory: str, tell: Tell = lambda *_: None) -> Listing:
    """Everything in a directory but what is no part of the store. Raises: OSError."""
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
    """What is said of one name. Raises: OSError."""
    found = os.lstat(path)
    if stat.S_ISDIR(found.st_mode):
        return ["directory", 0, ""]
    if stat.S_ISLNK(found.st_mode):
        return ["link", 0, hashlib.sha256(os.fsencode(os.readlink(path))).hexdigest()]
    if not stat.S_ISREG(found.st_mode):
        return ["other", 0, ""]
    digest = hashlib.sha256()
    size = 0
    with open(path, "rb", buffering=0) as file:
        while chunk := _read(file.fileno(), size):
            digest.update(chunk)
            size += len(chunk)
    return ["file", found.st_size, digest.hexdigest()]


def digest_of(found: Listing) -> str:
    """One digest of a whole listing, 64 hexadecimal digits."""
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def differences(before: Listing, after: Listing) -> list[str]:
    """Names of which two listings do not say the same, sorted."""
    return sorted(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    )


def _names(directory: str, prefix: str) -> Iterator[str]:
    for name in sorted(os.listdir(os.path.join(directory, prefix))):
        full = f"{prefix}{name}"
        if full in _NO_PART or (prefix == f"{QUARANTINE}/" and repair_number(name)):
            continue
        if full != QUARANTINE:
            # That it is there says nothing: what is in it does.
            yield full
        path = os.path.join(directory, full)
        if os.path.isdir(path) and not os.path.islink(path):
            yield from _names(directory, f"{full}/")


def _read(descriptor: int, offset: int) -> bytes:
    """A piece of a file. What the disk cannot read counts as zeros, like everywhere."""
    try:
        return os.pread(descriptor, _CHUNK_BYTES, offset)
    except OSError:
        size = min(_CHUNK_BYTES, os.fstat(descriptor).st_size - offset)
        return bytes(max(size, 0))
