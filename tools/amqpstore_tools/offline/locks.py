"""The lock of a data directory: for tools that read, copy or change it without a broker."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from amqpstore.errors import StoreLockedError
from amqpstore.system.filenames import LOCK
from amqpstore.system.files import OsFiles, OwnLockError, is_locked_here, open_regular


@contextlib.contextmanager
def shared_lock(directory: str) -> Iterator[None]:
    """Keep brokers out of a store while it is read; other readers can come in. Changes nothing.

    If the lock's file is missing, no broker has run here since the store was copied, and nothing is
    created. If something else is in its place, no broker starts.
    Raises: StoreLockedError, OSError.
    """
    try:
        descriptor = open_regular(os.path.join(directory, LOCK))
    except FileNotFoundError:
        yield
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            is_own = is_locked_here(descriptor)
            raise StoreLockedError(directory, _holder(descriptor), is_own=is_own) from None
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def shared_lock_if_free(directory: str) -> Iterator[bool]:
    """Keep brokers out of a store that none has open. Yields whether one has it open.

    Raises: OSError.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(shared_lock(directory))
            is_running = False
        except StoreLockedError:
            is_running = True
        yield is_running


@contextlib.contextmanager
def exclusive_lock(directory: str, verb: str) -> Iterator[None]:
    """Lock a store exclusively, as a broker does: readers stay out too.

    Args: verb, which others are told of.
    Raises: StoreLockedError, NotAFileError (something else is in the place of the lock), OSError.
    """
    holder = f"process {os.getpid()}, amqpstore {verb}"
    try:
        lock = OsFiles().lock(os.path.join(directory, LOCK), holder)
    except BlockingIOError as error:
        is_own = isinstance(error, OwnLockError)
        raise StoreLockedError(directory, str(error.strerror), is_own=is_own) from None
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def directory_lock(directory: str, verb: str) -> Iterator[None]:
    """Lock the directory of a store whose lock is not a file, against others that do the same.

    Raises: StoreLockedError, OSError.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreLockedError(directory, f"another amqpstore {verb}") from None
        yield
    finally:
        os.close(descriptor)


def _holder(descriptor: int) -> str:
    text = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip()
    return text or "an unknown process"
