"""Where a tool may write: not into the store that it works on, and how on a full disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from amqpstore.errors import NotAStoreError
from amqpstore.filenames import MARKER, RESERVE
from amqpstore.marker import refuse_unfinished_repair
from amqpstore.space import is_no_space
from amqpstore_tools.offline.exits import ToolError
from amqpstore_tools.offline.reading import ReadOnlyFiles

ResultT = TypeVar("ResultT")


def require_outside(directory: str, path: str) -> None:
    """Make sure that what a tool writes is not in a store. Raises: ToolError."""
    store = os.path.realpath(directory)
    if os.path.commonpath([store, os.path.realpath(path)]) == store:
        raise ToolError(f"{path} is in the store {directory} itself. Name a place elsewhere.")


def require_store(directory: str) -> None:
    """Make sure that a directory is a store. Raises: NotAStoreError, UnfinishedRepairError,
    OSError.
    """
    refuse_unfinished_repair(ReadOnlyFiles(), directory)
    if not os.path.isfile(os.path.join(directory, MARKER)):
        raise NotAStoreError(directory, f"it has no file {MARKER}")


def with_reserve(directory: str, work: Callable[[], ResultT]) -> ResultT:
    """Do work on a store that may be done twice. If the disk is full, the store's reserve is
    removed, which the broker creates again once there is room, and the work is done again.
    """
    try:
        return work()
    except OSError as error:
        reserve = os.path.join(directory, RESERVE)
        if not is_no_space(error) or not os.path.isfile(reserve):
            raise
        os.unlink(reserve)
    return work()
