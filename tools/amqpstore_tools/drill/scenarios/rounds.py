"""Rounds of a scenario, and where they run: in this process, or as tasks of an executor.

A round depends on the seed and its number alone, so it does the same wherever it runs. In one
process all rounds are one task: they share the copy of the data directory and what they have seen,
and the bounds of the run end a round early. As tasks they start in waves, and the bounds are
checked between them; if the rounds are of one history, its parts are the tasks, each with all
rounds. The results of tasks are combined in the order of their numbers, so that the verdicts are
the same.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Protocol

from amqpstore_tools.drill.copying import copy_store
from amqpstore_tools.drill.run import DrillRun, DrillSettings, LeftOutError
from amqpstore_tools.drill.scenarios import SCENARIOS
from amqpstore_tools.drill.scenarios.power_cut import SHARES
from amqpstore_tools.drill.verdict import Account

ON_ONE_MACHINE = ("kill", "disk", "cluster")
"""A round needs this machine: the broker that the one before it has left, or its disk."""

_ROUNDS_AT_ONCE = 2
"""Rounds in a wave, for each task that can run at a time: some take longer than others."""

Show = Callable[[DrillRun], None]
"""Called to show how far a run is."""


class TaskExecutor(Protocol):
    """Runs the tasks of a drill."""

    @property
    def width(self) -> int:
        """The number of tasks that run at the same time."""

    def run(
        self,
        tasks: Sequence[DrillSettings],
        work: Callable[[DrillSettings], Account | str],
        tell: Callable[[], None],
    ) -> Iterable[Account | str]:
        """Run tasks. Returns the result of each, in order. Args: tell, called meanwhile."""


def drill(
    name: str,
    settings: DrillSettings,
    executor: TaskExecutor | None = None,
    show: Show = lambda _run: None,
) -> Account:
    """Run a scenario as its bounds allow. Returns what was found.

    Args: executor, of its rounds; None for this process.
    Raises: LeftOutError, if the scenario cannot work on the data directory; StoreError, OSError,
    and what the executor raises.
    """
    if executor is None or name in ON_ONE_MACHINE:
        return run_rounds(name, settings, show)
    run = DrillRun(name, settings, show)
    for tasks in _waves(run, executor.width):
        all_found = executor.run(tasks, partial(_task, name), run.show)
        for task, outcome in zip(tasks, all_found, strict=True):
            if isinstance(outcome, str):
                raise LeftOutError(outcome)
            run.round = task.round or run.round
            run.join(outcome)
        run.show()
    run.account.timeline.sort(key=attrgetter("round"))
    return run.end()


def run_rounds(name: str, settings: DrillSettings, show: Show = lambda _run: None) -> Account:
    """Run the rounds of a scenario that the settings name, one after the other.

    Returns and raises as `drill` in this process.
    """
    if settings.data:
        copy_store(settings.data, os.path.join(settings.work, "store"))
    run = DrillRun(name, settings, show)
    SCENARIOS[name].run(run)
    return run.end()


def _waves(run: DrillRun, width: int) -> Iterator[list[DrillSettings]]:
    """Yield the tasks of a run that may run at the same time."""
    settings = run.settings
    if run.account.scenario == "power-cut" and settings.operations:
        yield _shares(settings, width)
        return
    number = settings.round or 1
    last = settings.round or settings.rounds
    # The bounds of the drill do not bound a task: its result would depend on where it runs.
    unbound = dataclasses.replace(settings, seconds=None, images=None, rounds=None)
    while not run.is_over and (last is None or number <= last):
        end = number + _ROUNDS_AT_ONCE * width
        if last is not None:
            end = min(end, last + 1)
        yield [dataclasses.replace(unbound, round=one) for one in range(number, end)]
        number = end


def _shares(settings: DrillSettings, width: int) -> list[DrillSettings]:
    """Return the parts of one history; the bounds are divided among them."""
    shared = dataclasses.replace(
        settings,
        seconds=settings.seconds and settings.seconds * width / SHARES,
        images=settings.images and -(-settings.images // SHARES),
    )
    return [dataclasses.replace(shared, share=share) for share in range(1, SHARES + 1)]


def _task(name: str, settings: DrillSettings) -> Account | str:
    """Return what a task found, or why it was left out. It has a work directory of its own."""
    with tempfile.TemporaryDirectory(prefix="amqpstore-drill-") as work:
        try:
            return run_rounds(name, dataclasses.replace(settings, work=work))
        except LeftOutError as error:
            return str(error)
