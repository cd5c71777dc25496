"""Syncs: what makes files and directories durable. A failed one is fatal: see `DurabilityError`.

And which other errors say that a disk has failed, and what is told of them.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from amqpstore.errors import DurabilityError
from amqpstore.system.descriptors import insist
from amqpstore.system.files import File, Files

_OF_FULL_DISKS = {errno.ENOSPC, errno.EDQUOT}
# ext4 and XFS report damage to their own structures as EUCLEAN, and ext4 then often allows no more
# writes (EROFS, mount option errors=remount-ro).
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


def text_of(error: BaseException) -> str:
    """Return the message of an error; an `OSError` says which file it is about, and why."""
    if not isinstance(error, OSError) or not error.strerror or error.filename2 is not None:
        return str(error)
    path = error.filename
    if isinstance(path, bytes):
        path = path.decode(errors="replace")
    return f"{path}: {error.strerror}" if isinstance(path, str) else str(error)


def reason_of(error: BaseException) -> str:
    """Say why something failed, for an operator: of an error of the system which file it is about,
    and what to do.
    """
    if not isinstance(error, OSError) or not error.strerror or error.filename2 is not None:
        return str(error) or type(error).__name__
    is_named = isinstance(error.filename, str | bytes)
    text = text_of(error) if is_named else error.strerror
    if error.errno in _OF_FAILED_DISKS:
        where = "that disk" if is_named else "the disk of the data directory"
        return f"{text}: {where} may have failed, see the log of the kernel (dmesg)"
    if error.errno in _OF_FULL_DISKS:
        return f"{text}: free some space there"
    return text


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
