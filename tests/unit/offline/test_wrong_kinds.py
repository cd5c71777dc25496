"""Directories, pipes and the like in the place of any file or directory of a store.

Every verb names the thing and does all the rest, and none of them waits for it.
"""

import contextlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from amqpstore import Store, UnreadableFileError
from amqpstore.evidence import find_wrong_kinds
from amqpstore.system.files import FileType, OsFiles, type_of
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.check.engine import check
from amqpstore_tools.repair.listing import listing
from amqpstore_tools.repair.undo import undo
from tests.unit.offline.stores import SMALL, Command, make_busy, publish
from tests.unit.repair import conftest
from tests.unit.repair.mending import mend

tmp_path = conftest.tmp_path
"""A directory in memory, as repairs and copies sync a lot."""

NOBODY = 65534
CATALOG = ("STORE", "catalog", "catalog/data.mdb")
"""Names without which no copy can be made."""

NEEDED = (
    *(*CATALOG, "lock", "catalog/lock.mdb", "segments", "index", "quarantine", "trails"),
    *("transient", "kept", "MEMBER", "REPLACEMENT"),
)
"""Names of files and directories without which the broker does not start."""


def make_directory(path: str) -> None:
    os.mkdir(path)
    Path(path, "something").write_text("else", "utf-8")


def make_socket(path: str) -> None:
    here = os.getcwd()
    with socket.socket(socket.AF_UNIX) as listening:
        # The path of a socket is short.
        os.chdir(os.path.dirname(path))
        try:
            listening.bind(os.path.basename(path))
        finally:
            os.chdir(here)


KINDS: dict[FileType | str, Callable[[str], None]] = {
    FileType.PIPE: os.mkfifo,
    FileType.DIRECTORY: make_directory,
    FileType.BROKEN_LINK: lambda path: os.symlink("/nowhere/at/all", path),
    FileType.DEVICE: lambda path: os.symlink("/dev/zero", path),
    FileType.SOCKET: make_socket,
    "circle": lambda path: os.symlink(os.path.basename(path), path),
    FileType.FILE: lambda path: Path(path).touch(),
}
FOLDERS = ("catalog", "segments", "index", "quarantine", "trails", "transient", "kept")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with something of every name."""
    directory = make_busy(str(tmp_path_factory.mktemp("kinds") / "store"))
    for folder in ("quarantine", "trails", "transient", "kept"):
        Path(directory, folder).mkdir(exist_ok=True)
    first = segments_of(directory)[0]
    shutil.copy(f"{directory}/segments/{first}", f"{directory}/quarantine/0000000099.segment")
    return directory


def segments_of(directory: str) -> list[str]:
    return sorted(name for name in os.listdir(f"{directory}/segments") if "spare" not in name)


def names_of(directory: str) -> list[str]:
    """Every name of a store, of segments the first, the last of the log, and a compacted one."""
    segments = segments_of(directory)
    log = [name for name in segments if name < "2"]
    return [
        *(*FOLDERS, "STORE", "lock", "MEMBER", "REPLACEMENT", "STORE.new", "reserve"),
        *("catalog/data.mdb", "catalog/lock.mdb", "catalog/definitions"),
        *("quarantine/0000000099.segment", "quarantine/repair-0000000001"),
        *("trails/0000000001.trail", "transient/0000000001.segment", "kept/0000000001-9.segment"),
        *(f"segments/{name}" for name in (segments[0], log[-1], segments[-1])),
        *("segments/0000000001.spare", "segments/0000004711.segment"),
        f"index/{min(os.listdir(f'{directory}/index'))}",
        "index/00000000000000000077-0000000001.index",
    ]


def kinds_for(name: str) -> list[FileType | str]:
    is_folder = name in FOLDERS or name.startswith("quarantine/repair")
    wrong = FileType.DIRECTORY if is_folder else FileType.FILE
    return [kind for kind in KINDS if kind != wrong]


def put(kind: FileType | str, path: str) -> None:
    """Put something in the place of a file or directory."""
    take_away(path)
    KINDS[kind](path)


def take_away(path: str) -> None:
    shutil.rmtree(path) if os.path.isdir(path) else Path(path).unlink(missing_ok=True)


def look(command: Command, directory: str, name: str, without: int) -> None:
    """Check that every verb that reads names the thing, and does all the rest. Args: without, how
    many messages can be read if nothing has the name.
    """
    findings = check(directory).findings
    (finding,) = [one for one in findings if one.code == "file-wrong-kind"]
    assert finding.file == name
    assert "amqpstore repair" in finding.text
    inspected = command("inspect", directory, "--json")
    assert [one["name"] for one in json.loads(inspected.out)["wrong_kinds"]] == [name]
    assert exported(command, directory) == without
    target = f"{directory}.copy"
    outcome = command("copy", directory, target)
    if name in CATALOG:
        assert outcome.code == 5
        assert "cp -a" not in outcome.err
        assert finding.text in outcome.err
        assert f"{directory}/{name.partition('/')[0]}" in outcome.err
    else:
        assert outcome.code in (0, 1), outcome
        assert not list(find_wrong_kinds(OsFiles(), target))


def repair(command: Command, directory: str, name: str, without: int) -> None:
    """A repair moves it away and keeps all the rest, the broker starts, and an undo restores it."""
    path = f"{directory}/{name}"
    before, was = listing(directory), type_of(path)
    if name in NEEDED:
        with pytest.raises(UnreadableFileError, match=f"{name} cannot be read: it is "):
            start(directory)
    mend(directory)
    assert not check(directory).is_damaged
    assert exported(command, directory) == without
    start(copy_of(directory, Path(f"{directory}.mended")))
    undo(directory)
    assert listing(directory) == before
    assert type_of(path) is was


def exported(command: Command, directory: str) -> int:
    """Export a store, and return the number of its messages."""
    outcome = command("export", directory, f"{directory}.jsonl", "--json")
    assert outcome.code in (0, 1), outcome
    return sum(json.loads(outcome.out)["messages"].values())


def copy_of(original: str, target: Path) -> str:
    def copy(source: str, to: str) -> None:
        """A pipe, too."""
        if type_of(source) is FileType.FILE:
            shutil.copy2(source, to)
        else:
            KINDS[type_of(source)](to)

    return str(shutil.copytree(original, target, symlinks=True, copy_function=copy))


def start(directory: str) -> None:
    Store.open(directory, options=SMALL, worker=InlineWorker()).abandon()


def number_without(command: Command, original: str, name: str, tmp_path: Path) -> int:
    directory = copy_of(original, tmp_path / "without")
    take_away(f"{directory}/{name}")
    return exported(command, directory)


def test_one_of_each_kind_in_the_place_of_each_name(
    original: str, command: Command, tmp_path: Path
) -> None:
    seen = set()
    for number, name in enumerate(names_of(original)):
        kinds = kinds_for(name)
        kind = kinds[number % len(kinds)]
        seen.add(kind)
        within = tmp_path / str(number)
        within.mkdir()
        without = number_without(command, original, name, within)
        directory = copy_of(original, within / "store")
        put(kind, f"{directory}/{name}")
        look(command, directory, name, without)
        repair(command, directory, name, without)
        shutil.rmtree(within)
    assert seen == {*KINDS}


@pytest.mark.long
def test_every_kind_in_the_place_of_each_name(
    original: str, command: Command, tmp_path: Path
) -> None:
    for name in names_of(original):
        without = number_without(command, original, name, tmp_path)
        shutil.rmtree(tmp_path / "without")
        for kind in kinds_for(name):
            within = tmp_path / "one"
            directory = copy_of(original, within / "store")
            put(kind, f"{directory}/{name}")
            look(command, directory, name, without)
            repair(command, directory, name, without)
            shutil.rmtree(within)


def test_a_lost_marker_behind_a_link_is_no_directory_for_a_new_store(
    original: str, tmp_path: Path
) -> None:
    directory = copy_of(original, tmp_path / "store")
    put(FileType.BROKEN_LINK, f"{directory}/STORE")
    before = listing(directory)
    with pytest.raises(UnreadableFileError):
        start(directory)
    assert listing(directory) == before


@pytest.mark.parametrize("is_outside", [False, True])
def test_only_the_lock_must_not_be_a_link_to_a_file(
    original: str, command: Command, tmp_path: Path, *, is_outside: bool
) -> None:
    for name in names_of(original):
        directory = copy_of(original, tmp_path / "store")
        path = f"{directory}/{name}"
        if os.path.exists(path):
            target = str(tmp_path / "outside") if is_outside else f"{path}.real"
            os.rename(path, target)
            os.symlink(target, path)
            wrong_kinds = list(find_wrong_kinds(OsFiles(), directory))
            if name == "lock":
                (wrong,) = wrong_kinds
                assert wrong.reason.startswith("it is a link, where a store has a file")
                (finding,) = [
                    one for one in check(directory).findings if one.code == "file-wrong-kind"
                ]
                assert (finding.file, finding.text) == (name, wrong.reason)
                with pytest.raises(UnreadableFileError, match="lock cannot be read: it is a link"):
                    start(directory)
                mend(directory)
            else:
                assert wrong_kinds == []
            start(directory)
            take_away(target) if is_outside else None
        shutil.rmtree(directory)


def test_numbers_of_what_is_in_the_place_of_the_last_segment_are_not_given_again(
    original: str, tmp_path: Path
) -> None:
    directory = copy_of(original, tmp_path / "store")
    last = [name for name in segments_of(directory) if name < "2"][-1]
    put(FileType.PIPE, f"{directory}/segments/{last}")
    with Store.open(directory, options=SMALL, worker=InlineWorker()) as store:
        (damage,) = store.recovery_report.damage
        assert damage[0].endswith(last)
        assert damage[3] == "it is a pipe, not a regular file"
        publish(store, next(iter(store.queues.values())), 1)
    (written,) = {*segments_of(directory)}.difference(segments_of(original))
    assert last < written < "2"


@contextlib.contextmanager
def without_rights() -> Iterator[None]:
    """Be a user who may not read files of mode 0."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def test_what_may_not_be_read_is_named_and_all_the_rest_is_read(
    original: str, command: Command
) -> None:
    with tempfile.TemporaryDirectory() as within:
        os.chmod(within, 0o777)
        directory = copy_of(original, Path(within, "store"))
        for root, folders, files in os.walk(directory):
            for name in (*folders, *files):
                os.chmod(os.path.join(root, name), 0o755)
        name = f"segments/{segments_of(directory)[0]}"
        without = number_without(command, original, name, Path(within))
        os.chmod(f"{directory}/{name}", 0)
        with without_rights():
            findings = check(directory).findings
            assert [one.file for one in findings if one.code == "file-wrong-kind"] == [name]
            assert exported(command, directory) == without
            assert name in command("inspect", directory).out
            copied = command("copy", directory, f"{within}/copy", "--json")
            assert name in [one["path"] for one in json.loads(copied.out)["damage"]]
            # Others can read its messages: so they are not given up.
            outcome = command("repair", directory, "--plan", f"{within}/plan.json")
        assert outcome.code == 5
        assert f"{directory}/{name}: Permission denied. Run it as the owner" in outcome.err


def test_a_plan_for_a_device_does_not_replace_it(
    original: str, command: Command, tmp_path: Path
) -> None:
    directory = copy_of(original, tmp_path / "store")
    (tmp_path / "null").symlink_to("/dev/null")
    assert command("repair", directory, "--plan", str(tmp_path / "null")).code == 0
    assert type_of(str(tmp_path / "null")) is FileType.DEVICE
