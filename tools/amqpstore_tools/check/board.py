"""The progress of a check: how much of the segments has been read, how fast, and the time left."""

from __future__ import annotations

from contextlib import AbstractContextManager

from amqpstore_tools.offline.progress import Progress, progress_bar


def board() -> AbstractContextManager[Progress]:
    """Return the progress display of a check, on stderr; silent if stderr is not a terminal."""
    return progress_bar()
