"""The progress of a check: how much of the segments is read, how fast, and how long it takes."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from tools.check.check import Tell

_INTERVAL_S = 0.1


@contextlib.contextmanager
def board() -> Iterator[Tell]:
    """What a check is shown with, on stderr; nothing where that is no terminal."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    # Here, so that the other verbs start without it.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    progress = Progress(
        TextColumn("{task.description:26}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,
    )
    with progress:
        task = progress.add_task("", total=None)
        shown = 0.0

        def tell(what: str, done_bytes: int, all_bytes: int) -> None:
            nonlocal shown
            now = time.monotonic()
            if all_bytes and now - shown < _INTERVAL_S and done_bytes < all_bytes:
                return
            shown = now
            if all_bytes:
                progress.update(task, completed=done_bytes, total=all_bytes)
            progress.update(task, description=what, refresh=True)

        yield tell
