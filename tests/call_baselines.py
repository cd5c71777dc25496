"""A piece of work may cost a tenth more calls than its baseline in `calls.toml`, not more: so a
function can be extracted where that reads better, and a slow growth of the cost is seen.

A baseline belongs to a version of Python; a version that has none uses the newest one before it.
`pytest --store-calls PATHS` stores what the tests count as the baselines of the running version.
"""

from __future__ import annotations

import math
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.calls import Counts

PATH = Path(__file__).with_name("calls.toml")
MOST = 1.1
"""The ratio of what a piece of work may cost to its baseline."""

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

_HEAD = """\
# Calls of Python functions and of built-in ones, for each message, batch or death, by version of
# Python: see call_baselines.py, which also stores them.
"""


class Calls(NamedTuple):
    """Calls of Python functions (and generators resumed), and of built-in ones, for each piece of
    work.
    """

    python: float
    built_in: float

    @classmethod
    def of(cls, counts: Counts, pieces: int) -> Calls:
        """Return what each of some pieces of work cost, to a hundredth, upwards."""
        return cls(_up(counts.python.total() / pieces), _up(counts.built_in.total() / pieces))

    def over(self, baseline: Calls) -> list[str]:
        """Return what costs more than it may."""
        return [
            f"{calls} calls of {kind} functions, and the baseline is {before}"
            for kind, calls, before in zip(("Python", "built-in"), self, baseline, strict=True)
            if calls > before * MOST
        ]


def _up(calls: float) -> float:
    return math.ceil(calls * 100 - 1e-6) / 100


def baselines_of(version: str, tables: Mapping[str, Mapping[str, list[float]]]) -> dict[str, Calls]:
    """Return the baselines of a version of Python, or of the newest one before it that has any."""
    known = [one for one in tables if _number(one) <= _number(version)]
    table = tables[max(known, key=_number)]
    return {name: Calls(*calls) for name, calls in table.items()}


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


class Baselines:
    """Compares what is counted with the baselines. Args: stores, whether it becomes the
    baselines.
    """

    def __init__(self, path: Path, *, stores: bool) -> None:
        self._path = path
        self._stores = stores

    def check(self, name: str, calls: Calls, counts: Counts) -> None:
        """Make sure that a piece of work costs at most a tenth more than it did.

        Args: counts, whose functions that were called most are reported otherwise.
        """
        if self._stores:
            self._store(name, calls)
        over = calls.over(self.baselines()[name])
        most = counts.python.most_common(200), counts.built_in.most_common(50)
        assert not over, (name, over, most)

    def baselines(self) -> dict[str, Calls]:
        """Return the baselines of the running version of Python, by the piece of work that they are
        of.
        """
        return baselines_of(VERSION, self._tables())

    def _tables(self) -> dict[str, dict[str, list[float]]]:
        return tomllib.loads(self._path.read_text("utf-8"))

    def _store(self, name: str, calls: Calls) -> None:
        tables = self._tables()
        tables.setdefault(VERSION, {})[name] = [*calls]
        rows = [_HEAD]
        for version in sorted(tables, key=_number):
            rows.append(f'\n["{version}"]\n')
            rows += [f'"{name}" = {calls}\n' for name, calls in sorted(tables[version].items())]
        self._path.write_text("".join(rows), "utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--store-calls", action="store_true", help="store the calls that tests count as baselines"
    )


@pytest.fixture(scope="session")
def call_baselines(pytestconfig: pytest.Config) -> Baselines:
    """The baselines of this project."""
    return Baselines(PATH, stores=pytestconfig.option.store_calls)
