"""A copy takes a store's place: checked before anything is replaced, and then at once.

1. The copy is copied to a new directory beside the place (`DIR.restoring`): its files are compared
   with what its `COPY.json` says, what is written is read back, all checksums are looked at.
2. The new directory and the old one trade names. The old one is kept, under a name of its own.

A crash before 2 leaves the old store and an incomplete directory, which the next restore removes;
one behind it leaves the new store. Nothing of the old one is changed.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from crc32c import crc32c

from amqpstore.errors import NotAStoreError
from amqpstore.filenames import LOCK, MARKER
from amqpstore_tools.copying import manifest as manifests
from amqpstore_tools.copying.copier import CATALOG_PATH, Copied, Options, copy_store
from amqpstore_tools.copying.errors import CopyError
from amqpstore_tools.copying.manifest import MANIFEST, Manifest
from amqpstore_tools.copying.swapping import replace
from amqpstore_tools.copying.target import INCOMPLETE
from amqpstore_tools.offline.locks import exclusive_lock
from amqpstore_tools.offline.progress import Progress

_TAG = "amqpstore-work"
"""Says that a directory was made here, for a while."""


@dataclass(frozen=True)
class Restored:
    """What came of it. `kept` is where the store that was there before is now, if one was."""

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
    """Put the copy in the directory `copy` in the place of the store in `directory`.

    `directory` is a store that nobody has open, or empty, or not there. With `links` files that
    never change are shared with the copy; `accept_damage` of a copy of what was damaged already.
    Raises: CopyError, StoreLockedError, NotAStoreError, FormatVersionError, DamageError, OSError;
    `directory` is as it was then.
    """
    directory = os.path.realpath(directory)
    if os.path.realpath(copy) == directory:
        raise CopyError(f"{directory} cannot be restored from itself")
    options = Options(
        links=links,
        expected=_read_manifest(copy),
        # A store that is used is not what its copy was for long.
        manifest=False,
        refuse_damage=not accept_damage,
    )
    if not os.path.lexists(directory) or is_free(directory):
        return Restored(copy_store(copy, directory, options, progress), None)
    if not os.path.isfile(os.path.join(directory, MARKER)):
        raise NotAStoreError(directory, f"it has no file {MARKER}, and something else is in it")
    with exclusive_lock(directory, "restore"), beside(directory, "restoring") as new:
        copied = copy_store(copy, new, options, progress)
        give_to_owner(new, directory)
        return Restored(copied, take_place(new, directory, "before-restore"))


@contextlib.contextmanager
def beside(directory: str, suffix: str) -> Iterator[str]:
    """A path, which is not there yet, for a store that is to take a directory's place.

    It is in a directory of its own, beside: what a crash has left of that is removed first, and
    what the block leaves of it in the end.
    Raises: CopyError, when that cannot be, or is somebody else's; OSError.
    """
    if os.path.ismount(directory):
        raise CopyError(
            f"{directory} is a mount point, whose name cannot be given to another directory. Move "
            "what is in it elsewhere, then restore into the empty directory."
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
    """The tag goes last, so that what is left by a crash is known."""
    if os.path.lexists(store := os.path.join(path, "store")):
        shutil.rmtree(store)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(path, _TAG))
    os.rmdir(path)


def take_place(new: str, directory: str, suffix: str) -> str:
    """A new store, whole, takes the place of the one in `directory`. Returns where that is kept."""
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    kept = f"{directory}.{suffix}-{stamp}"
    replace(new, directory, kept)
    return kept


def give_to_owner(path: str, directory: str) -> None:
    """What root makes is to be read by whom the broker runs as: who has `directory`."""
    old = os.stat(directory)
    os.chmod(path, stat.S_IMODE(old.st_mode))
    if os.geteuid() != 0:
        return
    for folder, _, names in os.walk(path):
        for name in (".", *names):
            os.chown(os.path.join(folder, name), old.st_uid, old.st_gid, follow_symlinks=False)


def is_free(directory: str) -> bool:
    """Whether nothing is in a directory, or what a copy that was cut off has left."""
    if not os.path.isdir(directory):
        return False
    names = set(os.listdir(directory)) - {LOCK}
    return not names or (INCOMPLETE in names and MARKER not in names)


def _read_manifest(copy: str) -> Manifest | None:
    """What the copy says it is, its catalog compared with that. Raises: CopyError, OSError."""
    found = manifests.read(copy)
    if found is None:
        return None
    for listed in found.files:
        if listed.path != CATALOG_PATH:
            continue
        path = os.path.join(copy, CATALOG_PATH)
        try:
            with open(path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            content = b""
        if (len(content), f"{crc32c(content):08x}") != (listed.bytes, listed.crc32c):
            raise CopyError(
                f"{path} is not what was copied. If a broker has run on that copy, remove its "
                f"{MANIFEST}: then it is a store like any other. Else it is damaged; use another."
            )
    return found
