"""A consistent state of a store that a broker runs on, taken without the broker's knowing.

What is held is the catalog as one of its commits left it, and every file of that state by an open
descriptor, at the size that it had then: the broker may append to it, or remove it, and what is
read here stays what it was. Descriptors were chosen over hard links, as those would have to be
made in a directory on the same file system, and be cleared away after a crash. It takes one
descriptor a file; the process's soft limit is raised to the hard one for them.

The catalog is copied to a temporary directory: a reader that LMDB knows of has to write to
`catalog/lock.mdb`, and one that it does not know of may see its pages given to a later commit. All
is taken between two looks at the number of the last commit. If they differ it is taken again: so
the log that was taken has no operation on a queue that the catalog does not know yet.

The end of the log may be on its way to the disk. The last segment is `fdatasync`ed after it was
read, as recovery does it, so that what is shown is durable; a batch that is there in part is left
out.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from contextlib import ExitStack

from amqpstore.errors import StoreError
from amqpstore.filenames import CATALOG, INDEX, QUARANTINE, SEGMENTS
from amqpstore.files import File, OsFile, OsFiles
from amqpstore.lmdb_pages import last_transaction
from tools.offline.catalog import FILE_NAME
from tools.offline.reading import ReadOnlyFile, ReadOnlyFiles

_ATTEMPTS = 200
_PAUSE_S = 0.02
_COPY_BYTES = 1 << 20


class SnapshotError(StoreError):
    """The broker changes its catalog faster than a snapshot can be taken."""

    def __init__(self, directory: str) -> None:
        super().__init__(
            f"no snapshot of {directory} could be taken between two commits of its catalog, in "
            f"{_ATTEMPTS} attempts. Try again when the broker has less to do, or stop it."
        )
        self.directory = directory


class _HeldFile(ReadOnlyFile):
    """A file as large as it was. Its descriptor is the snapshot's."""

    def __init__(self, path: str, descriptor: int, size: int) -> None:
        super().__init__(path, descriptor)
        self._size = size

    def read(self, offset: int, size: int) -> bytes:
        return super().read(offset, max(min(size, self._size - offset), 0))

    def size(self) -> int:
        return self._size

    def datasync(self) -> None:
        """What was read of it is durable. Changes nothing, and takes no error from the broker."""
        OsFile.datasync(self)

    def close(self) -> None:
        """Nothing: others may have it open too."""


class HeldFiles(ReadOnlyFiles):
    """The segments and index files of a snapshot; nothing that came later is there."""

    def __init__(self) -> None:
        self._files: dict[str, _HeldFile] = {}
        self._names: dict[str, list[str]] = {}

    def hold(self, directory: str) -> None:
        """Open all files that are in a directory now. Raises: OSError."""
        self._names[directory] = []
        for name in super().list_directory(directory):
            path = f"{directory}/{name}"
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except (FileNotFoundError, IsADirectoryError):
                continue
            size = os.fstat(descriptor).st_size
            self._files[path] = _HeldFile(path, descriptor, size)
            self._names[directory].append(name)

    def open(self, path: str) -> File:
        try:
            return self._files[path]
        except KeyError:
            raise FileNotFoundError(2, "it is not in the snapshot", path) from None

    def sync_directory(self, path: str) -> None:
        """What was read of new files is durable too."""
        OsFiles.sync_directory(self, path)

    def list_directory(self, path: str) -> list[str]:
        return list(self._names.get(path, ()))

    def exists(self, path: str) -> bool:
        return path in self._files

    def release(self) -> None:
        """Close every file."""
        for file in self._files.values():
            ReadOnlyFile.close(file)
        self._files.clear()


class Snapshot:
    """Of the store in `directory`: its `files`, and `catalog_path`, where a copy of its catalog is.

    Raises: SnapshotError, DamageError (the catalog cannot be told apart from a torn one), OSError.
    """

    def __init__(self, directory: str) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self._exit = ExitStack()
        temporary = tempfile.TemporaryDirectory(prefix="amqpstore-snapshot-")
        self.catalog_path = self._exit.enter_context(temporary)
        try:
            self.files = self._take(directory)
        except BaseException:
            self._exit.close()
            raise

    def close(self) -> None:
        """Let go of all files."""
        self._exit.close()

    def _take(self, directory: str) -> HeldFiles:
        catalog = os.path.join(directory, CATALOG, FILE_NAME)
        for _ in range(_ATTEMPTS):
            before = last_transaction(catalog)
            files = HeldFiles()
            try:
                _copy_file(catalog, os.path.join(self.catalog_path, FILE_NAME))
                for name in (SEGMENTS, INDEX, QUARANTINE):
                    files.hold(f"{directory}/{name}")
                if last_transaction(catalog) == before:
                    self._exit.callback(files.release)
                    return files
            except BaseException:
                files.release()
                raise
            files.release()
            time.sleep(_PAUSE_S)
        raise SnapshotError(directory)


def copy_catalog(directory: str, target: str) -> None:
    """Copy the catalog of a store, as one of its commits left it, to the directory `target`.

    Raises: SnapshotError, DamageError, OSError.
    """
    catalog = os.path.join(directory, CATALOG, FILE_NAME)
    for _ in range(_ATTEMPTS):
        before = last_transaction(catalog)
        _copy_file(catalog, os.path.join(target, FILE_NAME))
        if last_transaction(catalog) == before:
            return
        time.sleep(_PAUSE_S)
    raise SnapshotError(directory)


def _copy_file(source: str, target: str) -> None:
    """Copy the bytes of a file, its first ones first: LMDB's choice of a state is in them."""
    file = OsFiles().open(source)
    try:
        with open(target, "wb") as copy:
            offset = 0
            while content := file.read(offset, _COPY_BYTES):
                copy.write(content)
                offset += len(content)
    finally:
        file.close()
