"""A consistent state of a store that a broker runs on, taken without the broker's knowing.

What is held is the catalog as one of its commits left it (see `instant`), and every file that was
there then by an open descriptor, at the size that it had: the broker may append to it, or remove
it, and what is read here stays what it was. Descriptors were chosen over hard links, as those would
have to be made in a directory on the same file system, and be cleared away after a crash. It takes
one descriptor a file.

The end of the log may be on its way to the disk. The last segment is `fdatasync`ed before it is
read, as recovery does it, so that what is shown is durable; a batch that is there in part is left
out.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack

from amqpstore.filenames import INDEX, QUARANTINE, SEGMENTS
from amqpstore.files import File, OsFile, OsFiles
from amqpstore_tools.offline.instant import allow_descriptors, at_one_instant
from amqpstore_tools.offline.reading import ReadOnlyFile, ReadOnlyFiles


class _HeldFile(ReadOnlyFile):
    """A file as large as it was. Its descriptor is the snapshot's."""

    def __init__(self, path: str, descriptor: int, size: int) -> None:
        super().__init__(path, descriptor)
        self.descriptor = descriptor
        self._size = size

    def read(self, offset: int, size: int) -> bytes:
        return super().read(offset, max(min(size, self._size - offset), 0))

    def size(self) -> int:
        return self._size

    def datasync(self) -> None:
        """Make what is read of it durable. Changes nothing, and takes no error from the broker."""
        OsFile.datasync(self)

    def close(self) -> None:
        """Nothing: others may have it open too."""


class HeldFiles(ReadOnlyFiles):
    """The segments and index files of a snapshot; nothing that came later is there."""

    def __init__(self) -> None:
        self._files: dict[str, _HeldFile] = {}
        self._names: dict[str, list[str]] = {}

    def hold(self, directory: str) -> None:
        """Open all files that are in a directory now. Raises: SnapshotError, OSError."""
        self._names[directory] = []
        names = super().list_directory(directory)
        allow_descriptors(directory, len(self._files) + len(names))
        for name in names:
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

    def descriptors(self) -> dict[str, tuple[int, int]]:
        """The descriptor and the size of every file, by its path."""
        return {path: (file.descriptor, file.size()) for path, file in self._files.items()}

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
        self.files = HeldFiles()
        self._exit = ExitStack()
        self._exit.callback(self.files.release)
        temporary = tempfile.TemporaryDirectory(prefix="amqpstore-snapshot-")
        self.catalog_path = self._exit.enter_context(temporary)
        try:
            at_one_instant(directory, self.catalog_path, lambda: self._hold(directory))
        except BaseException:
            self._exit.close()
            raise

    def close(self) -> None:
        """Let go of all files."""
        self._exit.close()

    def _hold(self, directory: str) -> None:
        self.files.release()
        for name in (SEGMENTS, INDEX, QUARANTINE):
            self.files.hold(f"{directory}/{name}")
