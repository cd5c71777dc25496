"""The progress bar of a drill."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from amqpstore_tools.drill.run import DrillRun, DrillSettings

_INTERVAL_S = 0.1


@contextlib.contextmanager
def board(name: str, settings: DrillSettings) -> Iterator[Callable[[DrillRun], None]]:
    """Return the progress display of a run, on stderr; silent if stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield lambda _run: None
        return
    # Imported here, so that the other verbs start without it.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bounded = bool(settings.seconds or settings.images)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[seen]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        # No thread: scenarios start processes.
        auto_refresh=False,
    )
    with progress:
        task = progress.add_task(name, total=1.0 if bounded else None, seen="")
        shown = 0.0

        def show(run: DrillRun) -> None:
            nonlocal shown
            now = time.monotonic()
            if now - shown < _INTERVAL_S and not run.doing:
                return
            shown = now
            progress.update(task, completed=run.fraction, seen=_seen(run), refresh=True)

        yield show


def _seen(run: DrillRun) -> str:
    """Return what fits beside the bar of a narrow terminal: what takes long now, or the counts."""
    if run.doing:
        return f"round {run.round}: {run.doing}" if run.round else run.doing
    return f"round {run.round}, {run.images} disks, {len(run.account.findings)} violations"
