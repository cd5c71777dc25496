"""Replaces a small file as a whole: after a crash its old content is there, or its new one."""

from __future__ import annotations

import os

from amqpstore.system.files import Files


def replace_file(files: Files, directory: str, name: str, content: bytes) -> None:
    """Create a file, or replace it: under `name` + ".new" while it is written. Durable on return.

    Raises: OSError.
    """
    path = os.path.join(directory, name)
    new_path = f"{path}.new"
    if files.exists(new_path):
        files.remove(new_path)
    file = files.create(new_path)
    try:
        file.append([content])
        file.datasync()
    finally:
        file.close()
    # Synced before: a rename may reach the disk before the bytes do, and a crash would leave an
    # empty file in the place of none, or of a good one.
    files.rename(new_path, path)
    files.sync_directory(directory)
