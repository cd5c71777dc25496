"""That what is in a snapshot stays until it is copied: as a hard link, or as an open file.

A file that is never written again is linked into the copy, where that is on the same file system:
it then is the copy. Any other is opened, and so can be read even after it was removed. Both take
microseconds, so that a store is pinned before a busy broker's compaction gets anywhere.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from amqpstore.filenames import CATALOG, INDEX, MARKER, NEW_MARKER, QUARANTINE, SEGMENTS
from amqpstore.marker import Marker
from amqpstore_tools.copying.errors import CopyError
from amqpstore_tools.copying.manifest import MANIFEST, Listed, Manifest
from amqpstore_tools.copying.snapshot import Part, Snapshot, Source, open_source
from amqpstore_tools.offline.instant import allow_descriptors

INCOMPLETE = "COPY.incomplete"
"""Says that a directory is one that a copy was being made in. Removed behind the marker."""

FOLDERS = (SEGMENTS, INDEX, CATALOG, QUARANTINE)

_ATTEMPTS = 100

_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS}


class How(Enum):
    """How a file gets into a copy."""

    COPIED = "copied"
    LINKED = "linked"
    EARLIER = "earlier"


@dataclass
class Pinned:
    """A part of a store that cannot get lost any more.

    `descriptor` of what is to be copied, -1 of what is linked already. `listed` is what the earlier
    copy says of it, where it was linked from there. `size` in bytes, of the part.
    """

    part: Part
    how: How
    size: int
    mtime_ns: int
    descriptor: int = -1
    listed: Listed | None = None


@dataclass
class Pins:
    """A snapshot, all of whose files are pinned in `target`; `missing` are those that are lost."""

    source: str
    marker: Marker
    was_running: bool
    snapshot: Snapshot
    pinned: list[Pinned] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def close(self) -> None:
        """Close what is open."""
        for one in self.pinned:
            if one.descriptor >= 0:
                os.close(one.descriptor)
                one.descriptor = -1


@dataclass
class Earlier:
    """An earlier copy of the same store, in `directory`."""

    directory: str
    manifest: Manifest
    listed: dict[str, Listed]

    def find(self, part: Part, source: os.stat_result, head: bytes) -> Listed | None:
        """What it says of a file, if that is the same file as the source's.

        Names of compacted segments may be given again after a restart: so size, time and the first
        bytes, which say when it was begun, have to be the same too.
        """
        listed = self.listed.get(part.path)
        if not listed or (listed.bytes, listed.mtime_ns) != (source.st_size, source.st_mtime_ns):
            return None
        try:
            with open(os.path.join(self.directory, part.path), "rb") as file:
                same = os.fstat(file.fileno()).st_size == listed.bytes
                return listed if same and file.read(len(head)) == head else None
        except OSError:
            return None


def pin(
    directory: str, target: str, *, links: bool, earlier: Earlier | None, held: bool = False
) -> Pins:
    """Pin the store in `directory` as it is now, in `target`, which is there.

    Args: held, whether the caller has its lock.
    Raises: NotAStoreError, FormatVersionError, DamageError, SnapshotError, CopyError, OSError.
    """
    with open_source(directory, held=held) as source:
        for _ in range(_ATTEMPTS):
            snapshot = source.snapshot()
            if earlier and earlier.manifest.store_id != source.marker.store_id.hex:
                raise CopyError(
                    f"{earlier.directory} is a copy of another store. Name one of {directory}."
                )
            allow_descriptors(directory, len(snapshot.parts))
            pins = _Pinning(source, snapshot, target, links=links, earlier=earlier).run()
            if pins:
                return pins
            clear(target)
            make_folders(target)
        raise CopyError(f"files of {directory} are removed too fast. Try again when less is done.")


def make_folders(target: str) -> None:
    """The directories of a store."""
    for name in FOLDERS:
        os.makedirs(os.path.join(target, name), exist_ok=True)


def clear(target: str) -> None:
    """Remove what an incomplete copy consists of, and nothing else."""
    for path in _own_files(target):
        os.unlink(path)
    for name in FOLDERS:
        if os.path.isdir(path := os.path.join(target, name)) and not os.listdir(path):
            os.rmdir(path)


def _own_files(target: str) -> Iterator[str]:
    for name in (MARKER, NEW_MARKER, MANIFEST):
        if os.path.isfile(path := os.path.join(target, name)):
            yield path
    for name in FOLDERS:
        folder = os.path.join(target, name)
        if os.path.isdir(folder):
            yield from (entry.path for entry in os.scandir(folder) if entry.is_file())


class _Pinning:
    """One attempt."""

    def __init__(
        self,
        source: Source,
        snapshot: Snapshot,
        target: str,
        *,
        links: bool,
        earlier: Earlier | None,
    ) -> None:
        self._source = source
        self._target = target
        self._links = links
        self._earlier = earlier
        self._pins = Pins(
            source.directory,
            source.marker,
            source.is_running,
            snapshot,
            missing=list(snapshot.missing),
        )

    def run(self) -> Pins | None:
        """None where a file was removed and the catalog is another one now."""
        try:
            for part in self._pins.snapshot.parts:
                try:
                    self._pins.pinned.append(self._pin(part))
                except FileNotFoundError:
                    if part.is_optional:
                        continue
                    if not self._source.is_still(self._pins.snapshot):
                        self._pins.close()
                        return None
                    self._pins.missing.append(part.path)
        except BaseException:
            self._pins.close()
            raise
        return self._pins

    def _pin(self, part: Part) -> Pinned:
        path = os.path.join(self._source.directory, part.path)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if part.is_sealed and (linked := self._link(part, descriptor, found)):
                os.close(descriptor)
                return linked
        except BaseException:
            os.close(descriptor)
            raise
        size = found.st_size if part.is_sealed else min(part.size, found.st_size)
        return Pinned(part, How.COPIED, size, found.st_mtime_ns, descriptor)

    def _link(self, part: Part, descriptor: int, found: os.stat_result) -> Pinned | None:
        target = os.path.join(self._target, part.path)
        size, mtime_ns = found.st_size, found.st_mtime_ns
        if self._earlier:
            head = os.pread(descriptor, 64, 0)
            if listed := self._earlier.find(part, found, head):
                try:
                    os.link(os.path.join(self._earlier.directory, part.path), target)
                except OSError as error:
                    if error.errno != errno.EMLINK:
                        raise
                else:
                    return Pinned(part, How.EARLIER, size, mtime_ns, listed=listed)
        if not self._links:
            return None
        try:
            os.link(os.path.join(self._source.directory, part.path), target)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            self._links = error.errno == errno.EMLINK
            return None
        if os.stat(target).st_ino != found.st_ino:
            # Another file has come into its place: so the catalog is another one as well.
            raise FileNotFoundError(errno.ENOENT, "it was replaced", target)
        return Pinned(part, How.LINKED, size, mtime_ns)
