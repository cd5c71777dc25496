"""Tests of files in a store that belong to another user, so that its owner may not open them."""

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from amqpstore_tools.check.engine import check
from tests.unit.offline.stores import Command, make_busy

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")

BROKER = 12345
GROUP = 23456
OTHER = 34567


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """A store of the broker's user."""
    path = make_busy(str(tmp_path / "a store"))
    give_all(path, BROKER, GROUP)
    return path


def give_all(directory: str, user: int, group: int) -> None:
    for folder, _, names in os.walk(directory):
        for name in (".", *names):
            os.chown(f"{folder}/{name}", user, group)


def put(path: str, user: int, group: int, mode: int) -> None:
    os.chown(path, user, group)
    os.chmod(path, mode)


def foreign(directory: str) -> list[str]:
    return [one.file for one in check(directory).findings if one.code == "file-foreign"]


def first(directory: str, folder: str) -> str:
    return f"{folder}/{min(os.listdir(f'{directory}/{folder}'))}"


@pytest.mark.parametrize("user", [0, OTHER])
def test_each_file_that_the_owner_may_not_open_is_named_with_its_cure(
    directory: str, command: Command, user: int
) -> None:
    segment, index = first(directory, "segments"), first(directory, "index")
    names = ["STORE", "lock", "catalog", "catalog/data.mdb", "segments", segment, "index", index]
    for name in names:
        path = f"{directory}/{name}"
        mode = os.stat(path).st_mode & 0o7777
        put(path, user, user, 0o700 if os.path.isdir(path) else 0o600)
        checked = check(directory)
        [found] = checked.findings.of_harm()
        assert (found.code, found.file) == ("file-foreign", name)
        [shown] = json.loads(command("inspect", directory, "--json").out)["foreign_files"]
        assert shown == {"name": name, "reason": found.text}
        cure = found.text.partition("Give it to that user: ")[2]
        assert shlex.split(cure) == ["chown", f"{BROKER}:{GROUP}", path]
        subprocess.run(shlex.split(cure), check=True)
        os.chmod(path, mode)
        assert not check(directory).is_damaged


def test_a_repair_is_refused_until_the_owner_may_open_all(
    directory: str, command: Command, tmp_path: Path
) -> None:
    put(f"{directory}/lock", 0, 0, 0o600)
    found = command("check", directory)
    assert (found.code, "file-foreign" in found.out) == (1, True)
    assert "chown" in command("inspect", directory).out
    refused = command("repair", directory, "--plan", str(tmp_path / "plan.json"))
    assert refused.code not in (0, 1)
    assert f"chown {BROKER}:{GROUP} '{directory}/lock'" in refused.err


def test_a_volume_of_root_belongs_to_the_owner_of_the_marker(directory: str) -> None:
    os.chown(directory, 0, 0)
    assert foreign(directory) == []
    put(f"{directory}/catalog/lock.mdb", 0, 0, 0o644)
    assert foreign(directory) == ["catalog/lock.mdb"]


def test_what_the_owner_may_open_is_not_foreign(directory: str) -> None:
    segment, index = first(directory, "segments"), first(directory, "index")
    put(f"{directory}/{segment}", 0, 0, 0o644)
    put(f"{directory}/{index}", OTHER, GROUP, 0o640)
    put(f"{directory}/lock", OTHER, GROUP, 0o660)
    put(f"{directory}/index", 0, GROUP, 0o770)
    assert not check(directory).is_damaged
    # Of its own user, whatever the mode: that is for the user to know.
    os.chmod(f"{directory}/{segment}", 0o600)
    os.chown(f"{directory}/{segment}", BROKER, 0)
    assert not check(directory).is_damaged


@pytest.mark.parametrize("user", [0, BROKER])
def test_a_store_of_one_user_has_none(directory: str, user: int) -> None:
    give_all(directory, user, user)
    assert not check(directory).is_damaged


def test_root_may_open_everything(directory: str) -> None:
    give_all(directory, 0, 0)
    put(f"{directory}/lock", OTHER, OTHER, 0o600)
    assert not check(directory).is_damaged


def test_a_store_that_root_uses_in_a_directory_of_another_user_is_that_of_root(
    directory: str,
) -> None:
    give_all(directory, 0, 0)
    os.chown(directory, OTHER, OTHER)
    assert not check(directory).is_damaged
