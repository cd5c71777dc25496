"""A progress bar on stderr, for work that is counted in bytes or in messages."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

_INTERVAL_S = 0.1


@contextlib.contextmanager
def progress_bar(*, in_bytes: bool = True) -> Iterator[Callable[[str, int, int], None]]:
    """Yields what is called with what is done, how much of it, and how much that will be.

    Nothing is shown where stderr is no terminal.
    """
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    # Here, so that the other verbs start without it.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    counts = (
        (DownloadColumn(binary_units=True), TransferSpeedColumn())
        if in_bytes
        else (MofNCompleteColumn(),)
    )
    bar = Progress(
        TextColumn("{task.description:9}"),
        BarColumn(),
        *counts,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,
    )
    with bar:
        task = bar.add_task("", total=None)
        shown = 0.0

        def show(what: str, done: int, total: int) -> None:
            nonlocal shown
            now = time.monotonic()
            if now - shown < _INTERVAL_S and done < total:
                return
            shown = now
            bar.update(task, description=what, completed=done, total=total or None, refresh=True)

        yield show
