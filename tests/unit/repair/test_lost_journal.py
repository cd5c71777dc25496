"""A repair that stopped half-way is finished or undone although its journal is damaged."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from amqpstore import Envelope, Message, Options, Store, UnfinishedRepairError
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.check.engine import check
from amqpstore_tools.offline.locations import require_store
from amqpstore_tools.repair.apply import apply_plan
from amqpstore_tools.repair.errors import BadJournalError
from amqpstore_tools.repair.imaging import RemainingImage
from amqpstore_tools.repair.journal import Repair
from amqpstore_tools.repair.listing import Listing, listing
from amqpstore_tools.repair.plan import make_plan, read_plan
from amqpstore_tools.repair.undo import undo

OPTIONS = Options(segment_bytes=1 << 12, reserve_bytes=0)


class StoppedError(Exception):
    """Raised to stop a repair, as a kill would."""


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff{" * 200)


DAMAGES: list[Callable[[Path], None]] = [zeros, cut, garbage, Path.unlink]


@pytest.fixture
def broken(tmp_path: Path) -> tuple[Path, Listing]:
    """A damaged store with a damaged segment, and how it was."""
    directory = tmp_path / "store"
    with Store.open(str(directory), options=OPTIONS, worker=InlineWorker()) as store:
        queue = store.create_queue({"vhost": "/", "name": "orders"})
        for _ in range(20):
            store.publish([queue], [Message(Envelope("", "orders", b"\x10\0\2"), bytes(400))])
            store.sync()
    segment = directory / "segments" / "0000000002.segment"
    content = bytearray(segment.read_bytes())
    content[500] ^= 1
    segment.write_bytes(content)
    (directory / "catalog" / "data.mdb").write_bytes(b"damage")
    (directory / "segments" / "notes.txt").mkdir()
    return directory, listing(str(directory))


def stop(directory: Path, moves: int, patch: pytest.MonkeyPatch, verb: str) -> bool:
    """Do a repair, or undo one, up to a number of moves. Returns whether it was stopped."""
    left = moves
    move = Repair._move

    def limited(path: str, to: str) -> None:
        nonlocal left
        if os.path.lexists(path):
            if not left:
                raise StoppedError
            left -= 1
        move(path, to)

    with patch.context() as within:
        within.setattr(Repair, "_move", staticmethod(limited))
        try:
            if verb == "apply":
                apply_plan(str(directory), make_plan(str(directory), lambda *_: None).plan)
            else:
                undo(str(directory))
        except StoppedError:
            return True
    return False


def verbs_refuse(directory: Path) -> None:
    def opened() -> None:
        Store.open(str(directory), worker=InlineWorker()).close()

    def imaged() -> None:
        RemainingImage.open(str(directory)).close()

    for verb in (
        opened,
        imaged,
        lambda: check(str(directory)),
        lambda: require_store(str(directory)),
    ):
        with pytest.raises(UnfinishedRepairError) as caught:
            verb()
        text = str(caught.value)
        assert "its journal cannot be read" in text
        assert "the store's file STORE is still in the repair's directory" in text
        plan = f"{directory}/quarantine/repair-0000000001/plan.json"
        assert f"`amqpstore repair {directory} --apply {plan}`" in text
        assert f"`amqpstore repair {directory} --undo`" in text


@pytest.mark.parametrize("verb", ["apply", "undo"])
def test_both_commands_work_without_the_journal(
    broken: tuple[Path, Listing], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    original, before = broken
    if verb == "undo":
        assert not stop(original, 1000, monkeypatch, "apply")
    met = 0
    for moves in range(100):
        path = shutil.copytree(original, tmp_path / "moved" / "store")
        was_stopped = stop(path, moves, monkeypatch, verb)
        if was_stopped and not (path / "STORE").exists():
            met += 1
            (journal,) = path.glob("quarantine/repair-*/journal.json")
            DAMAGES[moves % len(DAMAGES)](journal)
            verbs_refuse(path)
            again = shutil.copytree(path, tmp_path / "undone")
            undo(str(again))
            assert listing(str(again)) == before
            plan = read_plan(f"{path}/quarantine/repair-0000000001/plan.json")
            assert apply_plan(str(path), plan)
            assert not check(str(path)).is_damaged
            undo(str(path))
            assert listing(str(path)) == before
            shutil.rmtree(again)
        shutil.rmtree(path.parent)
        if not was_stopped:
            break
    assert not was_stopped
    assert met >= len(DAMAGES)


def test_without_the_plan_too_nothing_is_moved(
    broken: tuple[Path, Listing], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = broken
    assert stop(path, 3, monkeypatch, "apply")
    for name in ("journal.json", "plan.json"):
        zeros(path / "quarantine" / "repair-0000000001" / name)
    was = listing(str(path))
    with pytest.raises(BadJournalError):
        undo(str(path))
    assert listing(str(path)) == was
