"""The files of a snapshot, opened by another process of this machine.

A broker may have removed them; whoever took the snapshot has them open, and what a process has open
can be opened by another one that runs as the same user.
"""

from __future__ import annotations

import os

from amqpstore.errors import StoreError
from amqpstore.files import File, Files
from amqpstore_tools.offline.reading import ReadOnlyFile, ReadOnlyFiles
from amqpstore_tools.offline.snapshot import HeldFiles


class _Cut(ReadOnlyFile):
    """A file as large as it was."""

    def __init__(self, path: str, descriptor: int, size: int) -> None:
        super().__init__(path, descriptor)
        self._size = size

    def read(self, offset: int, size: int) -> bytes:
        return super().read(offset, max(min(size, self._size - offset), 0))

    def size(self) -> int:
        return self._size


class ForeignFiles(ReadOnlyFiles):
    """Files that process `pid` holds; what it does not hold is not there."""

    def __init__(self, held: HeldFiles) -> None:
        self._pid = os.getpid()
        self._files = held.descriptors()

    def open(self, path: str) -> File:
        if path not in self._files:
            raise FileNotFoundError(2, "it is not in the snapshot", path)
        number, size = self._files[path]
        held = f"/proc/{self._pid}/fd/{number}"
        return _Cut(path, os.open(held, os.O_RDONLY | os.O_CLOEXEC), size)


class TooFarError(StoreError):
    """A snapshot cannot be read from other machines."""

    def __init__(self) -> None:
        super().__init__(
            "a broker runs on the store, and what it holds can be read on this machine only: take "
            "a copy (amqpstore copy) where all executors see it, or leave --master out"
        )


def for_tasks(files: Files, *, is_local: bool) -> Files:
    """What tasks open the files of a store by.

    Args: is_local, whether they all run on this machine. Raises: TooFarError.
    """
    if not isinstance(files, HeldFiles):
        return files
    if not is_local:
        raise TooFarError
    return ForeignFiles(files)
