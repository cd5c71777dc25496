"""The lock of a store: for who copies it while a broker may have it, and for who changes it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from amqpstore.errors import StoreLockedError
from amqpstore.filenames import LOCK
from amqpstore.files import OsFiles
from amqpstore_tools.offline.holding import held


@contextlib.contextmanager
def shared(directory: str) -> Iterator[bool]:
    """Keep brokers out of a store that none has open. Yields whether one has it open."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(held(directory))
            is_running = False
        except StoreLockedError:
            is_running = True
        yield is_running


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
