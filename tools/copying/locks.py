"""The lock of a store, for those who only read it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from amqpstore.errors import StoreLockedError
from amqpstore.filenames import LOCK
from amqpstore.files import OsFiles


@contextlib.contextmanager
def shared(directory: str) -> Iterator[bool]:
    """Keep brokers out of a store that none has open. Yields whether one has it open.

    Nothing is written: where the lock's file is missing nobody has been there since it was copied.
    """
    try:
        descriptor = os.open(os.path.join(directory, LOCK), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            yield True
        else:
            yield False
    finally:
        os.close(descriptor)


def holder(directory: str) -> str:
    """Who had the store last, as the lock's file says. Raises: OSError."""
    with open(os.path.join(directory, LOCK), "rb") as file:
        return file.read(200).decode("utf-8", "replace").strip() or "an unknown process"


@contextlib.contextmanager
def exclusive(directory: str, verb: str) -> Iterator[None]:
    """Have a store for oneself, as a broker has. Raises: StoreLockedError."""
    try:
        lock = OsFiles().lock(
            os.path.join(directory, LOCK), f"process {os.getpid()}, amqpstore {verb}"
        )
    except BlockingIOError as error:
        raise StoreLockedError(directory, str(error.strerror)) from None
    try:
        yield
    finally:
        lock.release()
