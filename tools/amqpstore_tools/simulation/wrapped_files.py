"""Files around other files: every call goes to the wrapped one, unless a subclass overrides it."""

from __future__ import annotations

from collections.abc import Sequence

from amqpstore.system.files import File, Files, FileType, Lock


class WrappedFile:
    """A file around another one."""

    descriptor = None

    def __init__(self, file: File) -> None:
        self.path = file.path
        self._file = file

    def append(self, buffers: Sequence[bytes]) -> None:
        self._file.append(buffers)

    def fill(self, start: int, stop: int) -> None:
        self._file.fill(start, stop)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def end(self) -> int:
        return self._file.end()

    def datasync(self) -> None:
        self._file.datasync()

    def drop_cache(self) -> None:
        self._file.drop_cache()

    def read(self, offset: int, size: int) -> bytes:
        return self._file.read(offset, size)

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()


class WrappedFiles:
    """Files around others. `wrapped` returns what is opened in place of their files."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def wrapped(self, file: File) -> File:
        """Return what to open in place of a file."""
        return file

    def make_directory(self, path: str) -> None:
        self._files.make_directory(path)

    def list_directory(self, path: str) -> list[str]:
        return self._files.list_directory(path)

    def exists(self, path: str) -> bool:
        return self._files.exists(path)

    def type_of(self, path: str) -> FileType:
        return self._files.type_of(path)

    def size_of(self, path: str) -> int:
        return self._files.size_of(path)

    def is_link(self, path: str) -> bool:
        return self._files.is_link(path)

    def create(self, path: str) -> File:
        return self._files.create(path)

    def open(self, path: str) -> File:
        return self.wrapped(self._files.open(path))

    def recycle(self, old: str, new: str) -> File:
        return self._files.recycle(old, new)

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
