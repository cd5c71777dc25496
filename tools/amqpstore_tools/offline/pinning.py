"""Pinned files: their content stays readable, whatever a broker does meanwhile.

A file is pinned by an open descriptor, at its current size: the broker may append to it, or remove
it, and what is read here stays the same. The log's last segment is pinned as far as it was written:
behind that the broker overwrites zeros. That takes microseconds, one descriptor per file, and no
space on the disk; nothing has to be cleaned up after a crash. To keep a file longer than a process
lives, or for another machine, give the pinned file another name: see `ReadOnlyFile.link`.
"""

from __future__ import annotations

import errno
import os

from amqpstore.format.batches import written_end
from amqpstore.identity.expected_segments import log_segments
from amqpstore.system.filenames import SEGMENTS, is_spare, segment_number
from amqpstore.system.files import File, FileType, NotAFileError, OsFile, OsFiles, open_regular
from amqpstore_tools.offline.instant import allow_descriptors
from amqpstore_tools.offline.read_only_files import ReadOnlyFile, ReadOnlyFiles

CANNOT_LINK = frozenset(
    {
        errno.EXDEV,
        errno.EPERM,
        errno.EACCES,
        errno.EROFS,
        errno.EMLINK,
        errno.EOPNOTSUPP,
        errno.ENOSYS,
    }
)
"""Errors with which a file system refuses another name for a file; its bytes may still be
copied.
"""


class SizedFile(ReadOnlyFile):
    """A file at its size when it was pinned, whatever was appended to it since."""

    def __init__(self, path: str, descriptor: int, size: int) -> None:
        super().__init__(path, descriptor)
        self._size = size

    def read(self, offset: int, size: int) -> bytes:
        return super().read(offset, max(min(size, self._size - offset), 0))

    def size(self) -> int:
        return self._size


class PinnedFile(SizedFile):
    """A file of `PinnedFiles`, which shares its descriptor: `release` closes it, `close` does
    not.
    """

    def stat(self) -> os.stat_result:
        """Return the system's current status of the file."""
        return os.fstat(self.descriptor)

    def datasync(self) -> None:
        """Make the bytes that were read durable. Changes nothing, and takes no error away from the
        broker.
        """
        OsFile.datasync(self)

    def close(self) -> None:
        """Do nothing: others may have it open too."""

    def release(self) -> None:
        """Close it: files that the broker has removed free their disk space now."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class PinnedFiles(ReadOnlyFiles):
    """The files of some directories as they were when these were pinned; later files are not
    there.
    """

    def __init__(self) -> None:
        self._files: dict[str, PinnedFile] = {}
        self._names: dict[str, list[str]] = {}

    def pin(self, directory: str) -> None:
        """Pin all files that are in a directory now, except spare segments: a broker writes to one
        only as long as no other process has it open. Raises: SnapshotError, OSError.
        """
        names = super().list_directory(directory)
        is_store = os.path.basename(directory) == SEGMENTS
        if is_store:
            names = [name for name in names if not is_spare(name)]
        allow_descriptors(directory, len(self._files) + len(names))
        self._names[directory] = pinned = []
        last = max(log_segments(names), default=0) if is_store else 0
        for name in names:
            path = f"{directory}/{name}"
            try:
                descriptor = open_regular(path)
            except (NotAFileError, PermissionError):
                # Such as the directories that repairs leave in quarantine: listed, and not read.
                pass
            except FileNotFoundError:
                # A broker has removed it since the names were listed.
                continue
            else:
                is_last = segment_number(name) == last
                file = OsFile(path, descriptor)
                size = written_end(file) if is_last else file.size()
                self._files[path] = PinnedFile(path, descriptor, size)
            pinned.append(name)

    def open(self, path: str) -> File:
        if found := self.find(path):
            return found
        raise FileNotFoundError(errno.ENOENT, "it is not in the snapshot", path)

    def find(self, path: str) -> PinnedFile | None:
        """Return a file; None if it was not pinned."""
        return self._files.get(path)

    def sync_directory(self, path: str) -> None:
        """Sync a directory, so that new files that were read are durable too."""
        OsFiles.sync_directory(self, path)

    def list_directory(self, path: str) -> list[str]:
        return list(self._names.get(path, ()))

    def exists(self, path: str) -> bool:
        return path in self._files

    def type_of(self, path: str) -> FileType:
        return FileType.FILE if path in self._files else super().type_of(path)

    def size_of(self, path: str) -> int:
        return self._files[path].size() if path in self._files else 0

    def descriptors(self) -> dict[str, tuple[int, int]]:
        """Return the descriptor and the size of every file, by its path."""
        return {path: (file.descriptor, file.size()) for path, file in self._files.items()}

    def release(self) -> None:
        """Close every file."""
        for file in self._files.values():
            file.release()
        self._files.clear()
        self._names.clear()
