"""Copies of data directories: a true one of the original, and cheap ones of that copy.

The original is only read, while no broker has it: its lock is taken without writing into it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator

from amqpstore import StoreLockedError, marker
from amqpstore.errors import NotAStoreError
from amqpstore.filenames import CATALOG, LOCK, MARKER, RESERVE, TRANSIENT
from amqpstore.files import OsFiles

_LEFT_OUT = {LOCK, RESERVE, TRANSIENT, "lock.mdb"}
"""Nothing in these survives a restart, or is meant to."""


def copy_store(directory: str, target: str) -> None:
    """Copy the store in `directory` to `target`, which is not there yet.

    Raises: NotAStoreError, StoreLockedError, FormatVersionError, DamageError (its marker), OSError.
    """
    if not os.path.isfile(os.path.join(directory, MARKER)):
        raise NotAStoreError(directory, f"it has no file {MARKER}")
    marker.read(OsFiles(), directory)
    with _locked(directory):
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


@contextlib.contextmanager
def _locked(directory: str) -> Iterator[None]:
    """Keep brokers out. Where the lock's file is missing no broker has been since it was copied."""
    path = os.path.join(directory, LOCK)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip()
            raise StoreLockedError(directory, holder or "an unknown process") from None
        yield
    finally:
        os.close(descriptor)
