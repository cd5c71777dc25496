"""Directories, pipes and the like in a store or a copy, and the verbs that change or replace one.

Each of them does its work, or names the thing and what to do, and leaves the store as it was.
"""

import os
import shutil
from pathlib import Path

import pytest

from amqpstore.catalog.catalog import Change
from amqpstore.system.files import FileType
from amqpstore_tools.repair.listing import listing
from tests.unit.offline.stores import Command, make_busy, open_store
from tests.unit.offline.test_wrong_kinds import (
    KINDS,
    copy_of,
    exported,
    kinds_for,
    names_of,
    put,
    segments_of,
)
from tests.unit.repair import conftest

tmp_path = conftest.tmp_path
"""A directory in memory, as the verbs sync a lot."""

NEXT_STEPS = ("amqpstore check", "amqpstore repair", "Name a directory")
OTHERS = ("reports", "admin.sock", "COPY.json", "COPY.incomplete", "quarantine/notes.txt")
"""Names that an engine does not look at."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A broker's store with something of every name."""
    directory = make_busy(str(tmp_path_factory.mktemp("kinds") / "store"))
    with open_store(directory) as store:
        store.definitions.define([Change("vhosts", "/", {})])
    for folder in ("quarantine", "trails", "transient", "kept"):
        Path(directory, folder).mkdir(exist_ok=True)
    return directory


VERBS = {
    "compact": ("compact", "DIR"),
    "import": ("import", "DIR", "FILE"),
    "upgrade": ("upgrade", "DIR"),
    "vhosts": ("vhosts", "add", "shop", "--data", "DIR"),
}


def test_a_verb_that_changes_a_store_does_so_or_says_what_is_in_its_way(
    original: str, command: Command, tmp_path: Path
) -> None:
    more = str(tmp_path / "more.jsonl")
    command("export", original, more)
    segments = segments_of(original)
    works = (
        "import quarantine/notes.txt",
        "compact segments/0000000001.spare",
        "vhosts admin.sock",
    )
    cases: list[tuple[str, str, FileType | str]] = [
        ("import", "quarantine/notes.txt", FileType.FILE),
        ("import", "quarantine/notes.txt", FileType.PIPE),
        ("import", "reports", FileType.SOCKET),
        ("import", "lock", FileType.DIRECTORY),
        ("import", "trails", FileType.FILE),
        ("compact", f"segments/{segments[0]}", FileType.PIPE),
        ("compact", f"segments/{segments[-1]}", FileType.BROKEN_LINK),
        ("compact", "segments/0000000001.spare", FileType.BROKEN_LINK),
        ("compact", "lock", FileType.SOCKET),
        ("vhosts", "admin.sock", "circle"),
        ("vhosts", "admin.sock", FileType.DIRECTORY),
        ("vhosts", "catalog/data.mdb", FileType.PIPE),
        ("upgrade", "lock", FileType.PIPE),
        ("upgrade", "STORE", FileType.DEVICE),
    ]
    for verb, name, kind in cases:
        within = tmp_path / "one"
        directory = copy_of(original, within / "store")
        put(kind, f"{directory}/{name}")
        before, held = listing(directory), exported(command, directory)
        words = {"DIR": directory, "FILE": more}
        done = command(*(words.get(one, one) for one in VERBS[verb]))
        assert done.code in (0, 4, 5), (verb, name, done)
        if done.code:
            assert f"{verb} {name}" not in works, done
            assert name.partition("/")[0] in done.err
            assert any(step in done.err for step in NEXT_STEPS), done
            assert verb == "compact" or listing(directory) == before
        else:
            added = 56 if verb == "import" else 0
            assert exported(command, directory) == held + added
        assert [*within.glob("store.*ing")] == []
        shutil.rmtree(within)


def test_what_is_of_the_wrong_kind_in_a_copy_is_named_when_it_is_restored(
    original: str, command: Command, tmp_path: Path
) -> None:
    copy = str(tmp_path / "copy")
    assert command("copy", original, copy, "--no-links").code == 0
    names = [name for name in names_of(copy) if os.path.lexists(f"{copy}/{name}")]
    for number, name in enumerate([*names, *OTHERS]):
        within = tmp_path / "one"
        odd = copy_of(copy, within / "copy")
        kinds = kinds_for(name)
        os.makedirs(os.path.dirname(f"{odd}/{name}"), exist_ok=True)
        put(kinds[number % len(kinds)], f"{odd}/{name}")
        place = copy_of(original, within / "place")
        before = listing(place)
        done = command("restore", odd, place)
        if done.code:
            assert done.code in (4, 5), (name, done)
            assert name.partition("/")[0] in done.err
            assert listing(place) == before
        done = command("copy", original, str(within / "next"), "--against", odd)
        assert done.code in (0, 5), (name, done)
        if done.code == 0:
            assert exported(command, str(within / "next")) == exported(command, original)
        shutil.rmtree(within)


@pytest.mark.parametrize("kind", KINDS)
def test_a_manifest_of_the_wrong_kind_is_not_passed_over(
    original: str, command: Command, tmp_path: Path, kind: FileType | str
) -> None:
    copy, place = str(tmp_path / "copy"), str(tmp_path / "place")
    assert command("copy", original, copy).code == 0
    put(kind, f"{copy}/COPY.json")
    done = command("restore", copy, place)
    assert done.code == 5
    assert f"{copy}/COPY.json" in done.err
    assert not os.path.lexists(place)
