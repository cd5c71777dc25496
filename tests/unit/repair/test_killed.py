"""A repair and its undoing, killed before each of their changes: nothing is lost by it."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from amqpstore import Store, UnfinishedRepairError
from amqpstore_tools.check.engine import check
from amqpstore_tools.copying.copier import CopyOptions, copy_store
from amqpstore_tools.copying.restoring import restore
from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.offline.locations import require_store
from amqpstore_tools.repair.apply import apply_plan
from amqpstore_tools.repair.errors import NothingToUndoError
from amqpstore_tools.repair.journal import State, repairs
from amqpstore_tools.repair.listing import Listing, listing
from amqpstore_tools.repair.plan import read_plan
from amqpstore_tools.repair.undo import undo
from fixtures import make_damage
from fixtures.damaging import damage
from tests.unit.repair.mending import plan_of

ROOT = Path(make_damage.__file__).parents[1]
GOLDEN = ROOT / "fixtures/v1/golden/store"
_MAX_CALLS = 400


class Kill(Protocol):
    """Do something in a process that dies at its n-th change; return whether it did die."""

    def __call__(self, verb: str, directory: str, plan: str, last: int) -> bool: ...


@pytest.fixture(scope="module")
def kill() -> Iterator[Kill]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.unit.repair.killed"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin
        assert stdout

        def run(verb: str, directory: str, plan: str, last: int) -> bool:
            stdin.write(f"{verb}\t{directory}\t{plan}\t{last}\n")
            stdin.flush()
            said = stdout.readline().strip()
            assert said in ("killed", "0"), said
            return said == "killed"

        yield run
        stdin.close()
        process.wait(timeout=60)


@pytest.fixture
def broken(tmp_path: Path) -> tuple[str, str, Listing]:
    """A damaged store, a plan for it, and how it was."""
    directory = str(shutil.copytree(GOLDEN, tmp_path / "broken"))
    operations: list[dict[str, Any]] = [
        {"do": "flip", "file": "segments/0000000003.segment", "offset": 300, "bit": 1},
        {"do": "flip", "file": "catalog/data.mdb", "offset": 8192 * 3, "bit": 2},
        {"do": "make", "file": "notes.txt", "text": "not ours"},
    ]
    damage(directory, operations)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(plan_of(directory).as_json()), "utf-8")
    return directory, str(plan), listing(directory)


def test_an_apply_that_is_killed_is_finished_or_taken_back(
    broken: tuple[str, str, Listing], tmp_path: Path, kill: Kill
) -> None:
    directory, plan, before = broken
    met = set()
    for last in range(_MAX_CALLS):
        first, second = (
            str(shutil.copytree(directory, tmp_path / f"{name}{last}")) for name in ("a", "b")
        )
        was_killed = kill("apply", first, plan, last)
        assert kill("apply", second, plan, last) == was_killed
        met |= look_at(first)
        apply_again(first, plan, was_killed=was_killed)
        assert not check(first).is_damaged
        take_back(second)
        assert listing(second) == before
        shutil.rmtree(first)
        shutil.rmtree(second)
        if not was_killed:
            break
    assert not was_killed
    assert last > 30
    assert met == {None, State.APPLYING, State.APPLIED}


def test_an_undo_that_is_killed_is_finished(
    broken: tuple[str, str, Listing], tmp_path: Path, kill: Kill
) -> None:
    directory, plan, before = broken
    apply_plan(directory, read_plan(plan))
    met = set()
    for last in range(_MAX_CALLS):
        copy = str(shutil.copytree(directory, tmp_path / f"copy{last}"))
        was_killed = kill("undo", copy, plan, last)
        met |= look_at(copy)
        take_back(copy)
        assert listing(copy) == before
        shutil.rmtree(copy)
        if not was_killed:
            break
    assert not was_killed
    assert last > 10
    assert State.UNDOING in met


def open_and_close(directory: str) -> None:
    Store.open(directory).close()


def read(directory: str) -> None:
    StoreImage.open(directory).close()


def copy(directory: str) -> None:
    shutil.rmtree(f"{directory}.copy", ignore_errors=True)
    copy_store(directory, f"{directory}.copy", CopyOptions())


VERBS: list[Callable[[str], object]] = [
    *(open_and_close, read, check, copy, plan_of, require_store),
    lambda directory: restore(str(GOLDEN), directory, links=True, accept_damage=False),
]
"""First steps of the broker's start, and of each verb."""


def look_at(directory: str) -> set[State | None]:
    """Return how far it came. While files are being moved, every verb says so and how to go on."""
    found: set[State | None] = {
        one.journal.state if one.journal else None for one in repairs(directory)
    }
    if found & {State.APPLYING, State.UNDOING}:
        for verb in VERBS:
            with pytest.raises(UnfinishedRepairError) as caught:
                verb(directory)
            assert f"amqpstore repair {directory} --undo`" in str(caught.value)
            assert ("--apply" in str(caught.value)) == (State.APPLYING in found)
    return found


def named_plan(directory: str, plan: str) -> str:
    """Return the plan that the error names for going on, or the one that it was begun with."""
    try:
        check(directory)
    except UnfinishedRepairError as error:
        return str(error).partition("--apply ")[2].partition("`")[0]
    return plan


def apply_again(directory: str, plan: str, *, was_killed: bool) -> None:
    is_done = any(one.journal and one.journal.state is State.APPLIED for one in repairs(directory))
    if was_killed and not is_done:
        apply_plan(directory, read_plan(named_plan(directory, plan)))


def take_back(directory: str) -> None:
    """Undo what there is; where nothing was begun yet, nothing is there to be undone."""
    try:
        undo(directory)
    except NothingToUndoError:
        assert not Path(directory, "quarantine").exists()
