"""The seed of a run of tests, the share of the long proofs, and runs that are bounded in time.

The seed decides what a test marked `rounds(count)` runs on, as it gets that many values of `seed`,
and the examples of hypothesis. It is the one in `proofs.toml`, so that the same commit has the
same verdict, unless `--seed N` says otherwise: `make prove` draws one, and so proves other
histories each time.

`--share` selects the long proofs of `proofs.toml` whose turn it is. `--for SECONDS` begins no test
after that time, in an order drawn by the seed: what such a run gets to is another part each time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable

import pytest
from _pytest.terminal import TerminalReporter

from tests.proofs import Proofs

LONG_TESTS = pytest.StashKey[set[str]]()
"""The long tests among those that were collected, without the ids of their parameters."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sampling")
    group.addoption(
        "--for",
        dest="sample_s",
        type=float,
        metavar="SECONDS",
        help="run tests in an order drawn by --seed, and begin none after that many seconds",
    )
    group.addoption("--seed", dest="run_seed", type=int, help="default: the one in proofs.toml")
    group.addoption(
        "--share", action="store_true", help="run the long proofs of proofs.toml whose turn it is"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    proofs = Proofs.read()
    if config.option.run_seed is None:
        config.option.run_seed = proofs.seed
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = config.option.run_seed
    if config.option.share:
        config.pluginmanager.register(Share(proofs))
    if config.option.sample_s is not None:
        config.pluginmanager.register(Sample(config.option.sample_s, config.option.run_seed))


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: --seed {config.option.run_seed} runs the same again"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Draw the seeds of a test's rounds. A round's id is its number, so that ids stay the same."""
    if marker := metafunc.definition.get_closest_marker("rounds"):
        (count,) = marker.args
        rng = random.Random(f"{metafunc.config.option.run_seed} {metafunc.definition.nodeid}")
        seeds = [rng.randrange(1 << 32) for _ in range(count)]
        metafunc.parametrize("seed", seeds, ids=map(str, range(count)))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Note the long tests, before those that are not wanted leave the list."""
    config.stash[LONG_TESTS] = {name_of(item) for item in long_tests(items)}


def pytest_terminal_summary(
    terminalreporter: TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    if exitstatus:
        terminalreporter.write_line(f"--seed {config.option.run_seed} runs the same again")


def long_tests(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return those that `make prove` runs."""
    return [
        item
        for item in items
        if item.get_closest_marker("long") and not item.get_closest_marker("alone")
    ]


def name_of(item: pytest.Item) -> str:
    """Return the name of a test without the id of its parameters."""
    return item.nodeid.partition("[")[0]


class Share:
    """The long proofs whose turn it is, in the order of the list."""

    def __init__(self, proofs: Proofs) -> None:
        self._proofs = proofs

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        places = {name: place for place, name in enumerate(self._proofs.share)}
        chosen = [item for item in long_tests(items) if name_of(item) in places]
        chosen.sort(key=lambda item: places[name_of(item)])
        config.hook.pytest_deselected(items=[item for item in items if item not in {*chosen}])
        items[:] = chosen

    def pytest_report_header(self) -> str:
        proofs = self._proofs
        turns = len(proofs.rotation)
        return f"share: turn {proofs.turn} of {turns}, {proofs.minutes:.0f} minutes"


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
        """Return True, which skips a test, when the time is over: there is no report of the test,
        so it counts as not run.
        """
        return True if time.monotonic() > self._until else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self._ended.add(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        terminalreporter.write_line(
            f"sample: {len(self._ended)} tests in {self._seconds:g} s, --seed {self._seed}"
        )
