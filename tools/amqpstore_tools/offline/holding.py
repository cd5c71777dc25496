"""Keeping brokers out of a data directory while it is read, without changing it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from amqpstore import StoreLockedError
from amqpstore.filenames import LOCK


@contextlib.contextmanager
def held(directory: str) -> Iterator[None]:
    """Within, no broker can open the store; other readers can.

    Where the lock's file is missing no broker has been there since it was copied, and nothing is
    made. Raises: StoreLockedError, OSError.
    """
    try:
        descriptor = os.open(os.path.join(directory, LOCK), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreLockedError(directory, _holder(descriptor)) from None
        yield
    finally:
        os.close(descriptor)


def _holder(descriptor: int) -> str:
    text = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip()
    return text or "an unknown process"
