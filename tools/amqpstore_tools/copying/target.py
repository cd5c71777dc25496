"""The directory of a copy that is not finished."""

from __future__ import annotations

import os
from collections.abc import Iterator

from amqpstore.system import ownership
from amqpstore.system.filenames import (
    CATALOG,
    INDEX,
    LOCK,
    MARKER,
    NEW_MARKER,
    QUARANTINE,
    SEGMENTS,
    TRAILS,
    is_of_system,
)
from amqpstore_tools.copying.manifest import MANIFEST

INCOMPLETE = "COPY.incomplete"
"""Marks a directory as an incomplete copy. It is removed after the marker is written."""

FOLDERS = (SEGMENTS, INDEX, CATALOG, QUARANTINE, TRAILS)


def make_folders(target: str) -> None:
    """Create the directories of a store."""
    for name in FOLDERS:
        ownership.make_directories(os.path.join(target, name))


def names_in(target: str) -> set[str]:
    """Return the names in a directory that say whether a copy may be made there: all but those of
    a lock, and of what the file system has put there.
    """
    return {name for name in os.listdir(target) if name != LOCK and not is_of_system(name)}


def clear(target: str) -> None:
    """Remove an incomplete copy's files, and nothing else."""
    for path in _own_files(target):
        os.unlink(path)
    for name in FOLDERS:
        if os.path.isdir(path := os.path.join(target, name)) and not os.listdir(path):
            os.rmdir(path)


def _own_files(target: str) -> Iterator[str]:
    for name in (MARKER, NEW_MARKER, MANIFEST):
        if os.path.isfile(path := os.path.join(target, name)):
            yield path
    for name in FOLDERS:
        folder = os.path.join(target, name)
        if os.path.isdir(folder):
            yield from (entry.path for entry in os.scandir(folder) if entry.is_file())
