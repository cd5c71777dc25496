"""A run of tests that is bounded in time: `--for SECONDS`, in an order that a seed draws.

Which of the long proofs such a run gets to changes with the seed, so that many runs come to all of
them. `--seed N` runs the same order again.
"""

import random
import time
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sampling")
    group.addoption(
        "--for",
        dest="sample_s",
        type=float,
        metavar="SECONDS",
        help="run tests in an order drawn by --seed, and begin none after that many seconds",
    )
    group.addoption("--seed", dest="sample_seed", type=int, help="default: another one each time")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.sample_s is None:
        return
    seed = getattr(config, "workerinput", {}).get("sample_seed", config.option.sample_seed)
    if seed is None:
        seed = random.SystemRandom().randrange(1 << 31)
    config.pluginmanager.register(Sample(config.option.sample_s, seed))


class Sample:
    """What of the tests fits into a time."""

    def __init__(self, seconds: float, seed: int) -> None:
        self._seconds = seconds
        self._seed = seed
        self._until = 0.0
        self._ended: set[str] = set()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """The workers of xdist draw the same order."""
        node.workerinput["sample_seed"] = self._seed

    def pytest_report_header(self) -> str:
        return f"sample: none begins after {self._seconds:g} s, --seed {self._seed}"

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        random.Random(self._seed).shuffle(items)

    def pytest_collection_finish(self) -> None:
        self._until = time.monotonic() + self._seconds

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """True is that it is done with: there is no report of it, so it counts as not run."""
        return True if time.monotonic() > self._until else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self._ended.add(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        terminalreporter.write_line(
            f"sample: {len(self._ended)} tests in {self._seconds:g} s; --seed {self._seed}"
        )
