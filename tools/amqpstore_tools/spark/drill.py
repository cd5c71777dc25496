"""`amqpstore drill --engine spark`: a drill, spread over a cluster.

Each round is a task. What they found is put together in the order of their numbers: the same seed
gives the same verdicts as on one core. Rounds begin in waves, and time and images are looked at
between them. Where the rounds are of one history, its parts are the tasks, each with all rounds.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import tempfile
from operator import attrgetter

from amqpstore_tools.drill.run import LeftOutError, Run, Settings
from amqpstore_tools.drill.scenarios.power_cut import PARTS
from amqpstore_tools.drill.scenarios.rounds import Show, run_rounds
from amqpstore_tools.drill.verdict import Account
from amqpstore_tools.spark.cluster import Cluster

ON_ONE_MACHINE = ("kill",)
"""A round goes on where the one before it ended, with a broker that runs on this machine."""

_ROUNDS_A_CORE = 2
"""In a wave: some rounds take longer than others."""


class SparkDrill:
    """A cluster, and this process for what runs on one machine only."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def run(self, name: str, settings: Settings, show: Show = lambda _run: None) -> Account:
        """As `Drill.run`. `settings.work` is not used on the cluster: a task has a directory of
        its own machine. Raises: JobError besides."""
        if name in ON_ONE_MACHINE:
            return run_rounds(name, settings, show)
        run = Run(name, settings, show)
        if name == "power-cut" and settings.operations:
            _drill_parts(self._cluster, run)
        else:
            _drill_rounds(self._cluster, run)
        return run.end()


def _drill_rounds(cluster: Cluster, run: Run) -> None:
    settings = run.settings
    number = settings.round or 1
    last = settings.round or settings.rounds
    while not run.is_over and (last is None or number <= last):
        wave = range(number, number + _ROUNDS_A_CORE * cluster.cores)
        if last is not None:
            wave = range(number, min(wave.stop, last + 1))
        # What bounds the drill bounds no round: it would depend on where it runs.
        unbound = dataclasses.replace(settings, seconds=None, images=None, rounds=None)
        _gather(cluster, run, [dataclasses.replace(unbound, round=one) for one in wave])
        number = wave.stop


def _drill_parts(cluster: Cluster, run: Run) -> None:
    settings = run.settings
    shared = dataclasses.replace(
        settings,
        # They begin as there are cores for them.
        seconds=settings.seconds and settings.seconds * cluster.cores / PARTS,
        images=settings.images and -(-settings.images // PARTS),
    )
    parts = range(1, PARTS + 1)
    _gather(cluster, run, [dataclasses.replace(shared, part=part) for part in parts])
    run.account.timeline.sort(key=attrgetter("round"))


def _gather(cluster: Cluster, run: Run, tasks: list[Settings]) -> None:
    """Run tasks, and note what they found in their order. Raises: LeftOutError, StoreError."""
    name = run.account.scenario
    rdd = cluster.one_by_one(tasks).map(lambda one: _task(name, one))
    for settings, found in zip(tasks, cluster.collect(rdd, lambda *_: run.show()), strict=True):
        if isinstance(found, str):
            raise LeftOutError(found)
        run.round = settings.round or run.round
        run.join(found)
    run.show()


def _task(name: str, settings: Settings) -> Account | str:
    """What a task found, or why it was left out."""
    logging.getLogger("amqpstore").addHandler(logging.NullHandler())
    gc.set_threshold(100_000, 50, 100)
    with tempfile.TemporaryDirectory(prefix="amqpstore-drill-") as work:
        try:
            return run_rounds(name, dataclasses.replace(settings, work=work))
        except LeftOutError as error:
            return str(error)
