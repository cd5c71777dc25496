"""Rounds of a scenario, and who runs them: this process, or whatever else is a `Drill`.

A round depends on the seed and its number alone, so it does the same wherever it runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from amqpstore_tools.drill.copying import copy_store
from amqpstore_tools.drill.run import Run, Settings
from amqpstore_tools.drill.scenarios import SCENARIOS
from amqpstore_tools.drill.verdict import Account

Show = Callable[[Run], None]
"""Told how far a run is."""


def run_rounds(name: str, settings: Settings, show: Show = lambda _run: None) -> Account:
    """Run the rounds of a scenario that the settings name. Returns what was found.

    Raises: LeftOutError, where the scenario cannot work on the data directory; StoreError, OSError.
    """
    if settings.data:
        copy_store(settings.data, os.path.join(settings.work, "store"))
    run = Run(name, settings, show)
    SCENARIOS[name].run(run)
    return run.end()


class Drill(Protocol):
    """Where the rounds of scenarios run."""

    def run(self, name: str, settings: Settings, show: Show) -> Account:
        """As `run_rounds`, as its bounds allow."""


class ProcessDrill:
    """This process, one round after another."""

    def run(self, name: str, settings: Settings, show: Show) -> Account:
        return run_rounds(name, settings, show)
