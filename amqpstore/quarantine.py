"""Quarantine: where a segment goes that is damaged and that nobody reads any more.

It is never removed: what is damaged may be all that is left of a message.
"""

from __future__ import annotations

from amqpstore.filenames import QUARANTINE, segment_path
from amqpstore.files import Files


def quarantine(files: Files, directory: str, number: int) -> None:
    """Move a segment to `quarantine/`, out of everybody's way. Raises: OSError."""
    to = f"{directory}/{QUARANTINE}"
    files.make_directory(to)
    files.rename(segment_path(directory, number), f"{to}/{number:010}.segment")
