"""Tests of the baselines that calls are compared with, and of how they are stored."""

from pathlib import Path

import pytest

from tests.call_baselines import Baselines, Calls, baselines_of
from tests.calls import Counts


def test_a_tenth_more_is_let_through_and_more_is_not() -> None:
    baseline = Calls(100.0, 10.0)
    assert Calls(110.0, 11.0).over(baseline) == []
    assert Calls(110.1, 11.0).over(baseline) == [
        "110.1 calls of Python functions, and the baseline is 100.0"
    ]
    assert Calls(100.0, 11.1).over(baseline) == [
        "11.1 calls of built-in functions, and the baseline is 10.0"
    ]


def test_a_version_without_baselines_has_those_of_the_newest_one_before() -> None:
    tables = {"3.9": {"a": [1.0, 1.0]}, "3.11": {"a": [2.0, 2.0]}, "3.13": {"a": [3.0, 3.0]}}
    assert baselines_of("3.12", tables) == {"a": Calls(2.0, 2.0)}
    assert baselines_of("3.13", tables) == {"a": Calls(3.0, 3.0)}
    assert baselines_of("3.14", tables) == {"a": Calls(3.0, 3.0)}


def test_stored_calls_are_the_baselines(tmp_path: Path) -> None:
    path = tmp_path / "calls.toml"
    path.write_text('["3.1"]\n"a" = [1.0, 1.0]\n', "utf-8")
    with pytest.raises(AssertionError, match=r"the baseline is 1\.0"):
        Baselines(path, stores=False).check("a", Calls(2.0, 2.5), Counts())
    Baselines(path, stores=True).check("a", Calls(2.0, 2.5), Counts())
    Baselines(path, stores=False).check("a", Calls(2.0, 2.5), Counts())
    assert Baselines(path, stores=False).baselines() == {"a": Calls(2.0, 2.5)}
    assert '["3.1"]\n"a" = [1.0, 1.0]\n' in path.read_text("utf-8")
