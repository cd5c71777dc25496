"""Files of the wrong kind in a store: a directory or a pipe in the place of a file, and the like.

Restores, mounts and typing errors leave such things. Nothing that is read from them is of the
store, and a pipe would keep its reader waiting: so they are looked at, never opened. To whoever
reads the store, a file in whose place something else is found is a missing file (`NotAFileError`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from amqpstore.catalog.tables import Position
from amqpstore.errors import UnreadableFileError
from amqpstore.identity.expected_segments import is_of_log
from amqpstore.system.filenames import (
    CATALOG,
    CATALOG_FILE,
    CATALOG_LOCK,
    DEFINITIONS,
    INDEX,
    KEPT,
    LOCK,
    MARKER,
    MEMBER,
    NEW_MARKER,
    NEW_MEMBER,
    NEW_REPLACEMENT,
    QUARANTINE,
    REPLACEMENT,
    RESERVE,
    SEGMENTS,
    TRAILS,
    TRANSIENT,
    index_key,
    is_spare,
    is_unfinished,
    kept_segment,
    position_number,
    rejoin_number,
    repair_number,
    segment_number,
    segment_path,
    trail_number,
)
from amqpstore.system.files import Files, FileType

_FILE, _DIRECTORY = FileType.FILE, FileType.DIRECTORY

KINDS: Mapping[str, FileType] = {
    **dict.fromkeys(
        (
            *(MARKER, NEW_MARKER, LOCK, MEMBER, NEW_MEMBER, REPLACEMENT, NEW_REPLACEMENT),
            *(RESERVE, f"{CATALOG}/{CATALOG_FILE}", f"{CATALOG}/{CATALOG_LOCK}"),
            f"{CATALOG}/{DEFINITIONS}",
        ),
        _FILE,
    ),
    **dict.fromkeys((CATALOG, SEGMENTS, INDEX, QUARANTINE, TRANSIENT, KEPT, TRAILS), _DIRECTORY),
}
"""The kinds of file that the names lead to that every store has, or may have."""

_NO_LINKS = (LOCK,)
"""Files that must not be links either: whoever starts a store writes into them, as root perhaps, in
a directory of another user.
"""

_NOT_NEEDED = (NEW_MARKER, NEW_MEMBER, NEW_REPLACEMENT, RESERVE, f"{CATALOG}/{DEFINITIONS}")
"""A store can be opened and used without these."""


class WrongKind(NamedTuple):
    """The path `name`, relative to the directory of a store, leads to `found`, and should lead to
    `expected`.
    """

    name: str
    found: FileType
    expected: FileType

    @property
    def reason(self) -> str:
        """The fault, and what to do, as text for people."""
        if self.found is FileType.FORBIDDEN:
            return f"it is {self.found.value}: give it to the owner of the store"
        return (
            f"it is {self.found.value}, where a store has {self.expected.value}: put what belongs "
            "there back, or let `amqpstore repair` move this to quarantine"
        )


def find_wrong_kinds(files: Files, directory: str) -> Iterator[WrongKind]:
    """Yield what is of the wrong kind in the store in a directory, or may not be read.

    Raises: OSError.
    """
    for name, expected in names_in_store(files, directory):
        yield from _looked_at(files, directory, name, expected)


def names_in_store(files: Files, directory: str) -> Iterator[tuple[str, FileType]]:
    """Yield the names that the store in a directory has, or may have, each relative to the
    directory, with what it should lead to. Raises: OSError.
    """
    for name, expected in KINDS.items():
        if "/" not in name or _is_directory(files, f"{directory}/{os.path.dirname(name)}"):
            yield name, expected
    for folder, kind_of in _FOLDERS.items():
        if not _is_directory(files, f"{directory}/{folder}"):
            continue
        for name in files.list_directory(f"{directory}/{folder}"):
            if expected_here := kind_of(name):
                yield f"{folder}/{name}", expected_here


def refuse_wrong_kinds(files: Files, directory: str) -> None:
    """Make sure that everything that a start needs is what it should be, or missing. What is wrong
    with a single segment or index file is no obstacle: all the rest is served.

    Raises: UnreadableFileError, OSError.
    """
    for name, expected in KINDS.items():
        for wrong in _looked_at(files, directory, name, expected):
            # What may not be read is for the operating system to say.
            if name not in _NOT_NEEDED and wrong.found is not FileType.FORBIDDEN:
                raise UnreadableFileError(f"{directory}/{wrong.name}", wrong.reason)


def replaced_segments(
    files: Files, directory: str, numbers: Iterable[int], start: Position
) -> dict[int, str]:
    """Return the segments of the log in whose places something other than a file is, each with what
    it is: they have existed, and are missing. One that may not be read is left for whoever opens
    it.

    Args: numbers, by the names in the directory; start, of the part of the log to be read: other
    segments are looked at when they are read.
    """
    of_log = [one for one in numbers if is_of_log(one, start.segment)]
    found = {one: files.type_of(segment_path(directory, one)) for one in of_log}
    kept = (_FILE, FileType.FORBIDDEN, FileType.MISSING)
    return {number: one.not_a_file for number, one in found.items() if one not in kept}


def only_files(files: Files, paths: Iterable[str]) -> list[str]:
    """Return the paths that lead to files: what is not one is not the store's, whatever its name,
    and is not removed.
    """
    return [path for path in paths if files.type_of(path) is _FILE]


def _looked_at(files: Files, directory: str, name: str, expected: FileType) -> Iterator[WrongKind]:
    found = files.type_of(f"{directory}/{name}")
    # `type_of` follows links, which is right for a volume that was mounted elsewhere, but not for
    # a file that a start writes to.
    if found is _FILE and name in _NO_LINKS and files.is_link(f"{directory}/{name}"):
        found = FileType.LINK
    if found not in (expected, FileType.MISSING):
        yield WrongKind(name, found, expected)


def _is_directory(files: Files, path: str) -> bool:
    return files.type_of(path) is FileType.DIRECTORY


def _in_segments(name: str) -> FileType | None:
    return _FILE if segment_number(name) or is_spare(name) or is_unfinished(name) else None


def _in_index(name: str) -> FileType | None:
    return _FILE if index_key(name) or is_unfinished(name) else None


def _in_quarantine(name: str) -> FileType | None:
    if repair_number(name) or rejoin_number(name):
        return _DIRECTORY
    return _FILE if segment_number(name) else None


def _in_kept(name: str) -> FileType | None:
    return _FILE if kept_segment(name) else None


def _in_trails(name: str) -> FileType | None:
    return _FILE if trail_number(name) or position_number(name) else None


_FOLDERS: Mapping[str, Callable[[str], FileType | None]] = {
    SEGMENTS: _in_segments,
    INDEX: _in_index,
    QUARANTINE: _in_quarantine,
    KEPT: _in_kept,
    TRAILS: _in_trails,
    TRANSIENT: _in_segments,
}
"""The kinds of file that the names in the directories of a store lead to; None if it is not the
name of a file of a store.
"""
