"""Places where a tool may write: not into the store that it works on, and how on a full disk."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable
from typing import TypeVar

from amqpstore.errors import NotAStoreError
from amqpstore.identity.marker import refuse_unfinished_repair
from amqpstore.log.space import is_no_space
from amqpstore.system.filenames import MARKER, RESERVE
from amqpstore.system.files import FileType, type_of
from amqpstore_tools.offline.exits import ToolError
from amqpstore_tools.offline.read_only_files import ReadOnlyFiles

ResultT = TypeVar("ResultT")


def require_outside(directory: str, path: str) -> None:
    """Make sure that what a tool writes is not in a store. Raises: ToolError."""
    store = os.path.realpath(directory)
    if os.path.commonpath([store, os.path.realpath(path)]) == store:
        raise ToolError(f"{path} is in the store {directory} itself. Name a place elsewhere.")


def require_directory(directory: str) -> None:
    """Make sure that a directory exists. Raises: NotAStoreError; PermissionError, if this user may
    not know; OSError.
    """
    try:
        mode = os.stat(directory).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise NotAStoreError(directory, "it is not there") from None
    if not stat.S_ISDIR(mode):
        raise NotAStoreError(directory, "it is not a directory")


def temporary_directory(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """Create a directory that is removed when its context ends. Raises: ToolError, OSError."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        raise ToolError(
            "There is no directory for temporary files that can be written. In a container, mount "
            "a volume as /tmp; elsewhere, set TMPDIR to a directory that is not in the store."
        ) from None
    return tempfile.TemporaryDirectory(prefix=prefix)


def has_marker(directory: str) -> bool:
    """Tell whether a directory has the marker of a store. Raises: PermissionError, if this user may
    not know, or may not read it; OSError.
    """
    path = os.path.join(directory, MARKER)
    found = type_of(path)
    if found is FileType.FORBIDDEN:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    return found is FileType.FILE


def require_store(directory: str) -> None:
    """Make sure that a directory is a store. Raises: NotAStoreError, UnfinishedRepairError,
    OSError.
    """
    require_directory(directory)
    refuse_unfinished_repair(ReadOnlyFiles(), directory)
    if not has_marker(directory):
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
