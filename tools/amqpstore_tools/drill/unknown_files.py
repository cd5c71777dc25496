"""Files that a store does not know, put into data directories: they must not be changed."""

from __future__ import annotations

import os
from collections.abc import Iterator

from amqpstore.system.filenames import SEGMENTS
from amqpstore_tools.drill.invariants import Fault

UNKNOWN_FILES = {"by-hand": b"not the store's", f"{SEGMENTS}/notes.txt": b"nor this"}


def put_unknown_files(directory: str) -> None:
    """Write the files, replacing existing ones."""
    for path, content in UNKNOWN_FILES.items():
        with open(os.path.join(directory, path), "wb") as file:
            file.write(content)


def changed_unknown_files(directory: str) -> Iterator[Fault]:
    """Check I11: yield the files that have changed."""
    for path, content in UNKNOWN_FILES.items():
        try:
            with open(os.path.join(directory, path), "rb") as file:
                is_same = file.read() == content
        except FileNotFoundError:
            is_same = False
        if not is_same:
            yield "I11", f"{path} was changed or removed"
