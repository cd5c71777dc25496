"""Syncs: what makes files and directories durable. A failed one is fatal: see `DurabilityError`.

And which other errors say that a disk has failed.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from amqpstore.descriptors import insist
from amqpstore.errors import DurabilityError
from amqpstore.files import File, Files

_OF_FAILED_DISKS = {errno.EIO, errno.EUCLEAN, errno.ENXIO, errno.ENODEV, errno.EROFS}


def is_of_failed_disk(error: BaseException) -> bool:
    """Tell whether an error says that a file's disk has failed, or takes no more writes."""
    if isinstance(error, DurabilityError):
        return True
    # A terminal that is gone fails like a disk, but has no name.
    return (
        isinstance(error, OSError)
        and error.filename is not None
        and error.errno in _OF_FAILED_DISKS
    )


def sync_file(file: File) -> None:
    """Make all that was written to a file durable. Raises: DurabilityError."""
    _durably(file.datasync, file.path)


def sync_directory(files: Files, path: str) -> None:
    """Make all entries of a directory durable. Raises: DurabilityError."""
    _durably(lambda: insist(files.sync_directory, path), path)


def _durably(sync: Callable[[], None], path: str) -> None:
    try:
        sync()
    except (OSError, MemoryError) as error:
        raise DurabilityError(path, error) from error
