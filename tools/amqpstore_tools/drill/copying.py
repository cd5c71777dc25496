"""Copies of data directories: a true one of the original, and cheap ones of that copy.

They are of every byte, and of what the store does not know: damage is what drills are about. (A
copy to keep is `copying`'s.) The original is only read, while no broker has it: its lock is
taken without writing into it.
"""

from __future__ import annotations

import os
import shutil

from amqpstore import marker
from amqpstore.errors import NotAStoreError
from amqpstore.filenames import CATALOG, LOCK, MARKER, RESERVE, TRANSIENT
from amqpstore.files import OsFiles
from amqpstore_tools.offline.locks import shared_lock

_LEFT_OUT = {LOCK, RESERVE, TRANSIENT, "lock.mdb"}
"""Nothing in these survives a restart, or is meant to."""


def copy_store(directory: str, target: str) -> None:
    """Copy the store in `directory` to `target`, which is not there yet.

    Raises: NotAStoreError, StoreLockedError, FormatVersionError, DamageError (its marker), OSError.
    """
    if not os.path.isfile(os.path.join(directory, MARKER)):
        raise NotAStoreError(directory, f"it has no file {MARKER}")
    marker.read(OsFiles(), directory)
    with shared_lock(directory):
        shutil.copytree(directory, target, ignore=_ignored)


def link_store(directory: str, target: str) -> None:
    """Make `target`, in place of what is there, what the copy `directory` is.

    Files that are only ever appended to or removed share their bytes; the store's marker and
    catalog do not. See `own_bytes`.
    """
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(directory, target, ignore=_ignored, copy_function=_link)


def own_bytes(path: str) -> None:
    """Give a linked file bytes of its own, that may be changed."""
    copy = f"{path}.own"
    shutil.copyfile(path, copy)
    os.replace(copy, path)


def _link(source: str, target: str) -> str:
    if os.path.basename(source) == MARKER or os.path.basename(os.path.dirname(source)) == CATALOG:
        return str(shutil.copyfile(source, target))
    os.link(source, target)
    return target


def _ignored(_directory: str, names: list[str]) -> set[str]:
    return _LEFT_OUT.intersection(names)
