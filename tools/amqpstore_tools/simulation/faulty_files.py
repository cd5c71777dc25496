"""Calls that fail once, at a counted place; and bits that are read flipped."""

from __future__ import annotations

import enum
import errno
import os
from collections.abc import Sequence

from amqpstore.catalog import Catalog, Change, Value
from amqpstore.errors import DurabilityError
from amqpstore.files import File, Files, Lock
from amqpstore_tools.simulation.memory_catalog import MemoryCatalog
from amqpstore_tools.simulation.memory_files import MemoryFile


class FaultKind(enum.Enum):
    """How a call fails. MEMORY raises a MemoryError. SHORT_WRITE writes the first half before the
    disk is full; DONE_ANYWAY does everything before the error; LOST writes nothing to the disk, now
    or later, but until the power is cut it reads as if it had: only on a simulated disk.
    """

    EIO = errno.EIO
    ENOSPC = errno.ENOSPC
    EMFILE = errno.EMFILE
    ENOMEM = errno.ENOMEM
    MEMORY = "no memory"
    SHORT_WRITE = "short write"
    DONE_ANYWAY = "done anyway"
    LOST = "lost"


NO_SPACE = (FaultKind.ENOSPC, FaultKind.SHORT_WRITE)
"""Faults of a full disk."""


class Faults:
    """Makes the n-th call fail, counted from 0 over all files and catalogs that share this.

    Only calls that begin with `of` are counted; `calls` are those made so far, as text. With a
    negative `nth` none of them fails.
    """

    def __init__(self, nth: int, kind: FaultKind = FaultKind.EIO, of: str = "") -> None:
        self.nth = nth
        self.kind = kind
        self._of = of
        self.calls: list[str] = []

    @property
    def has_struck(self) -> bool:
        """Whether the failing call was made."""
        return 0 <= self.nth < len(self.calls)

    def counts(self, call: str) -> bool:
        """Count a call. Returns whether it is the one that fails."""
        if not call.startswith(self._of):
            return False
        self.calls.append(call)
        return len(self.calls) - 1 == self.nth

    def error(self, path: str) -> OSError | MemoryError:
        """Return the error of the failing call."""
        if self.kind is FaultKind.MEMORY:
            return MemoryError(path)
        named = {FaultKind.SHORT_WRITE: errno.ENOSPC}
        is_named = isinstance(self.kind.value, int)
        number = self.kind.value if is_named else named.get(self.kind, errno.EIO)
        return OSError(number, os.strerror(number), path)

    def check(self, call: str, path: str) -> None:
        """Raises: OSError, MemoryError, when this is the failing call."""
        if self.counts(f"{call} {path}"):
            raise self.error(path)


class FaultyFile:
    """A file whose calls are counted by `faults`."""

    def __init__(self, file: File, faults: Faults) -> None:
        self.path = file.path
        self._file = file
        self._faults = faults

    def append(self, buffers: Sequence[bytes]) -> None:
        if not self._faults.counts(f"append {self.path}"):
            self._file.append(buffers)
            return
        content = b"".join(buffers)
        if self._faults.kind is FaultKind.SHORT_WRITE:
            self._file.append([content[: len(content) // 2]])
        elif self._faults.kind is FaultKind.DONE_ANYWAY:
            self._file.append([content])
        raise self._faults.error(self.path)

    def datasync(self) -> None:
        if not self._faults.counts(f"datasync {self.path}"):
            self._file.datasync()
            return
        if self._faults.kind is FaultKind.DONE_ANYWAY:
            self._file.datasync()
        elif self._faults.kind is FaultKind.LOST and isinstance(self._file, MemoryFile):
            self._file.fail_sync()
        raise self._faults.error(self.path)

    def drop_cache(self) -> None:
        self._file.drop_cache()

    def read(self, offset: int, size: int) -> bytes:
        self._faults.check("read", self.path)
        return self._file.read(offset, size)

    def size(self) -> int:
        self._faults.check("size", self.path)
        return self._file.size()

    def close(self) -> None:
        self._file.close()


class FaultyFiles:
    """Files whose calls, and those of the files opened through it, are counted by `faults`."""

    def __init__(self, files: Files, faults: Faults) -> None:
        self._files = files
        self._faults = faults

    def make_directory(self, path: str) -> None:
        self._faults.check("make_directory", path)
        self._files.make_directory(path)

    def list_directory(self, path: str) -> list[str]:
        self._faults.check("list_directory", path)
        return self._files.list_directory(path)

    def exists(self, path: str) -> bool:
        return self._files.exists(path)

    def create(self, path: str) -> FaultyFile:
        self._faults.check("create", path)
        return FaultyFile(self._files.create(path), self._faults)

    def open(self, path: str) -> FaultyFile:
        self._faults.check("open", path)
        return FaultyFile(self._files.open(path), self._faults)

    def rename(self, old: str, new: str) -> None:
        self._faults.check("rename", old)
        self._files.rename(old, new)

    def remove(self, path: str) -> None:
        self._faults.check("remove", path)
        self._files.remove(path)

    def free_bytes(self, path: str) -> int:
        return self._files.free_bytes(path)

    def allocate(self, path: str, size: int) -> None:
        self._faults.check("allocate", path)
        self._files.allocate(path, size)

    def sync_directory(self, path: str) -> None:
        self._faults.check("sync_directory", path)
        self._files.sync_directory(path)

    def lock(self, path: str, holder: str) -> Lock:
        self._faults.check("lock", path)
        return self._files.lock(path, holder)


class FaultyCatalog:
    """A catalog whose commits are counted by `faults`; a failing commit may take effect all the
    same.
    """

    def __init__(self, catalog: Catalog, faults: Faults, path: str) -> None:
        self._catalog = catalog
        self._faults = faults
        self._path = path

    def rows(self, table: str) -> dict[str, Value]:
        return self._catalog.rows(table)

    def commit(self, changes: Sequence[Change]) -> None:
        if not self._faults.counts(f"commit {self._path}"):
            self._catalog.commit(changes)
            return
        if self._faults.kind is FaultKind.DONE_ANYWAY:
            self._catalog.commit(changes)
        elif self._faults.kind is FaultKind.LOST and isinstance(self._catalog, MemoryCatalog):
            self._catalog.fail_commit(changes)
        error = self._faults.error(self._path)
        raise error if self._faults.kind in NO_SPACE else DurabilityError(self._path, error)

    def close(self) -> None:
        self._catalog.close()


class UnreadableFile:
    """A file with some unreadable bytes: see `UnreadableFiles`."""

    def __init__(self, file: File, place: UnreadableFiles) -> None:
        self.path = file.path
        self._file = file
        self._place = place

    def append(self, buffers: Sequence[bytes]) -> None:
        self._file.append(buffers)

    def datasync(self) -> None:
        self._file.datasync()

    def drop_cache(self) -> None:
        self._file.drop_cache()

    def read(self, offset: int, size: int) -> bytes:
        place = self._place
        if place.is_unreadable and offset < place.end and place.start < offset + size:
            raise OSError(errno.EIO, os.strerror(errno.EIO), self.path)
        return self._file.read(offset, size)

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()


class RottenFile:
    """A file with one flipped bit: see `RottenFiles`."""

    def __init__(self, file: File, rot: RottenFiles) -> None:
        self.path = file.path
        self._file = file
        self._rot = rot

    def append(self, buffers: Sequence[bytes]) -> None:
        self._file.append(buffers)

    def datasync(self) -> None:
        self._file.datasync()

    def drop_cache(self) -> None:
        self._file.drop_cache()

    def read(self, offset: int, size: int) -> bytes:
        content = self._file.read(offset, size)
        place = self._rot.offset - offset
        if not self._rot.is_rotten or not 0 <= place < len(content):
            return content
        flipped = bytes([content[place] ^ 1 << self._rot.bit])
        return content[:place] + flipped + content[place + 1 :]

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()


class _OtherFiles:
    """Files of which one is replaced by something else when it is opened."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path

    def open(self, path: str) -> File:
        file = self._files.open(path)
        return self._seen(file) if path == self._path else file

    def _seen(self, file: File) -> File:
        raise NotImplementedError

    def make_directory(self, path: str) -> None:
        self._files.make_directory(path)

    def list_directory(self, path: str) -> list[str]:
        return self._files.list_directory(path)

    def exists(self, path: str) -> bool:
        return self._files.exists(path)

    def create(self, path: str) -> File:
        return self._files.create(path)

    def rename(self, old: str, new: str) -> None:
        self._files.rename(old, new)

    def remove(self, path: str) -> None:
        self._files.remove(path)

    def free_bytes(self, path: str) -> int:
        return self._files.free_bytes(path)

    def allocate(self, path: str, size: int) -> None:
        self._files.allocate(path, size)

    def sync_directory(self, path: str) -> None:
        self._files.sync_directory(path)

    def lock(self, path: str, holder: str) -> Lock:
        return self._files.lock(path, holder)


class RottenFiles(_OtherFiles):
    """Files with a flipped bit, in the one at `path`: bit `bit` (0 to 7) of the byte at `offset`,
    while `is_rotten`.
    """

    def __init__(self, files: Files, path: str, offset: int, bit: int) -> None:
        super().__init__(files, path)
        self.offset = offset
        self.bit = bit
        self.is_rotten = True

    def _seen(self, file: File) -> File:
        return RottenFile(file, self)


class UnreadableFiles(_OtherFiles):
    """Files with unreadable bytes (EIO), in the one at `path`: `start` to before `end`, while
    `is_unreadable`.
    """

    def __init__(self, files: Files, path: str, start: int, end: int) -> None:
        super().__init__(files, path)
        self.start = start
        self.end = end
        self.is_unreadable = True

    def _seen(self, file: File) -> File:
        return UnreadableFile(file, self)
