"""Replaces a store by a copy, which is checked first, atomically.

1. The copy is copied to a new directory beside the store (`DIR.restoring`): its files are compared
   with its `COPY.json`, what is written is read back, all checksums are checked.
2. The new directory and the old one exchange names. The old one is kept, under a name of its own.

A crash before 2 leaves the old store and an incomplete directory, which the next restore removes; a
crash after it leaves the new store. Nothing of the old one is changed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from crc32c import crc32c

from amqpstore.errors import NotAStoreError
from amqpstore.identity.marker import refuse_unfinished_repair
from amqpstore.system.filenames import MARKER
from amqpstore.system.files import open_regular
from amqpstore.system.ownership import owner_in
from amqpstore_tools.copying import manifest as manifests
from amqpstore_tools.copying.copier import CATALOG_PATH, Copied, CopyOptions, copy_store
from amqpstore_tools.copying.errors import CopyError
from amqpstore_tools.copying.manifest import MANIFEST, CopyManifest
from amqpstore_tools.copying.swapping import replace
from amqpstore_tools.copying.target import INCOMPLETE, names_in
from amqpstore_tools.offline.locations import has_marker
from amqpstore_tools.offline.locks import exclusive_lock
from amqpstore_tools.offline.progress import Progress
from amqpstore_tools.offline.read_only_files import ReadOnlyFiles

_TAG = "amqpstore-work"
"""Marks a temporary directory of this module."""


@dataclass(frozen=True)
class Restored:
    """The result. `kept` is where the previous store is now, if there was one."""

    copied: Copied
    kept: str | None


def restore(
    copy: str,
    directory: str,
    *,
    links: bool,
    accept_damage: bool,
    progress: Progress = lambda *_: None,
) -> Restored:
    """Replace the store in `directory` by the copy in the directory `copy`.

    `directory` is a store that is not open, is empty, or does not exist. With `links` files
    that never change are shared with the copy; with `accept_damage` a copy of a damaged store is
    restored too.
    Raises: CopyError, StoreLockedError, NotAStoreError, FormatVersionError, DamageError, OSError;
    `directory` is unchanged then.
    """
    # The directory itself changes its name, not a link to it.
    directory = os.path.realpath(directory)
    if os.path.realpath(copy) == directory:
        raise CopyError(f"{directory} cannot be restored from itself")
    options = CopyOptions(
        links=links,
        expected=_read_manifest(copy),
        # Unlike a copy, a store that is in use changes.
        manifest=False,
        refuse_damage=not accept_damage,
    )
    if not os.path.lexists(directory) or is_free(directory):
        return Restored(copy_store(copy, directory, options, progress), None)
    refuse_unfinished_repair(ReadOnlyFiles(), directory)
    if not has_marker(directory):
        reason = f"it has no file {MARKER}, and is not empty: move away what is left of a store"
        raise NotAStoreError(directory, reason)
    with exclusive_lock(directory, "restore"), beside(directory, "restoring") as new:
        owned = dataclasses.replace(options, owner=owner_in(directory))
        copied = copy_store(copy, new, owned, progress)
        keep_mode(new, directory)
        return Restored(copied, replace_store(new, directory, "before-restore"))


@contextlib.contextmanager
def beside(directory: str, suffix: str) -> Iterator[str]:
    """Return a path, which does not exist yet, for a store that will replace the one in a
    directory.

    It is in a temporary directory beside it: the remains of a crash are removed first, and those of
    the block at the end.
    Raises: CopyError, if that is not possible or the directory is not this module's; OSError.
    """
    if os.path.ismount(directory):
        raise CopyError(
            f"{directory} is a mount point, which cannot be renamed. Move its content elsewhere, "
            f"then restore into the empty directory."
        )
    path = f"{directory}.{suffix}"
    tag = os.path.join(path, _TAG)
    if os.path.lexists(path):
        if not os.path.isfile(tag) and not (os.path.isdir(path) and not os.listdir(path)):
            raise CopyError(
                f"{path} is in the way, and was not made by a restore. Move it, and try again."
            )
        _remove_work(path)
    os.mkdir(path)
    try:
        with open(tag, "x", encoding="utf-8"):
            pass
        yield os.path.join(path, "store")
    finally:
        _remove_work(path)


def _remove_work(path: str) -> None:
    """Remove a temporary directory; the tag goes last, so that what a crash leaves is
    recognised.
    """
    if os.path.lexists(store := os.path.join(path, "store")):
        shutil.rmtree(store)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(path, _TAG))
    os.rmdir(path)


def replace_store(new: str, directory: str, suffix: str) -> str:
    """Replace the store in `directory` by a new, complete store. Returns where the old one is
    kept.
    """
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    kept = f"{directory}.{suffix}-{stamp}"
    replace(new, directory, kept)
    return kept


def keep_mode(path: str, directory: str) -> None:
    """Give a directory the permissions of the one that it will replace."""
    os.chmod(path, stat.S_IMODE(os.stat(directory).st_mode))


def is_free(directory: str) -> bool:
    """Tell whether a directory is empty, or contains only an incomplete copy."""
    if not os.path.isdir(directory):
        return False
    names = names_in(directory)
    return not names or (INCOMPLETE in names and MARKER not in names)


def _read_manifest(copy: str) -> CopyManifest | None:
    """Read the copy's manifest, and compare its catalog with it. Raises: CopyError, OSError."""
    manifest = manifests.read(copy)
    if manifest is None:
        return None
    for listed in manifest.files:
        if listed.path != CATALOG_PATH:
            continue
        path = os.path.join(copy, CATALOG_PATH)
        try:
            with open(open_regular(path), "rb") as file:
                content = file.read()
        except FileNotFoundError:
            content = b""
        if (len(content), f"{crc32c(content):08x}") != (listed.bytes, listed.crc32c):
            raise CopyError(
                f"{path} has changed since it was copied. If a broker has run on that copy, remove "
                f"its {MANIFEST}: then it is a store like any other. Otherwise it is damaged; use "
                "another one."
            )
    return manifest
