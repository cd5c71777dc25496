"""Puts each file of a snapshot into a copy: as a hard link, or as bytes.

A file that is never written again is linked into the copy, if both are on the same file system. So
is a file that an earlier copy has already. The bytes of any other file, and of one that was removed
since it was pinned, are copied.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from amqpstore.errors import DamageError
from amqpstore.evidence import find_wrong_kinds
from amqpstore.identity import marker
from amqpstore.identity.marker import Marker
from amqpstore.system.filenames import CATALOG, CATALOG_FILE, QUARANTINE, TRAILS
from amqpstore.system.files import FileType, OsFiles, open_regular, type_of
from amqpstore.system.ownership import ROOT, owner_in
from amqpstore_tools.copying.errors import CopyError
from amqpstore_tools.copying.inventory import Inventory, InventoryFile
from amqpstore_tools.copying.manifest import CopyManifest, Listed
from amqpstore_tools.offline.locations import require_directory
from amqpstore_tools.offline.locks import shared_lock_if_free
from amqpstore_tools.offline.pinning import CANNOT_LINK, PinnedFile
from amqpstore_tools.offline.read_only_files import ReadOnlyFiles
from amqpstore_tools.offline.snapshot import Snapshot

_HEAD_BYTES = 64
"""The first bytes of a segment, which say when it was created."""


class How(Enum):
    """The way in which a file gets into a copy."""

    COPIED = "copied"
    LINKED = "linked"
    EARLIER = "earlier"


@dataclass
class FileCopy:
    """A part of a store, and how it gets into the copy.

    `file` has the bytes to copy; it is released if they were linked. `listed` is the file's entry
    in the earlier copy, if it was linked from there. `size` of the part, in bytes.
    """

    stored: InventoryFile
    how: How
    size: int
    mtime_ns: int
    file: PinnedFile
    listed: Listed | None = None


@dataclass
class Source:
    """The state of a store at the instant of the copy; `missing` are files that are lost, each with
    the reason.
    """

    directory: str
    marker: Marker
    was_running: bool
    inventory: Inventory
    copies: list[FileCopy] = field(default_factory=list)
    missing: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Earlier:
    """An earlier copy of the same store, in `directory`."""

    directory: str
    manifest: CopyManifest
    listed: dict[str, Listed]

    def find(self, stored: InventoryFile, source: os.stat_result, head: bytes) -> Listed | None:
        """Return its entry for a file, if that is the same file as the source's.

        Names of compacted segments may be reused after a restart: so size, time and the first
        bytes, which say when it was created, have to be equal too.
        """
        listed = self.listed.get(stored.path)
        if not listed or (listed.bytes, listed.mtime_ns) != (source.st_size, source.st_mtime_ns):
            return None
        try:
            with open(open_regular(os.path.join(self.directory, stored.path)), "rb") as file:
                same = os.fstat(file.fileno()).st_size == listed.bytes
                return listed if same and file.read(len(head)) == head else None
        except OSError:
            return None


@contextlib.contextmanager
def open_source(
    directory: str, target: str, *, links: bool, earlier: Earlier | None, is_locked: bool = False
) -> Iterator[Source]:
    """Pin the store in `directory` as it is now, and link what can be linked into `target`.

    If no broker has it open, brokers are kept out until its files are pinned.
    Args: is_locked, whether the caller has its lock.
    Raises: NotAStoreError, FormatVersionError, DamageError (its marker or its catalog),
    SnapshotError, CopyError, OSError.
    """
    require_directory(directory)
    store_marker = marker.require(OsFiles(), directory)
    if earlier and earlier.manifest.store_id != store_marker.store_id.hex:
        raise CopyError(f"{earlier.directory} is a copy of another store. Name one of {directory}.")
    with contextlib.ExitStack() as stack:
        lock = contextlib.nullcontext(False) if is_locked else shared_lock_if_free(directory)
        with lock as was_running:
            snapshot = _snapshot(directory)
            stack.callback(snapshot.close)
        inventory = Inventory(snapshot, store_marker)
        source = Source(directory, store_marker, was_running, inventory)
        source.missing += [(path, _why_missing(directory, path)) for path in inventory.missing]
        for wrong in find_wrong_kinds(ReadOnlyFiles(), directory):
            if wrong.name in (QUARANTINE, TRAILS):
                source.missing.append((wrong.name, wrong.reason))
        linker = _Linker(directory, target, links=links, earlier=earlier)
        for stored in inventory.entries:
            path = f"{directory}/{stored.found_as or stored.path}"
            if stored.found_as and not snapshot.files.find(path):
                snapshot.files.pin(os.path.dirname(path))
            if file := snapshot.files.find(path):
                source.copies.append(linker.copy(stored, file))
            elif not stored.is_optional:
                source.missing.append((stored.path, _why_missing(directory, stored.path)))
        yield source


def _snapshot(directory: str) -> Snapshot:
    catalog = os.path.join(directory, CATALOG, CATALOG_FILE)
    try:
        return Snapshot(directory)
    except FileNotFoundError as error:
        raise DamageError(
            catalog, 0, _why_missing(directory, f"{CATALOG}/{CATALOG_FILE}")
        ) from error
    except DamageError as error:
        raise DamageError(catalog, error.offset, error.reason) from error


def _why_missing(directory: str, path: str) -> str:
    """Return why there is no file of a path in a store."""
    found = type_of(os.path.join(directory, path))
    is_gone = found in (FileType.FILE, FileType.MISSING)
    return "it is missing" if is_gone else found.not_a_file


class _Linker:
    """Links files of the store in `source` into `target`, where possible."""

    def __init__(self, source: str, target: str, *, links: bool, earlier: Earlier | None) -> None:
        self._source = source
        self._target = target
        self._links = links
        self._earlier = earlier
        self._owner = owner_in(target)

    def copy(self, stored: InventoryFile, file: PinnedFile) -> FileCopy:
        """Raises: OSError."""
        found = file.stat()
        if (
            stored.is_sealed
            and self._may_read(found)
            and (linked := self._link(stored, file, found))
        ):
            file.release()
            return linked
        size = file.size() if stored.is_sealed else min(stored.size, file.size())
        return FileCopy(stored, How.COPIED, size, found.st_mtime_ns, file)

    def _may_read(self, found: os.stat_result) -> bool:
        """Tell whether the owner of a copy that root makes may read a file of this owner."""
        return os.geteuid() != ROOT or self._owner.uid in (ROOT, found.st_uid)

    def _link(
        self, stored: InventoryFile, file: PinnedFile, status: os.stat_result
    ) -> FileCopy | None:
        target = os.path.join(self._target, stored.path)
        size, mtime_ns = status.st_size, status.st_mtime_ns
        if self._earlier and (
            listed := self._earlier.find(stored, status, file.read(0, _HEAD_BYTES))
        ):
            try:
                os.link(os.path.join(self._earlier.directory, stored.path), target)
            except OSError as error:
                # The file has as many names as a file may have.
                if error.errno != errno.EMLINK:
                    raise
            else:
                return FileCopy(stored, How.EARLIER, size, mtime_ns, file, listed)
        if not self._links:
            return None
        try:
            file.link(target)
        except FileNotFoundError:
            return None  # The broker has removed it since: its bytes are still available here.
        except OSError as error:
            if error.errno not in CANNOT_LINK:
                raise
            # Any other reason is one for all files.
            self._links = error.errno == errno.EMLINK
            return None
        return FileCopy(stored, How.LINKED, size, mtime_ns, file)
