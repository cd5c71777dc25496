"""A progress bar on stderr, for work that is counted in bytes or in messages."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

_INTERVAL_S = 0.1

Progress = Callable[[str, int, int], None]
"""Called with a description, how much is done, and the total; 0 if it is unknown."""


@contextlib.contextmanager
def progress_bar(*, in_bytes: bool = True) -> Iterator[Progress]:
    """Yields what shows it, with an estimate of the time left.

    Nothing is shown if stderr is not a terminal.
    """
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    # Imported here, so that the other verbs start without it.
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
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        *counts,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,
        expand=True,
    )
    with bar:
        task = bar.add_task("", total=None)
        shown = 0.0

        def show(what: str, done: int, total: int) -> None:
            nonlocal shown
            now = time.monotonic()
            if total and now - shown < _INTERVAL_S and done < total:
                return
            shown = now
            if total:
                bar.update(task, completed=done, total=total)
            bar.update(task, description=what, refresh=True)

        yield show
