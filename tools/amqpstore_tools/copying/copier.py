"""A copy of a store: written, read back from the disk, and marked as a store only at the very end.

In this order, so that an interrupted copy is not a store, whenever it was interrupted:

1. `COPY.incomplete` in the target.
2. The files are pinned and linked (see `linking`), or written and synced. The log is cut after its
   last whole batch.
3. The catalog, as it was at that instant, in a file of its own.
4. Everything that was written is read back and compared; the checksums of all records are checked.
5. `COPY.json`; directories are synced.
6. The marker `STORE`, which makes it a store. `COPY.incomplete` is removed.

A new copy in a target with `COPY.incomplete` and without `STORE` removes the remains of the one
before.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from dataclasses import dataclass, field

from crc32c import crc32c

from amqpstore.catalog.backing import Backing
from amqpstore.catalog.catalog import encode_key
from amqpstore.catalog.definitions import COPIED, DefinitionsCopy, write_copy
from amqpstore.catalog.rows import encode_row
from amqpstore.catalog.tables import SEGMENT_ENDS, SegmentEndRow, StoreRows
from amqpstore.errors import DamageError, StoreError
from amqpstore.format.batches import whole_end
from amqpstore.format.records import Kind
from amqpstore.identity import marker
from amqpstore.system.filenames import (
    CATALOG,
    CATALOG_FILE,
    MARKER,
    QUARANTINE,
    SEGMENTS,
    TRAILS,
)
from amqpstore.system.files import OsFiles, create_file, naming
from amqpstore.system.ownership import Owner, give, give_directory, owner_in
from amqpstore_tools.copying import manifest as manifests
from amqpstore_tools.copying.checking import Checker
from amqpstore_tools.copying.errors import CopyError
from amqpstore_tools.copying.linking import Earlier, FileCopy, How, Source, open_source
from amqpstore_tools.copying.manifest import MANIFEST, CopyManifest, DamagedBytes, Listed
from amqpstore_tools.copying.target import FOLDERS, INCOMPLETE, clear, make_folders, names_in
from amqpstore_tools.offline.catalog import CatalogImage
from amqpstore_tools.offline.instant import Tables, read_tables, write_tables
from amqpstore_tools.offline.progress import Progress
from amqpstore_tools.offline.read_only_files import ReadOnlyFiles
from amqpstore_tools.offline.recovering import recover_image
from amqpstore_tools.offline.terminal import counted

_PIECE_BYTES = 1 << 20
CATALOG_PATH = f"{CATALOG}/{CATALOG_FILE}"


@dataclass(frozen=True)
class CopyOptions:
    """The options of a copy. `links`: files that never change become hard links, where possible.

    `against`, an earlier copy. `verify`: `new` files only, `all`, including those from the earlier
    copy, or `none`. `expected`, what the source is known to contain. `manifest`, whether the copy
    gets one; it requires verification. `refuse_damage`: fail if the store is damaged already.
    `is_locked`: the caller has the lock of the source. `owner`, to whom the copy belongs, if root
    makes it and its directory is new: by default that of the source.
    """

    links: bool = True
    against: str | None = None
    verify: str = "new"
    expected: CopyManifest | None = None
    manifest: bool = True
    refuse_damage: bool = False
    is_locked: bool = False
    owner: Owner | None = None


@dataclass
class Copied:
    """The result: bytes and files by how they were copied, and what was damaged already."""

    target: str
    store_id: str
    was_running: bool
    log_segment: int
    log_offset: int
    files: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    verified_bytes: int = 0
    damage: list[DamagedBytes] = field(default_factory=list)


def copy_store(
    directory: str, target: str, options: CopyOptions, progress: Progress = lambda *_: None
) -> Copied:
    """Copy the store in `directory`, whether or not a broker has it open, to `target`.

    `target` does not exist, is empty, or is an incomplete copy.
    Raises: CopyError, NotAStoreError, FormatVersionError, DamageError (the marker or the catalog),
    OSError. Then nothing is left in `target`, and nothing was changed in `directory`.
    """
    earlier = _earlier(options.against, target) if options.against else None
    made = _take(target)
    try:
        if made and os.path.isdir(directory):
            give_directory(target, options.owner or owner_in(directory))
        OsFiles().sync_directory(target)
        make_folders(target)
        with open_source(
            directory, target, links=options.links, earlier=earlier, is_locked=options.is_locked
        ) as source:
            return _Copy(source, target, options, earlier, progress).run()
    except BaseException:
        # An error here must not hide the first one.
        with contextlib.suppress(OSError):
            clear(target)
            os.unlink(os.path.join(target, INCOMPLETE))
            if made:
                os.rmdir(target)
        raise


def _earlier(directory: str, target: str) -> Earlier:
    """Raises: CopyError."""
    found = manifests.read(directory)
    if found is None or not os.path.exists(os.path.join(directory, MARKER)):
        raise CopyError(
            f"{directory} is not a finished copy: it has no {MANIFEST} or no {MARKER}. Copy "
            "without --against, or name another one."
        )
    parent = os.path.dirname(os.path.abspath(target))
    if os.path.isdir(parent) and os.stat(parent).st_dev != os.stat(directory).st_dev:
        raise CopyError(
            f"{directory} and {target} are on two file systems: unchanged files cannot be shared. "
            "Copy without --against, or to where the earlier copy is."
        )
    return Earlier(directory, found, {listed.path: listed for listed in found.all_files})


def _take(target: str) -> bool:
    """Mark the target as an incomplete copy. Returns whether it was created. Raises: CopyError,
    OSError.
    """
    made = not os.path.lexists(target)
    if made:
        OsFiles().make_directory(target)
    elif not os.path.isdir(target):
        raise CopyError(f"{target} is not a directory. Name a new or an empty one.")
    names = names_in(target)
    # With both names it is whole: a crash came before the removal of `COPY.incomplete`.
    if names and (INCOMPLETE not in names or MARKER in names):
        what = "a store" if MARKER in names else "not empty"
        raise CopyError(f"{target} is {what}. Name a new or an empty directory.")
    clear(target)
    path = os.path.join(target, INCOMPLETE)
    try:
        with naming(path), open(path, "w", encoding="utf-8") as file:
            give(file.fileno(), target)
            file.write("A copy of a store is made here, or left unfinished.\n")
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(path)
            if made:
                os.rmdir(target)
        raise
    return made


class _Copy:
    """Makes one copy of a store, all of whose files are pinned."""

    def __init__(
        self,
        source: Source,
        target: str,
        options: CopyOptions,
        earlier: Earlier | None,
        progress: Progress,
    ) -> None:
        self._source = source
        self._from = source.directory
        self._store_id = source.marker.store_id.bytes
        self._target = target
        self._options = options
        self._earlier = earlier
        self._progress = progress
        self._checker = Checker(self._store_id, source.inventory)
        expected = options.expected.all_files if options.expected else []
        self._expected = {one.path: one for one in expected if one.path != CATALOG_PATH}
        position = source.inventory.position
        self._out = Copied(
            target, self._store_id.hex(), source.was_running, position.segment, position.offset
        )
        for part in source.inventory.entries:
            if part.end is not None and part.is_of_log_from(position.segment):
                self._out.log_segment, self._out.log_offset = part.number, part.end
        self._listed: list[Listed] = []
        self._done = 0
        self._total = 0

    def run(self) -> Copied:
        self._out.damage += [
            DamagedBytes(path, 0, 0, reason) for path, reason in self._source.missing
        ]
        self._total = sum(self._work(one) for one in self._source.copies)
        # Files whose bytes are copied come first: until then each holds a descriptor, and the
        # space of what the broker has removed since.
        for copy in sorted(self._source.copies, key=lambda one: one.how is not How.COPIED):
            self._file(copy)
        if gone := self._expected.keys() - {listed.path for listed in self._listed}:
            raise CopyError(
                f"{min(gone)} in {self._from} is missing or empty. That copy is damaged; "
                "use another one."
            )
        self._catalog()
        self._compare_log()
        if self._options.refuse_damage and self._out.damage:
            first = self._out.damage[0]
            raise CopyError(
                f"{self._from} is damaged in {counted(len(self._out.damage), 'place')}, the "
                f"first in {first.path} at {first.offset}: {first.reason}. Use another copy, or "
                "accept that with --damaged."
            )
        self._finish()
        return self._out

    def _work(self, one: FileCopy) -> int:
        """Return the bytes to read and write for a file."""
        if one.how is How.COPIED:
            return one.size * (2 if self._options.verify != "none" else 1)
        return one.size if self._is_verified(one) else 0

    def _is_verified(self, one: FileCopy) -> bool:
        verify = self._options.verify
        return verify == "all" or (verify == "new" and one.how is not How.EARLIER)

    def _file(self, copy: FileCopy) -> None:
        path = os.path.join(self._target, copy.stored.path)
        checksum = None
        if copy.how is How.COPIED:
            if copy.stored.is_tail:
                self._cut_tail(copy)
                if not copy.size:
                    return
            checksum = self._write(copy, path)
        if self._is_verified(copy):
            content = self._read(path, copy)
            read_checksum = crc32c(content)
            if checksum is not None and read_checksum != checksum:
                raise CopyError(
                    f"{path} does not read back as it was written. Its disk cannot be "
                    "trusted; copy to another one."
                )
            self._check_expected(copy, len(content), read_checksum)
            self._out.damage += self._checker.check(copy.stored, content)
            self._out.verified_bytes += len(content)
            self._list(copy, read_checksum)
        elif copy.listed:
            self._list(copy, int(copy.listed.crc32c, 16))
            if self._earlier:
                of_file = [d for d in self._earlier.manifest.damage if d.path == copy.stored.path]
                self._out.damage += of_file
        how = copy.how.value
        self._out.files[how] = self._out.files.get(how, 0) + 1
        self._out.bytes[how] = self._out.bytes.get(how, 0) + copy.size

    def _check_expected(self, one: FileCopy, size: int, checksum: int) -> None:
        """Raises: CopyError."""
        listed = one.listed or self._expected.get(one.stored.path)
        if listed is None:
            if self._expected:
                raise CopyError(
                    f"{one.stored.path} in {self._from} is not in its {MANIFEST}. If a broker "
                    f"has run on that copy, remove {MANIFEST}: then it is a store like any other."
                )
            return
        if (listed.bytes, listed.crc32c) != (size, f"{checksum:08x}"):
            of = self._earlier.directory if one.listed and self._earlier else self._from
            raise CopyError(
                f"{one.stored.path} in {of} has changed since it was copied: it has {size} bytes "
                f"with checksum {checksum:08x}, and {listed.bytes} with {listed.crc32c} were "
                "written. That copy is damaged; use another one."
            )

    def _cut_tail(self, one: FileCopy) -> None:
        """Leave out what follows the log's last whole batch."""
        position = self._source.inventory.position
        start = position.offset if one.stored.number == position.segment else 0
        content = one.file.read(0, one.size)
        before: dict[int, int] = {
            Kind.MESSAGE: position.message_id - 1,
            Kind.TRANSACTION: position.lsn - 1,
        }
        seed = self._source.marker.seed
        one.size = max(whole_end(content, one.stored.number, seed, start, before), start)
        one.size = min(one.size, len(content))
        if one.size:
            self._out.log_segment, self._out.log_offset = one.stored.number, one.size

    def _write(self, one: FileCopy, path: str) -> int:
        """Copy a file's bytes, durably. Returns their checksum. Raises: CopyError, OSError."""
        checksum = offset = 0
        with naming(path), open(create_file(path), "wb", buffering=0) as file:
            while offset < one.size:
                piece = one.file.read(offset, min(_PIECE_BYTES, one.size - offset))
                if not piece:
                    raise CopyError(f"{one.stored.path} became shorter while it was copied")
                checksum = crc32c(piece, checksum)
                _write_all(file.fileno(), piece)
                offset += len(piece)
                self._advance("copying", len(piece))
            os.fsync(file.fileno())
        # A later copy tells by it whether the file is the same: see `Earlier.find`.
        os.utime(path, ns=(one.mtime_ns, one.mtime_ns))
        one.file.release()
        return checksum

    def _read(self, path: str, one: FileCopy) -> bytes:
        """Read a file's bytes from the disk to which they were just written."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if one.how is How.COPIED:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            content = _read_all(descriptor, one.size)
        finally:
            os.close(descriptor)
        self._advance("verifying", len(content))
        return content

    def _list(self, one: FileCopy, checksum: int) -> None:
        self._listed.append(
            Listed(one.stored.path, one.size, f"{checksum:08x}", one.how.value, one.mtime_ns)
        )

    def _advance(self, what: str, count: int) -> None:
        self._done += count
        self._progress(what, self._done, self._total)

    def _catalog(self) -> None:
        """Write the catalog of the copy, and read it back. Raises: DamageError."""
        path = os.path.join(self._target, CATALOG_PATH)
        folder = os.path.dirname(path)
        tables = self._tables()
        write_tables(folder, tables)
        self._definitions()
        if self._options.verify == "none":
            return
        if read_tables(folder) != tables:
            raise DamageError(path, 0, "it does not read back as it was written")
        with open(path, "rb") as file:
            content = file.read()
        self._listed.append(
            Listed(CATALOG_PATH, len(content), f"{crc32c(content):08x}", "copied", 0)
        )

    def _compare_log(self) -> None:
        """Compare the log of the copy with its trails, which know what was durable."""
        folder = os.path.join(self._target, CATALOG)
        if self._options.verify == "none" or not os.listdir(os.path.join(self._target, TRAILS)):
            return
        with contextlib.closing(
            CatalogImage(folder, plain=self._source.marker.is_plain)
        ) as catalog:
            backing = Backing.of(ReadOnlyFiles(), self._target, self._store_id, catalog)
            # Damage that ends it is not the copy's, and was found before.
            with contextlib.closing(backing.descriptors), contextlib.suppress(StoreError):
                if found := recover_image(backing, catalog).report.shortfall:
                    # Not of one file: a later copy may share it, after a repair of the store.
                    self._out.damage.append(DamagedBytes(SEGMENTS, 0, 0, found.text))

    def _tables(self) -> Tables:
        """Return the rows of the catalog as they were; and where the copy of the log ends.

        Its torn tail was left out, so everything before that end was durable, as after a recovery:
        unsound bytes in it are damage. Without that row they would be the copy's torn tail.
        """
        found = dict(self._source.inventory.tables)
        position = self._source.inventory.position.segment
        log = [
            one for one in self._source.copies if one.stored.is_of_log_from(position) and one.size
        ]
        last = max(log, key=lambda one: one.stored.number, default=None)
        if last is not None and last.stored.end is None:
            end = SEGMENT_ENDS.put(last.stored.number, SegmentEndRow(last.size))
            table, key = end.table.encode(), encode_key(end.key)
            row = key, encode_row(end.table, key, end.value)
            found[table] = sorted([*found.get(table, []), row])
        return found

    def _definitions(self) -> None:
        """Write the definitions beside the catalog, as a store would: see
        `amqpstore.catalog.definitions`.
        """
        rows = self._source.inventory.rows
        next_queue_id = StoreRows.read(rows).next_queue_id or 1
        tables = {table: rows(table) for table in COPIED}
        copy = DefinitionsCopy(self._store_id, next_queue_id, tables)
        write_copy(OsFiles(), self._target, copy)

    def _finish(self) -> None:
        files = OsFiles()
        for name in (QUARANTINE, TRAILS):
            if not os.listdir(folder := os.path.join(self._target, name)):
                os.rmdir(folder)
        if self._options.manifest:
            self._write_manifest()
        for name in FOLDERS:
            if os.path.isdir(folder := os.path.join(self._target, name)):
                files.sync_directory(folder)
        # The directory's name is durable, too, before the marker makes it a store.
        files.sync_directory(os.path.dirname(os.path.abspath(self._target)))
        marker.write(files, self._target, *self._source.marker)
        os.unlink(os.path.join(self._target, INCOMPLETE))
        files.sync_directory(self._target)

    def _write_manifest(self) -> None:
        listed = sorted(self._listed, key=lambda listed: listed.path)
        trails = [one for one in listed if os.path.dirname(one.path) == TRAILS]
        encoded = manifests.encode(
            CopyManifest(
                copy=manifests.VERSION,
                store_id=self._out.store_id,
                format_version=self._source.marker.version,
                taken_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                source=os.path.abspath(self._from),
                was_running=self._out.was_running,
                log_segment=self._out.log_segment,
                log_offset=self._out.log_offset,
                files=[one for one in listed if one not in trails],
                damage=self._out.damage,
                trails=trails,
            )
        )
        path = os.path.join(self._target, MANIFEST)
        with naming(path), open(create_file(path), "wb") as file:
            file.write(encoded)
            file.flush()
            os.fsync(file.fileno())


def _read_all(descriptor: int, size: int) -> bytes:
    pieces = []
    offset = 0
    while offset < size and (piece := os.pread(descriptor, size - offset, offset)):
        pieces.append(piece)
        offset += len(piece)
    return b"".join(pieces)


def _write_all(descriptor: int, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(descriptor, view) :]
