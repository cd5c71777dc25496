"""The seed of a run of tests, and what is drawn with it; runs that are bounded in time.

Every run has a seed, which it prints, and `--seed N` draws the same again. It decides

- what a test marked `rounds(count)` runs on: it gets that many values of `seed`. So each run of the
  long proofs proves other histories than those before it;
- the examples of hypothesis;
- with `--for SECONDS` the order of the tests: so what a bounded run gets to is another part each
  time, and many runs come to all of it.
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
    group.addoption("--seed", dest="run_seed", type=int, help="default: another one each time")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # Workers of xdist draw what the others draw: they must all collect the same tests.
    config.option.run_seed = getattr(config, "workerinput", {}).get(
        "run_seed", config.option.run_seed
    )
    if config.option.run_seed is None:
        config.option.run_seed = random.SystemRandom().randrange(1 << 31)
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = config.option.run_seed
    if config.option.sample_s is not None:
        config.pluginmanager.register(Sample(config.option.sample_s, config.option.run_seed))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Called by xdist for each worker."""
    node.workerinput["run_seed"] = node.config.option.run_seed


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: --seed {config.option.run_seed} runs the same again"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Draw the seeds of a test's rounds. A round's id is its number, so that ids stay the same."""
    if marker := metafunc.definition.get_closest_marker("rounds"):
        (count,) = marker.args
        rng = random.Random(f"{metafunc.config.option.run_seed} {metafunc.definition.nodeid}")
        seeds = [rng.randrange(1 << 32) for _ in range(count)]
        metafunc.parametrize("seed", seeds, ids=map(str, range(count)))


def pytest_terminal_summary(
    terminalreporter: TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    if exitstatus:
        terminalreporter.write_line(f"--seed {config.option.run_seed} runs the same again")


class Sample:
    """The tests that fit into a given time."""

    def __init__(self, seconds: float, seed: int) -> None:
        self._seconds = seconds
        self._seed = seed
        self._until = 0.0
        self._ended: set[str] = set()

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
            f"sample: {len(self._ended)} tests in {self._seconds:g} s, --seed {self._seed}"
        )
