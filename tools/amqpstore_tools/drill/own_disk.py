"""Whether a sync of the operator's own disk is one, as far as that can be seen without a power cut.

Small writes are synced one by one. The kernel counts what the device got of them, and a sync that
ends sooner than a write past all caches takes can have reached no disk. What a device does with a
flush it has accepted cannot be seen: only cutting its power shows that.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple

_SYNCS = 200
_WRITE_BYTES = 4096
_FILE_BYTES = 1 << 20
_MIN_SHARE = 0.25
"""A sync that takes less than this share of a write past the cache is too fast."""

_ESCAPED = re.compile(r"\\([0-7]{3})")
_MIN_S = 5e-6
"""No device answers sooner."""

_WRITES, _FLUSHES = 4, 15
"""Places in the `stat` of a block device."""

IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"}
_OF_OTHERS = {"overlay", "9p", "virtiofs", "nfs", "nfs4", "cifs", "smb3", "ceph", "zfs", "vboxsf"}
"""File systems whose syncs are done elsewhere: the kernel here knows of no device."""


class Mounted(NamedTuple):
    """The file system that a path is on: its kind, where it is mounted, and what from."""

    kind: str
    at: str
    source: str


class Syncs(NamedTuple):
    """The costs of some synced writes: the median time of a sync, that of a write past the cache,
    and the writes and flushes that the device has counted; None for what cannot be known.
    """

    number: int
    sync_s: float
    direct_s: float | None
    device: str
    writes: int | None
    flushes: int | None
    has_cache: bool


def mounted(path: str) -> Mounted:
    """Return the file system that a path is on. Raises: OSError."""
    real = os.path.realpath(path)
    found = Mounted("unknown", "/", "")
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            at = _ESCAPED.sub(lambda one: chr(int(one[1], 8)), before.split(" ")[4])
            kind, source = after.split(" ")[:2]
            is_above = os.path.commonpath([at, real]) == at
            # Of several on one place, the last one is seen.
            if is_above and len(at) >= len(found.at):
                found = Mounted(kind, at, source)
    return found


def unseen(found: Mounted) -> str:
    """Return why nothing can be known of a file system's syncs from here; empty if it can."""
    if found.kind in _OF_OTHERS or found.kind.startswith("fuse"):
        return f"{found.at} is {found.kind}: its syncs are done where this cannot see them"
    return ""


def measure(directory: str) -> Syncs:
    """Sync small writes in a new file there, which is removed. Raises: OSError."""
    descriptor, path = tempfile.mkstemp(prefix="amqpstore-syncs-", dir=directory)
    try:
        os.pwrite(descriptor, bytes(_FILE_BYTES), 0)
        os.fdatasync(descriptor)
        device = _device(descriptor, mounted(directory))
        before = _counted(device)
        times = [_timed_sync(descriptor, index) for index in range(_SYNCS)]
        after = _counted(device)
        return Syncs(
            _SYNCS,
            statistics.median(times),
            _direct_s(path),
            os.path.basename(os.path.realpath(device)) if device else "",
            after[0] - before[0] if before and after else None,
            after[1] - before[1] if before and after else None,
            _has_cache(device),
        )
    finally:
        os.close(descriptor)
        os.unlink(path)


def doubts(syncs: Syncs) -> Iterator[str]:
    """Yield why syncs cannot have been what they are to be."""
    took = f"{syncs.number} syncs of {_WRITE_BYTES} bytes, {1e6 * syncs.sync_s:.1f} us each"
    if syncs.writes is not None and syncs.writes < syncs.number // 2:
        yield f"{took}: the device {syncs.device} was written to {syncs.writes} times"
    elif syncs.flushes == 0 and syncs.has_cache:
        yield (
            f"{took}: the device {syncs.device} has a write cache, and was never told to flush it "
            "(is it mounted with nobarrier?)"
        )
    if syncs.direct_s is not None and syncs.sync_s < _MIN_SHARE * syncs.direct_s:
        yield f"{took}: a single write past the cache takes {1e6 * syncs.direct_s:.1f} us"
    elif syncs.sync_s < _MIN_S:
        yield f"{took}: no disk is that fast"


def _timed_sync(descriptor: int, index: int) -> float:
    os.pwrite(descriptor, os.urandom(_WRITE_BYTES), index * _WRITE_BYTES % _FILE_BYTES)
    began_s = time.perf_counter()
    os.fdatasync(descriptor)
    return time.perf_counter() - began_s


def _direct_s(path: str) -> float | None:
    """Return the median time of a write past the cache; None where there is no such thing."""
    times = []
    # O_DIRECT takes only aligned memory, as a page of its own is.
    with mmap.mmap(-1, _WRITE_BYTES) as page, contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
        try:
            for index in range(_SYNCS // 4):
                began_s = time.perf_counter()
                os.pwrite(descriptor, page, index * _WRITE_BYTES)
                times.append(time.perf_counter() - began_s)
        finally:
            os.close(descriptor)
    return statistics.median(times) if times else None


def _device(descriptor: int, found: Mounted) -> str:
    """Return the directory of the block device in /sys; empty if there is none."""
    # A btrfs has a number of its own, which is no device's: then the number of what is mounted
    # counts.
    numbers = [os.fstat(descriptor).st_dev]
    with contextlib.suppress(OSError):
        numbers.append(os.stat(found.source).st_rdev)
    for number in numbers:
        path = f"/sys/dev/block/{os.major(number)}:{os.minor(number)}"
        if number and os.path.exists(f"{path}/stat"):
            return path
    return ""


def _counted(device: str) -> tuple[int, int] | None:
    """Return the writes and flushes that a device has done; None if they are not counted."""
    try:
        with open(f"{device}/stat", encoding="ascii") as file:
            fields = file.read().split()
        return int(fields[_WRITES]), int(fields[_FLUSHES])
    except (OSError, IndexError, ValueError):
        return None


def _has_cache(device: str) -> bool:
    """Tell whether the kernel takes a device for one with a cache that must be flushed."""
    for path in (f"{device}/queue/write_cache", f"{device}/../queue/write_cache"):
        with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
            return file.read().strip() == "write back"
    return False
