"""Two directories exchange names atomically: each name always has exactly one."""

from __future__ import annotations

import ctypes
import errno
import os

from amqpstore.system.files import OsFiles

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NOT_OFFERED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def exchange(one: str, other: str) -> None:
    """Exchange the names of two directories of one parent. Durable on return.

    Uses renameat2(2), which Python does not wrap.
    Raises: OSError; nothing was renamed then.
    """
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), one) from None
    done = rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), one)
    _sync_parent(one)


def replace(new: str, old: str, kept: str) -> None:
    """Put the directory `new` in the place of `old`, which is called `kept` from then on.

    All on one file system; `kept` does not exist yet. Durable on return. If the file system cannot
    exchange two names, there is a moment without `old`: a crash then leaves both, whole, under
    names that start with `kept`.
    Raises: OSError; `old` is in its place then.
    """
    # The new directory gets this name first, so that one exchange gives both their final names.
    os.rename(new, kept)
    try:
        exchange(kept, old)
    except OSError as error:
        if error.errno not in _NOT_OFFERED:
            os.rename(kept, new)
            raise
        aside = f"{kept}.old"
        os.rename(old, aside)
        os.rename(kept, old)
        os.rename(aside, kept)
        _sync_parent(old)


def _sync_parent(path: str) -> None:
    OsFiles().sync_directory(os.path.dirname(os.path.abspath(path)))
