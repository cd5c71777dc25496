"""The progress of a check: how much of the segments is read, how fast, and how long it takes."""

from __future__ import annotations

from contextlib import AbstractContextManager

from amqpstore_tools.offline.progress import Progress, progress_bar


def board() -> AbstractContextManager[Progress]:
    """What a check is shown with, on stderr; nothing where that is no terminal."""
    return progress_bar()
