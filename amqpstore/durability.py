"""Syncs: what makes files and directories durable. A failed one is fatal: see `DurabilityError`."""

from __future__ import annotations

from collections.abc import Callable

from amqpstore.descriptors import insist
from amqpstore.errors import DurabilityError
from amqpstore.files import File, Files


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
