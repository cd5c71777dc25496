"""A leader's store takes the place of a follower's own.

The files come under names of their own, and nothing of the follower's store is changed before all
of them are there:

1. each file of the copy is written under its name with `.new` behind it, and synced; then
   `segments/` and `index/` are. A crash leaves such files: those that are whole, and the same at
   the leader still, are not sent again;
2. the file `REPLACEMENT` is written, synced and renamed: it names the files, and has the rows of
   the catalog. From now on the follower's own store is given up;
3. each file is renamed to its name; segments, index files and kept segments that are not of the
   copy, and what was left of others, are removed; their directories are synced. A crash leaves
   some of these done, and the next start does the others;
4. one commit of the catalog puts the rows of the copy in the place of all rows but the term;
5. `REPLACEMENT` is removed. Before that, a start does 3 and 4 again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from crc32c import crc32c

from amqpstore.catalog.catalog import Catalog, Change
from amqpstore.errors import DamageError, RefusedCopyError
from amqpstore.replica.whole_copy import WholeCopy, is_copied_name
from amqpstore.system.durability import sync_directory, sync_file
from amqpstore.system.filenames import (
    INDEX,
    KEPT,
    REPLACEMENT,
    SEGMENTS,
    index_key,
    is_unfinished,
    kept_segment,
    segment_number,
)
from amqpstore.system.files import File, Files
from amqpstore.system.removal import attempt
from amqpstore.system.replacing import replace_file

_PIECE_BYTES = 1 << 20
_OWN = "term"
"""The row of the table `store` that a member keeps, whatever store it has."""


class Replacement:
    """The files of a copy while they are received; `received_bytes` of them are here."""

    def __init__(self, files: Files, directory: str) -> None:
        self.received_bytes = 0
        self._files = files
        self._directory = directory
        self._sizes: dict[str, int] = {}
        self._name = ""
        self._file: File | None = None

    def append(self, name: str, offset: int, content: bytes) -> None:
        """Take the next bytes of a file; at offset 0 it begins, and the one before is complete.

        Raises: RefusedCopyError, OSError; then abandon it. DurabilityError.
        """
        if not offset and name not in self._sizes and is_copied_name(name):
            self._end_file()
            # A copy that was cut off has left this file, which differs from what the leader has
            # now.
            if self._files.exists(self._path(name)):
                self._files.remove(self._path(name))
            self._file = self._files.create(self._path(name))
            self._name, self._sizes[name] = name, 0
        file = self._file
        # Bytes out of order would make a file of the right size with a hole in it.
        if file is None or name != self._name or offset != self._sizes[name]:
            raise self._refused(f"byte {offset} of {name!r} does not follow what was sent before")
        file.append([content])
        self._sizes[name] += len(content)
        self.received_bytes += len(content)

    def take_over(self, name: str, size: int) -> None:
        """Count a file that was received before, and is as the leader has it: see `received`.

        Raises: RefusedCopyError, OSError; then abandon it.
        """
        if name in self._sizes or not is_copied_name(name):
            raise self._refused(f"{name!r} does not follow what was sent before")
        file = self._files.open(self._path(name))
        try:
            if file.size() != size:
                raise self._refused(f"{name} has {file.size()} bytes, and not {size}")
        finally:
            file.close()
        self._sizes[name] = size
        self.received_bytes += size

    def check(self, copy: WholeCopy) -> None:
        """Raises: RefusedCopyError, if this is not what was received; then abandon it."""
        if copy.files != self._sizes:
            differing = {*copy.files.items()} ^ {*self._sizes.items()}
            name = min(name for name, _ in differing)
            raise self._refused(
                f"{name} should have {copy.files.get(name)} bytes, and {self._sizes.get(name)} came"
            )

    def decide(self, copy: WholeCopy) -> None:
        """Give up the store that is here for this one. Durable on return.

        Raises: OSError: then abandon it. DurabilityError.
        """
        self._end_file()
        for folder in (SEGMENTS, INDEX):
            # After a power cut a file whose name was not durable is gone, even if its bytes were
            # synced.
            sync_directory(self._files, f"{self._directory}/{folder}")
        # It is the point of no return: the files it names are durable before.
        replace_file(self._files, self._directory, REPLACEMENT, copy.encode())

    def suspend(self) -> None:
        """Keep the files that are whole, for a copy that goes on where this one was cut off."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
            # The file under way is not whole.
            attempt(self._files.remove, file.path)

    def abandon(self) -> None:
        """Remove what was received: the store stays as it is."""
        self.suspend()
        for name in self._sizes:
            attempt(self._files.remove, self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}.new"

    def _end_file(self) -> None:
        """Make the file durable that was received last. Raises: DurabilityError."""
        file, self._file = self._file, None
        if file is not None:
            try:
                sync_file(file)
            finally:
                file.close()

    def _refused(self, reason: str) -> RefusedCopyError:
        return RefusedCopyError(self._directory, reason)


def received(files: Files, directory: str) -> Iterator[tuple[str, int, int]]:
    """Yield the files that were received of a copy that was cut off, each when it is durable: its
    name relative to the directory, its size in bytes, and the CRC-32C of them.

    Raises: OSError, DurabilityError.
    """
    for folder in (SEGMENTS, INDEX):
        for unfinished in files.list_directory(f"{directory}/{folder}"):
            name = f"{folder}/{unfinished.removesuffix('.new')}"
            if is_unfinished(unfinished) and is_copied_name(name):
                file = files.open(f"{directory}/{folder}/{unfinished}")
                try:
                    # Whoever wrote it may have been killed before its sync, or after a failed one.
                    sync_file(file)
                    # Without this the checksum could be taken from the page cache, which a failed
                    # sync leaves looking sound.
                    file.drop_cache()
                    size, checksum = file.size(), 0
                    for offset in range(0, size, _PIECE_BYTES):
                        checksum = crc32c(file.read(offset, _PIECE_BYTES), checksum)
                finally:
                    file.close()
                yield name, size, checksum


def remove_unfinished(files: Files, directory: str) -> None:
    """Remove what was received of a copy that is not needed any more."""
    for folder in (SEGMENTS, INDEX):
        for name in files.list_directory(f"{directory}/{folder}"):
            if is_unfinished(name):
                attempt(files.remove, f"{directory}/{folder}/{name}")


def is_pending(files: Files, directory: str) -> bool:
    """Tell whether a store was given up for another one that is not in its place yet."""
    return files.exists(os.path.join(directory, REPLACEMENT))


def finish(files: Files, directory: str, catalog: Catalog) -> None:
    """Put a store in its place that is complete: steps 3 to 5. Durable on return.

    Raises: DamageError, DurabilityError, OSError; the next start does it again.
    """
    path = os.path.join(directory, REPLACEMENT)
    # Whoever renamed it may have been killed before that was durable.
    sync_directory(files, directory)
    copy = _read(files, path)
    for name in copy.files:
        # Where a crash ended this before, some have their names already.
        if files.exists(f"{directory}/{name}.new"):
            files.rename(f"{directory}/{name}.new", f"{directory}/{name}")
    for folder, number_in in ((SEGMENTS, segment_number), (INDEX, index_key)):
        for name in files.list_directory(f"{directory}/{folder}"):
            # Files of the old store that are not of the copy: left there, the next recovery would
            # find segments without a row.
            is_other = number_in(name) is not None and f"{folder}/{name}" not in copy.files
            if is_other or is_unfinished(name):
                files.remove(f"{directory}/{folder}/{name}")
        sync_directory(files, f"{directory}/{folder}")
    _remove_kept(files, os.path.join(directory, KEPT))
    # Files before rows: a crash before this commit leaves the rows of the store that was given up
    # beside the files of the other one, and only `REPLACEMENT` says so. So that goes last.
    catalog.commit(_changes(copy, catalog))
    files.remove(path)
    sync_directory(files, directory)


def _read(files: Files, path: str) -> WholeCopy:
    file = files.open(path)
    try:
        return WholeCopy.decode(file.read(0, file.size()))
    except ValueError as error:
        raise DamageError(path, 0, str(error)) from None
    finally:
        file.close()


def _remove_kept(files: Files, path: str) -> None:
    """Remove segments of a log that may not be this one."""
    if not files.exists(path):
        return
    for name in files.list_directory(path):
        if kept_segment(name) is not None:
            files.remove(f"{path}/{name}")
    sync_directory(files, path)


def _changes(copy: WholeCopy, catalog: Catalog) -> list[Change]:
    """Return what makes a catalog that of a copy, except for the term."""
    changes: list[Change] = []
    for table, rows in copy.tables.items():
        present = catalog.rows(table)
        kept = {_OWN} if table == "store" else set()
        changes += [Change(table, key, None) for key in present if key not in {*rows, *kept}]
        changes += [Change(table, key, row) for key, row in rows.items() if key not in kept]
    return changes
