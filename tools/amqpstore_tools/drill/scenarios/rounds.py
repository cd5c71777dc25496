"""The rounds of a scenario, run by this process or by any other `Drill`.

A round depends only on the seed and its number, so it does the same wherever it runs.
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
"""Shows the progress of a run."""


def run_rounds(name: str, settings: Settings, show: Show = lambda _run: None) -> Account:
    """Run the rounds of a scenario that the settings name. Returns what was found.

    Raises: LeftOutError, if the scenario cannot work on the data directory; StoreError, OSError.
    """
    if settings.data:
        copy_store(settings.data, os.path.join(settings.work, "store"))
    run = Run(name, settings, show)
    SCENARIOS[name].run(run)
    return run.end()


class Drill(Protocol):
    """Runs the rounds of scenarios."""

    def run(self, name: str, settings: Settings, show: Show) -> Account:
        """Run rounds as `run_rounds` does, within its bounds."""


class ProcessDrill:
    """Runs one round after another in this process."""

    def run(self, name: str, settings: Settings, show: Show) -> Account:
        return run_rounds(name, settings, show)
