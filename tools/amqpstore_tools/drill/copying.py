"""Copies of data directories: an exact one of the original, and cheap ones of that copy.

They contain every byte, including files unknown to the store: drills are about damage. (For copies
to keep see `copying`.) The original is only read, while no broker has it: its lock is taken without
writing to it.
"""

from __future__ import annotations

import os
import shutil

from amqpstore.errors import NotAStoreError
from amqpstore.identity import marker
from amqpstore.system.filenames import CATALOG, LOCK, MARKER, RESERVE, TRANSIENT
from amqpstore.system.files import OsFiles
from amqpstore_tools.offline.locks import shared_lock

_LEFT_OUT = {LOCK, RESERVE, TRANSIENT, "lock.mdb"}
"""Files that do not survive a restart, or are not meant to."""


def copy_store(directory: str, target: str) -> None:
    """Copy the store in `directory` to `target`, which does not exist yet.

    Raises: NotAStoreError, StoreLockedError, FormatVersionError, DamageError (its marker), OSError.
    """
    if not os.path.isfile(os.path.join(directory, MARKER)):
        raise NotAStoreError(directory, f"it has no file {MARKER}")
    marker.read(OsFiles(), directory)
    with shared_lock(directory):
        shutil.copytree(directory, target, ignore=_ignored)


def link_store(directory: str, target: str) -> None:
    """Replace `target` by a copy of the copy in `directory`.

    Files that are only ever appended to or removed share their bytes; the store's marker and
    catalog do not. See `own_bytes`.
    """
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(directory, target, ignore=_ignored, copy_function=_link)


def own_bytes(path: str) -> None:
    """Give a linked file its own bytes, which may be changed."""
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
