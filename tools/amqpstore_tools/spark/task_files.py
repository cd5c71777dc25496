"""The files of a snapshot, opened by another process of this machine.

A broker may have removed them; the process that took the snapshot has them open, and another
process of the same user can open them through it.
"""

from __future__ import annotations

import os

from amqpstore.errors import StoreError
from amqpstore.system.files import File, Files
from amqpstore_tools.offline.pinning import PinnedFiles, SizedFile
from amqpstore_tools.offline.read_only_files import ReadOnlyFiles


class ForeignFiles(ReadOnlyFiles):
    """Files that another process of this machine has pinned; there are no others."""

    def __init__(self, pinned: PinnedFiles) -> None:
        self._pid = os.getpid()
        self._files = pinned.descriptors()

    def open(self, path: str) -> File:
        if path not in self._files:
            raise FileNotFoundError(2, "it is not in the snapshot", path)
        number, size = self._files[path]
        held = f"/proc/{self._pid}/fd/{number}"
        return SizedFile(path, os.open(held, os.O_RDONLY | os.O_CLOEXEC), size)


class TooFarError(StoreError):
    """A snapshot cannot be read from other machines."""

    def __init__(self) -> None:
        super().__init__(
            "a broker runs on the store, and what it holds can be read on this machine only: take "
            "a copy (amqpstore copy) where all executors see it, or leave --master out"
        )


def for_tasks(files: Files, *, is_local: bool) -> Files:
    """Return the files by which tasks read a store.

    Args: is_local, whether all tasks run on this machine.
    Raises: TooFarError.
    """
    if not isinstance(files, PinnedFiles):
        return files
    if not is_local:
        raise TooFarError
    return ForeignFiles(files)
