"""Calls that fail once, at a counted place; and bits that are read flipped."""

from __future__ import annotations

import enum
import errno
import os
from collections.abc import Sequence

from amqpstore.catalog.catalog import Catalog, Change, Value
from amqpstore.errors import DurabilityError
from amqpstore.system.files import File, Files, Lock
from amqpstore_tools.simulation.memory_catalog import MemoryCatalog
from amqpstore_tools.simulation.memory_files import MemoryFile
from amqpstore_tools.simulation.wrapped_files import WrappedFile, WrappedFiles


class FaultKind(enum.Enum):
    """The way in which a call fails. MEMORY raises a MemoryError. SHORT_WRITE writes the first half
    before the disk is full; DONE_ANYWAY does everything before the error; LOST writes nothing to
    the disk, now or later, but until the power is cut it reads as if it had: only on a simulated
    disk.
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


class FaultyFile(WrappedFile):
    """A file whose calls are counted by `faults`."""

    def __init__(self, file: File, faults: Faults) -> None:
        super().__init__(file)
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

    def fill(self, start: int, stop: int) -> None:
        if not self._faults.counts(f"fill {self.path}"):
            self._file.fill(start, stop)
            return
        if self._faults.kind is FaultKind.SHORT_WRITE:
            self._file.fill(start, (start + stop) // 2)
        elif self._faults.kind is FaultKind.DONE_ANYWAY:
            self._file.fill(start, stop)
        raise self._faults.error(self.path)

    def truncate(self, size: int) -> None:
        if not self._faults.counts(f"truncate {self.path}"):
            self._file.truncate(size)
            return
        if self._faults.kind is FaultKind.DONE_ANYWAY:
            self._file.truncate(size)
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

    def read(self, offset: int, size: int) -> bytes:
        self._faults.check("read", self.path)
        return self._file.read(offset, size)

    def size(self) -> int:
        self._faults.check("size", self.path)
        return self._file.size()


class FaultyFiles(WrappedFiles):
    """Files whose calls, and those of the files opened through it, are counted by `faults`."""

    def __init__(self, files: Files, faults: Faults) -> None:
        super().__init__(files)
        self._faults = faults

    def wrapped(self, file: File) -> FaultyFile:
        return FaultyFile(file, self._faults)

    def make_directory(self, path: str) -> None:
        self._faults.check("make_directory", path)
        super().make_directory(path)

    def list_directory(self, path: str) -> list[str]:
        self._faults.check("list_directory", path)
        return super().list_directory(path)

    def create(self, path: str) -> File:
        self._faults.check("create", path)
        return self.wrapped(super().create(path))

    def open(self, path: str) -> File:
        self._faults.check("open", path)
        return super().open(path)

    def recycle(self, old: str, new: str) -> File:
        if self._faults.counts(f"recycle {old}"):
            if self._faults.kind is FaultKind.DONE_ANYWAY:
                super().remove(old)
            raise self._faults.error(old)
        return self.wrapped(super().recycle(old, new))

    def rename(self, old: str, new: str) -> None:
        self._faults.check("rename", old)
        super().rename(old, new)

    def remove(self, path: str) -> None:
        self._faults.check("remove", path)
        super().remove(path)

    def allocate(self, path: str, size: int) -> None:
        self._faults.check("allocate", path)
        super().allocate(path, size)

    def sync_directory(self, path: str) -> None:
        self._faults.check("sync_directory", path)
        super().sync_directory(path)

    def lock(self, path: str, holder: str) -> Lock:
        self._faults.check("lock", path)
        return super().lock(path, holder)


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


class UnreadableFiles(WrappedFiles):
    """Files of which some bytes cannot be read.

    `bad` are paths, with the start and end of the bytes; a path with an empty range cannot be
    opened. It may change at any time. `number` is the error.
    """

    def __init__(self, files: Files, *bad: tuple[str, int, int], number: int = errno.EIO) -> None:
        super().__init__(files)
        self.bad = list(bad)
        self.number = number

    def wrapped(self, file: File) -> UnreadableFile:
        return UnreadableFile(file, self)

    def open(self, path: str) -> File:
        if (path, 0, 0) in self.bad:
            raise self.error(path)
        return super().open(path)

    def error(self, path: str) -> OSError:
        """Return the error for a file that cannot be read."""
        return OSError(self.number, os.strerror(self.number), path)


class UnreadableFile(WrappedFile):
    """A file of `UnreadableFiles`."""

    def __init__(self, file: File, files: UnreadableFiles) -> None:
        super().__init__(file)
        self._files = files

    def read(self, offset: int, size: int) -> bytes:
        for path, start, end in self._files.bad:
            if path == self.path and offset < end and start < offset + size:
                raise self._files.error(path)
        return self._file.read(offset, size)


class RottenFiles(WrappedFiles):
    """Files with a flipped bit, in the one at `path`: bit `bit` (0 to 7) of the byte at `offset`,
    while `is_rotten`.
    """

    def __init__(self, files: Files, path: str, offset: int, bit: int) -> None:
        super().__init__(files)
        self.path = path
        self.offset = offset
        self.bit = bit
        self.is_rotten = True

    def wrapped(self, file: File) -> File:
        return RottenFile(file, self) if file.path == self.path else file


class RottenFile(WrappedFile):
    """The file of `RottenFiles` with the flipped bit."""

    def __init__(self, file: File, rot: RottenFiles) -> None:
        super().__init__(file)
        self._rot = rot

    def read(self, offset: int, size: int) -> bytes:
        content = self._file.read(offset, size)
        index = self._rot.offset - offset
        if not self._rot.is_rotten or not 0 <= index < len(content):
            return content
        flipped = bytes([content[index] ^ 1 << self._rot.bit])
        return content[:index] + flipped + content[index + 1 :]
