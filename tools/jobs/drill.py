"""`amqpstore drill --engine spark`: the rounds of a drill, spread over a cluster.

A round depends on the seed and its number alone, so each is a task, wherever it runs. What they
found is put together in the order of their numbers: the same seed gives the same verdicts as on one
core. Rounds begin in waves, and time and images are looked at between them.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import os
import tempfile
from collections.abc import Callable

from tools.drill.copying import copy_store
from tools.drill.run import LeftOutError, Run, Settings
from tools.drill.scenarios import SCENARIOS
from tools.drill.verdict import Account
from tools.jobs.cluster import Cluster

ON_ONE_MACHINE = ("kill",)
"""A round goes on where the one before it ended, with a broker that runs on this machine."""

_ROUNDS_A_CORE = 2
"""In a wave: some rounds take longer than others."""


def drill(
    cluster: Cluster, name: str, settings: Settings, show: Callable[[Run], None] = lambda _run: None
) -> Account:
    """Run a scenario until a bound of its settings is reached. Returns what was found.

    `settings.work` is not used: a task has a directory of its own machine.
    Raises: LeftOutError, where the scenario cannot work on the data directory; StoreError, OSError.
    """
    run = Run(name, settings, show)
    number = settings.round or 1
    last = settings.round or settings.rounds
    while not run.is_over and (last is None or number <= last):
        wave = range(number, number + _ROUNDS_A_CORE * cluster.cores)
        if last is not None:
            wave = range(number, min(wave.stop, last + 1))
        rdd = cluster.one_by_one(list(wave)).map(lambda one: _round(name, settings, one))
        for of_round, found in sorted(cluster.collect(rdd, lambda *_: show(run))):
            if isinstance(found, str):
                raise LeftOutError(found)
            run.round = of_round
            run.join(found)
        number = wave.stop
        show(run)
    return run.end()


def _round(name: str, settings: Settings, number: int) -> tuple[int, Account | str]:
    """One round, in a task. Returns its number and its account, or why it was left out."""
    logging.getLogger("amqpstore").addHandler(logging.NullHandler())
    gc.set_threshold(100_000, 50, 100)
    with tempfile.TemporaryDirectory(prefix="amqpstore-drill-") as work:
        if settings.data:
            copy_store(settings.data, os.path.join(work, "store"))
        # What bounds the drill bounds no round: it would depend on where it runs.
        one = dataclasses.replace(
            settings, work=work, round=number, seconds=None, images=None, rounds=None
        )
        run = Run(name, one)
        try:
            SCENARIOS[name].run(run)
        except LeftOutError as error:
            return number, str(error)
        return number, run.end()
