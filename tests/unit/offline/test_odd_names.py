"""Paths that are not UTF-8: every verb takes them, and a sound store on one is sound."""

import os
from pathlib import Path

import pytest

from amqpstore_tools.__main__ import main
from tests.unit.copying.stores import bodies, make_store

ODD = os.fsdecode(b"caf\xe9")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / ODD / "store"
    directory.parent.mkdir()
    make_store(str(directory), batches=3)
    return directory


def test_every_verb_takes_such_a_directory(directory: Path) -> None:
    store, top = str(directory), directory.parent
    for verb in ("check", "inspect", "compact"):
        assert main([verb, store]) == 0
        if verb != "compact":
            assert main([verb, store, "--json"]) == 0
    assert main(["export", store, str(top / "exported")]) == 0
    assert main(["copy", store, str(top / "copy")]) == 0
    assert main(["copy", store, str(top / "next"), "--against", str(top / "copy")]) == 0
    assert main(["restore", str(top / "copy"), store]) == 0
    assert bodies(store) == bodies(str(top / "next"))


def test_a_repair_moves_such_a_file_and_puts_it_back(directory: Path) -> None:
    foreign = directory / "segments" / ODD
    foreign.write_bytes(b"somebody's")
    store, plan = str(directory), str(directory.parent / "plan")
    assert main(["check", store]) == 1
    assert main(["repair", store, "--plan", plan]) == 0
    assert main(["repair", store, "--apply", plan]) == 0
    assert not foreign.exists()
    assert main(["repair", store, "--undo"]) == 0
    assert foreign.read_bytes() == b"somebody's"
