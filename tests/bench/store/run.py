"""The workloads: each is a sequence of jobs, whose results are put into a report."""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator

from amqpstore_tools.client.errors import CommandLineError
from tests.bench.store.job import Figures, Job
from tests.bench.store.process import StoreProcess
from tests.bench.store.report import StoreReport
from tests.bench.store.settings import StoreSettings


def run(settings: StoreSettings) -> StoreReport:
    """Run the workload once, in a directory created for it.

    Raises: UsageError (the directory is in use), BenchError (a process of the run failed, found a
    wrong number of messages, or took too long), OSError.
    """
    with _directory(settings) as directory:
        workload = _WORKLOADS[settings.workload]
        return StoreReport(settings, workload(settings, directory, _Runner(settings)))


class _Runner:
    """Runs jobs one after the other, and shows their progress when stderr is a terminal."""

    def __init__(self, settings: StoreSettings) -> None:
        self._timeout_s = settings.timeout

    def run(self, job: Job) -> Figures:
        """Run a job to its end; a job that leaves its store open is killed instead."""
        with self._shown(job) as tell, StoreProcess(job, timeout_s=self._timeout_s) as process:
            figures = process.figures(tell)
            if job.stays_open:
                process.kill()
            else:
                process.finish()
            return figures

    @contextlib.contextmanager
    def _shown(self, job: Job) -> Iterator[Callable[[int], None]]:
        if not sys.stderr.isatty():
            yield lambda _: None
            return
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(job.name, total=job.messages)
            yield lambda done: progress.update(task, completed=done)


def _fill(settings: StoreSettings, directory: str, runner: _Runner) -> dict[str, Figures]:
    job = _job(settings, "fill", directory)
    filled = runner.run(job)
    return {"fill": filled, "drain": runner.run(job._replace(name="drain"))}


def _memory(settings: StoreSettings, directory: str, runner: _Runner) -> dict[str, Figures]:
    return {"fill": runner.run(_job(settings, "fill", directory))}


def _restart(settings: StoreSettings, directory: str, runner: _Runner) -> dict[str, Figures]:
    sections = {}
    for number in range(1, settings.runs + 1):
        one = os.path.join(directory, f"run-{number}")
        job = _job(settings, "fill", one)
        runner.run(job._replace(stays_open=True))
        sections[f"run_{number}"] = runner.run(job._replace(name="open"))
        if not settings.keep:
            shutil.rmtree(one)
    return sections


def _churn(settings: StoreSettings, directory: str, runner: _Runner) -> dict[str, Figures]:
    messages = max(1, settings.volume_bytes // settings.size)
    job = _job(settings, "churn", directory)._replace(messages=messages)
    return {"churn": runner.run(job)}


def _fanout(settings: StoreSettings, directory: str, runner: _Runner) -> dict[str, Figures]:
    sections: dict[str, Figures] = {}
    for queues in (1, settings.queues):
        job = _job(settings, "fill", os.path.join(directory, f"queues-{queues}"))
        figures = runner.run(job._replace(queues=queues))
        for name in _PER_MESSAGE:
            figures[f"{name}_per_message"] = round(_number(figures[name]) / settings.messages, 2)
        sections[f"queues_{queues}"] = figures
    one, many = sections.values()
    names = ["messages_per_s", *(f"{name}_per_message" for name in _PER_MESSAGE)]
    ratios = {name: _number(many[name]) / max(_number(one[name]), 0.01) for name in names}
    sections["ratio"] = {name: round(ratio, 3) for name, ratio in ratios.items()}
    return sections


_PER_MESSAGE = ("written_bytes", "disk_segments_bytes", "disk_index_bytes", "disk_catalog_bytes")
_WORKLOADS: dict[str, Callable[[StoreSettings, str, _Runner], dict[str, Figures]]] = {
    "fill": _fill,
    "memory": _memory,
    "restart": _restart,
    "churn": _churn,
    "fanout": _fanout,
}


def _job(settings: StoreSettings, name: str, directory: str) -> Job:
    return Job(
        name,
        directory,
        messages=settings.messages,
        size=settings.size,
        batch=settings.batch,
        inline=settings.inline,
        immortal=settings.immortal,
    )


def _number(value: object) -> float:
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return value


@contextlib.contextmanager
def _directory(settings: StoreSettings) -> Iterator[str]:
    """Create the empty directory of the run; remove it at the end unless it is to be kept."""
    if settings.data:
        if os.path.exists(settings.data) and os.listdir(settings.data):
            raise CommandLineError(
                f"--data must name a new or empty directory, not {settings.data}"
            )
        os.makedirs(settings.data, exist_ok=True)
        directory = settings.data
    else:
        directory = tempfile.mkdtemp(prefix="amqpstore-bench-")
    try:
        yield os.path.abspath(directory)
    finally:
        if settings.keep:
            sys.stderr.write(f"amqpstore bench: kept {directory}\n")
        else:
            shutil.rmtree(directory)
