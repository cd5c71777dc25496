"""A copy of a store whose log lacks what was durable lacks it too, and both say so."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from amqpstore.system.filenames import SEGMENTS, TRAILS, segment_name
from amqpstore_tools.check.engine import check
from amqpstore_tools.copying.copier import CopyOptions, copy_store
from amqpstore_tools.copying.errors import CopyError
from amqpstore_tools.copying.restoring import restore
from amqpstore_tools.offline.pinning import PinnedFiles
from tests.unit.copying.stores import contents
from tests.unit.evidence.stores import ManualClock, killed_store, opened, publish, zeros
from tests.unit.offline.stores import Command, run_command

TEXT = "at least 5 messages that were durable are missing in the log"


def lose_nothing(_path: Path) -> None:
    pass


def lose_content(path: Path) -> None:
    zeros(path / SEGMENTS / segment_name(4))


def lose_file(path: Path) -> None:
    (path / SEGMENTS / segment_name(4)).unlink()


def lose_end(path: Path) -> None:
    segment = path / SEGMENTS / segment_name(4)
    segment.write_bytes(segment.read_bytes().rstrip(b"\0")[:-60])


def lose_middle(path: Path) -> None:
    (path / SEGMENTS / segment_name(3)).unlink()


Losing = Callable[[Path], None]
LOSING = [lose_content, lose_file, lose_end, lose_middle]


def shortfall(path: Path) -> int:
    """Return how many messages a check of a store misses in its log."""
    checked = check(str(path))
    assert bool(checked.shortfall) is any(one.code == "log-short" for one in checked.findings)
    return checked.shortfall.lost


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("lose", LOSING)
def test_a_copy_knows_what_its_store_lacks(tmp_path: Path, lose: Losing, links: bool) -> None:
    path = killed_store(tmp_path / "store")
    lose(path)
    before = contents(str(path))
    copied = copy_store(str(path), str(tmp_path / "copy"), CopyOptions(links=links))
    assert TEXT in copied.damage[-1].reason
    assert shortfall(tmp_path / "copy") == shortfall(path) == 5
    # So does a copy of the copy, one that shares files with it, and one that is imported into.
    options = CopyOptions(links=links, against=str(tmp_path / "copy"))
    copy_store(str(tmp_path / "copy"), str(tmp_path / "again"), options)
    assert shortfall(tmp_path / "again") == 5
    assert contents(str(path)) == before


@pytest.mark.parametrize("lose", LOSING)
def test_a_short_copy_is_restored_only_on_request(tmp_path: Path, lose: Losing) -> None:
    path = killed_store(tmp_path / "store")
    place = killed_store(tmp_path / "place")
    lose(path)
    copy_store(str(path), str(tmp_path / "copy"), CopyOptions())
    with pytest.raises(CopyError, match=r"is damaged in .* accept that with --damaged"):
        restore(str(tmp_path / "copy"), str(place), links=False, accept_damage=False)
    assert shortfall(place) == 0
    restore(str(tmp_path / "copy"), str(place), links=False, accept_damage=True)
    assert shortfall(place) == 5


def test_the_verb_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command: Command = lambda *arguments: run_command(monkeypatch, capsys, *arguments)  # noqa: E731
    path = killed_store(tmp_path / "store")
    lose_content(path)
    done = command("copy", str(path), str(tmp_path / "copy"))
    assert done.code == 1
    assert TEXT in done.out


def test_a_copy_of_a_whole_store_is_sound(tmp_path: Path) -> None:
    path = killed_store(tmp_path / "store")
    copied = copy_store(str(path), str(tmp_path / "copy"), CopyOptions())
    assert copied.damage == []
    assert sorted(os.listdir(tmp_path / "copy" / TRAILS)) == sorted(os.listdir(path / TRAILS))
    assert list(check(str(tmp_path / "copy")).findings) == []
    # A store that has no notes has no directory for them.
    shutil.rmtree(path / TRAILS)
    copy_store(str(path), str(tmp_path / "bare"), CopyOptions())
    assert not (tmp_path / "bare" / TRAILS).exists()


def test_versions_that_copy_no_trails_can_restore_a_copy(tmp_path: Path) -> None:
    path = killed_store(tmp_path / "store")
    copy_store(str(path), str(tmp_path / "copy"), CopyOptions())
    manifest = json.loads((tmp_path / "copy" / "COPY.json").read_bytes())
    assert not [one for one in manifest["files"] if one["path"].startswith(TRAILS)]
    assert {one["path"] for one in manifest["trails"]} == {
        f"{TRAILS}/{name}" for name in os.listdir(path / TRAILS)
    }


def test_a_changed_note_in_a_copy_is_found_when_it_is_restored(tmp_path: Path) -> None:
    path = killed_store(tmp_path / "store")
    copy_store(str(path), str(tmp_path / "copy"), CopyOptions(links=False))
    (note,) = (tmp_path / "copy" / TRAILS).iterdir()
    zeros(note)
    with pytest.raises(CopyError, match=r"position in .* has changed since it was copied"):
        restore(str(tmp_path / "copy"), str(path), links=False, accept_damage=True)
    note.unlink()
    with pytest.raises(CopyError, match=r"position in .* is missing or empty"):
        restore(str(tmp_path / "copy"), str(path), links=False, accept_damage=True)


def test_notes_of_a_running_broker_are_not_newer_than_the_log_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    path = tmp_path / "store"
    store = opened(path, clock)
    store.create_queue({"name": "orders"})
    publish(store, 5)
    pin = PinnedFiles.pin

    def pin_meanwhile(files: PinnedFiles, directory: str) -> None:
        clock.advance(2000)
        publish(store, 5)
        pin(files, directory)

    with monkeypatch.context() as patched:
        patched.setattr(PinnedFiles, "pin", pin_meanwhile)
        assert copy_store(str(path), str(tmp_path / "copy"), CopyOptions()).damage == []
    assert list(check(str(tmp_path / "copy")).findings) == []
    # A copy has notes of its own: the broker goes on with its files.
    for _ in range(3):
        clock.advance(2000)
        publish(store, 5)
    store.abandon()
    assert list(check(str(tmp_path / "copy")).findings) == []
    assert shortfall(path) == 0


def test_trails_that_cannot_be_copied_are_damage(tmp_path: Path) -> None:
    path = killed_store(tmp_path / "store")
    (note,) = (path / TRAILS).iterdir()
    note.unlink()
    note.mkdir()
    copied = copy_store(str(path), str(tmp_path / "copy"), CopyOptions())
    assert [(one.path, one.reason) for one in copied.damage] == [
        (f"{TRAILS}/{note.name}", "it is a directory, not a regular file")
    ]
    shutil.rmtree(path / TRAILS)
    (path / TRAILS).touch()
    copied = copy_store(str(path), str(tmp_path / "other"), CopyOptions())
    (damage,) = copied.damage
    assert damage.path == TRAILS
    assert damage.reason.startswith("it is a file, where a store has a directory: put")
