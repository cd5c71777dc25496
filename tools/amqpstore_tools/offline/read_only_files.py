"""Files that can only be read."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import NoReturn

from amqpstore.system.files import (
    File,
    FileType,
    Lock,
    NotAFileError,
    OsFile,
    OsFiles,
    open_regular,
)


class ReadOnlyFile(OsFile):
    """A file that can only be read. Its `datasync` does nothing: nothing was written."""

    def append(self, _buffers: Sequence[bytes]) -> NoReturn:
        _refuse(self.path)

    def fill(self, _start: int, _stop: int) -> NoReturn:
        _refuse(self.path)

    def truncate(self, _size: int) -> NoReturn:
        _refuse(self.path)

    def datasync(self) -> None:
        """Do nothing: nothing was written."""

    def link(self, path: str) -> None:
        """Give the file another name, even if it has lost its own by now.

        Raises: FileNotFoundError, if it has no name left at all; OSError, if it cannot have another
        one.
        """
        descriptors = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Python follows the link in /proc only if it gets a directory descriptor.
            os.link(str(self.descriptor), path, src_dir_fd=descriptors, follow_symlinks=True)
        finally:
            os.close(descriptors)


class ReadOnlyFiles(OsFiles):
    """The real file system, read-only.

    A file that this user may not read is a missing one (`NotAFileError`). A directory that does not
    exist, is something else, or may not be read, is empty. `find_wrong_kinds` names all of these.
    """

    def open(self, path: str) -> File:
        try:
            return ReadOnlyFile(path, open_regular(path))
        except PermissionError:
            raise NotAFileError.of(path, FileType.FORBIDDEN) from None

    def list_directory(self, path: str) -> list[str]:
        try:
            return super().list_directory(path)
        except OSError as error:
            # A copy may lack the directories that were empty.
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES):
                return []
            raise

    def sync_directory(self, path: str) -> None:
        """Do nothing: nothing was written."""

    def make_directory(self, path: str) -> None:
        _refuse(path)

    def create(self, path: str) -> File:
        _refuse(path)

    def recycle(self, old: str, new: str) -> File:  # noqa: ARG002 - as in Files
        _refuse(old)

    def rename(self, old: str, new: str) -> None:  # noqa: ARG002 - as in Files
        _refuse(old)

    def remove(self, path: str) -> None:
        _refuse(path)

    def allocate(self, path: str, size: int) -> None:  # noqa: ARG002 - as in Files
        _refuse(path)

    def lock(self, path: str, holder: str) -> Lock:  # noqa: ARG002 - as in Files
        _refuse(path)


def _refuse(path: str) -> NoReturn:
    raise OSError(errno.EROFS, "this store is open for reading only", path)
