"""Options of the command come before, between and behind its arguments."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from amqpstore import Options, Store
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.__main__ import main


@pytest.fixture
def directory(tmp_path: Path) -> str:
    path = str(tmp_path / "store")
    Store.open(path, options=Options(reserve_bytes=0), worker=InlineWorker()).close()
    return path


def orders(*parts: tuple[str, ...]) -> list[list[str]]:
    """Every order in which the first part, a positional argument, is before the last one."""
    found = itertools.permutations(parts)
    return [
        [word for part in order for word in part]
        for order in found
        if order.index(parts[0]) < order.index(parts[-1])
    ]


def test_an_argument_that_may_be_omitted_is_taken_in_any_place(
    directory: str, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    for words in orders((directory,), ("--format", "msgpack"), ("--json",), (out,)):
        assert main(["export", *words]) == 0, words
        assert Path(out).stat().st_size
        Path(out).unlink()


def test_an_argument_of_an_action_is_taken_in_any_place(directory: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    for words in (["--data", directory, out], [out, "--data", directory]):
        assert main(["definitions", "export", *words, "--json"]) == 0, words
        assert Path(out).stat().st_size
        Path(out).unlink()


def test_what_is_behind_two_hyphens_is_not_an_option(
    directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", "--format", "msgpack", "--", directory, "-out"]) == 0
    assert Path("-out").stat().st_size


@pytest.mark.parametrize("words", [["--format", "msgpack"], ["D", "F", "G"], ["D", "--bogus"]])
def test_wrong_arguments_are_still_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["export", *words])
    assert refused.value.code == 2
