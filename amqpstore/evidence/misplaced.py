"""Looks for files of the store under other names: they hold what would otherwise count as lost."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from typing import NamedTuple

from amqpstore.catalog import tables
from amqpstore.catalog.keys import IndexKey
from amqpstore.catalog.shapes import Rows
from amqpstore.catalog.tables import START, StoreRows
from amqpstore.evidence.identification import FileKind, IdentifiedFile, find_files, identify
from amqpstore.identity.expected_segments import is_of_log
from amqpstore.system.filenames import (
    INDEX,
    KEPT,
    LOCK,
    MARKER,
    MEMBER,
    NEW_MARKER,
    NEW_MEMBER,
    NEW_REPLACEMENT,
    REPLACEMENT,
    index_key,
    is_unfinished,
)
from amqpstore.system.files import Files, FileType

_SEARCHED_BYTES = 1 << 20
"""How far a start looks into a file for its first sound record."""


_OTHERS = (*(KEPT, REPLACEMENT, NEW_REPLACEMENT), *(MARKER, NEW_MARKER, LOCK, MEMBER, NEW_MEMBER))
"""A start does not look into these."""


class Misplaced(NamedTuple):
    """A file of the store under another name than its own; both relative to the directory."""

    name: str
    home: str

    @property
    def reason(self) -> str:
        return f"by its records it is {self.home}, which is missing or something else"


def find_misplaced(
    files: Files, directory: str, store_id: bytes, rows: Rows | None
) -> Iterator[Misplaced]:
    """Yield the files that the store needs and that lie under another name.

    A copy of a file that is where it belongs is not needed; neither is one of which the catalog
    says that nothing in it is live. Args: rows, of the catalog, None if it is lost.
    """
    indexed = {
        f"{directory}/{INDEX}/{name}"
        for name in files.list_directory(f"{directory}/{INDEX}")
        if index_key(name) and files.type_of(f"{directory}/{INDEX}/{name}") is FileType.FILE
    }
    found = list(find_files(files, directory, store_id, but=indexed))
    at_home = {one.path for one in found if one.path == one.home(directory)} | indexed
    for one in found:
        home = one.home(directory)
        name = os.path.relpath(one.path, directory)
        if home not in at_home and not _was_given_up(name) and _is_needed(one, rows):
            yield Misplaced(name, os.path.relpath(home, directory))


def find_strays(
    files: Files, directory: str, store_id: bytes, at_home: Collection[str]
) -> Iterator[IdentifiedFile]:
    """Yield the files of the store under other names than their own, if nothing, or something else,
    has their own name. It is for a start: files with a name of their own in `at_home` are not read
    unless another file claims that name, and others not far.

    What belongs to a copy of another member, a whole or an unfinished one, or is kept for others,
    is left out.
    Args: at_home, paths of files that the catalog or the log names.
    """
    others = {f"{directory}/{name}" for name in _OTHERS}
    for one in find_files(
        *(files, directory, store_id), but=others.union(at_home), searched_bytes=_SEARCHED_BYTES
    ):
        home = one.home(directory)
        if is_unfinished(os.path.basename(one.path)):
            continue
        if one.path != home and not _is_itself(files, directory, home, store_id):
            yield one


def _is_itself(files: Files, directory: str, path: str, store_id: bytes) -> bool:
    """Tell whether a file is what its name says."""
    with contextlib.suppress(OSError):
        found = identify(files, path, store_id, _SEARCHED_BYTES)
        return found is not None and found.home(directory) == path
    return False


def _was_given_up(name: str) -> bool:
    """Tell whether a member keeps a file for others."""
    return name.split("/")[0] == KEPT


def _is_needed(one: IdentifiedFile, rows: Rows | None) -> bool:
    # Nothing says what is needed, so everything is.
    if rows is None:
        return True
    if one.kind is FileKind.INDEX:
        key = IndexKey(one.queue_id, one.number)
        return tables.INDEX.get(rows.__getitem__, key) is not None
    position = StoreRows.read(rows.__getitem__).position or START
    return one.number in tables.SEGMENTS.read_keys(rows.__getitem__) or is_of_log(
        one.number, position.segment
    )


def find_unneeded(
    files: Files, directory: str, store_id: bytes, rows: Rows
) -> Iterator[IdentifiedFile]:
    """Yield the files of the store under other names than their own that neither the catalog nor
    the log names. What is kept for others, or belongs to a copy of another member, is left out.
    """
    for one in find_files(files, directory, store_id):
        name = os.path.relpath(one.path, directory)
        is_other = name.split("/")[0] in (REPLACEMENT, NEW_REPLACEMENT)
        is_at_home = one.path == one.home(directory)
        if not (is_at_home or is_other or _was_given_up(name) or _is_needed(one, rows)):
            yield one
