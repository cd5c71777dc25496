"""Removal of files that have no row in the catalog any more.

A damaged segment is never removed, but moved to `quarantine/`: its remains may be all that is left
of a message.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from amqpstore.system.durability import reason_of
from amqpstore.system.filenames import QUARANTINE, SEGMENTS, segment_name, segment_path
from amqpstore.system.files import Files
from amqpstore.system.replacing import replace_file

_log = logging.getLogger(__name__)


def attempt(removal: Callable[..., None], *arguments: object) -> None:
    """Remove something. If that fails it stays, and the next start removes it."""
    try:
        removal(*arguments)
    except FileNotFoundError:
        pass
    except OSError as error:
        _log.warning(
            "a file could not be removed, and is left for the next start: %s", reason_of(error)
        )


def quarantine(files: Files, directory: str, number: int) -> None:
    """Move a segment to `quarantine/`; durable on return.

    No existing file is replaced.
    Raises: OSError.
    """
    to = f"{directory}/{QUARANTINE}"
    files.make_directory(to)
    path = f"{to}/{segment_name(number)}"
    others = 1
    while files.exists(path):
        others += 1
        path = f"{to}/{segment_name(number)}.{others}"
    files.rename(segment_path(directory, number), path)
    # The new name first: a crash between the two leaves the file under both, never under none.
    files.sync_directory(to)
    files.sync_directory(f"{directory}/{SEGMENTS}")


def copy_to_quarantine(files: Files, directory: str, path: str) -> None:
    """Copy a file to `quarantine/`, under its own name; durable on return. A file that is there is
    left alone: it is the copy that an earlier start made, and whole.

    Raises: OSError.
    """
    folder, name = f"{directory}/{QUARANTINE}", os.path.basename(path)
    files.make_directory(folder)
    if files.exists(f"{folder}/{name}"):
        return
    source = files.open(path)
    try:
        content = source.read(0, source.size())
    finally:
        source.close()
    replace_file(files, folder, name, content)
