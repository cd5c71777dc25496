"""Tools on a real disk without a free byte: what frees some works, and the rest says what to do."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from amqpstore import Options, Run, Store
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.__main__ import main
from tests.small_disk import fill, small_disk
from tests.unit.copying.stores import bodies, publish, queue_of

MIB = 1 << 20
OPTIONS = Options(
    segment_bytes=MIB // 2,
    checkpoint_bytes=MIB,
    least_free_bytes=MIB,
    reserve_bytes=2 * MIB,
)
WHAT_TO_DO = "Free some space on that disk"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[str]:
    with small_disk(str(tmp_path / "disk"), mebibytes=24) as path:
        yield path


@pytest.fixture
def store(disk: str) -> str:
    """A store with its reserve, of whose segments a sixth is live, on a disk that is full."""
    directory = f"{disk}/store"
    with Store.open(directory, options=OPTIONS, worker=InlineWorker()) as store:
        for number in range(80):
            publish(store, "orders", [b"%d.%d " % (number, place) * 100 for place in range(100)])
            assert isinstance(store.take(queue_of(store, "orders"), 83, acked=True), Run)
        store.upkeep.checkpoint()
        store.upkeep.housekeep()
    assert os.path.exists(f"{directory}/reserve")
    fill(f"{disk}/others", 0)
    return directory


def damage(store: str) -> None:
    [_, second, *_] = sorted(Path(store, "segments").iterdir())
    with open(second, "r+b") as file:
        file.seek(second.stat().st_size // 2)
        file.write(bytes(8))


def printed_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, str]]:
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_compaction_uses_the_reserve(store: str) -> None:
    expected = bodies(store)
    before = sum(one.stat().st_size for one in Path(store, "segments").iterdir())
    assert main(["compact", store, "--json"]) == 0
    assert sum(one.stat().st_size for one in Path(store, "segments").iterdir()) < before
    assert bodies(store) == expected


def test_without_a_reserve_a_compaction_says_what_it_needs(
    store: str, disk: str, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = bodies(store)
    os.remove(f"{store}/reserve")
    os.remove(f"{disk}/others")
    fill(f"{disk}/others", 0)
    code, found = printed_json(capsys, "compact", store)
    assert code == 5
    assert f"{store}/segments/" in found["error"]
    assert "room for one new segment" in found["error"]
    assert bodies(store) == expected


def test_a_repair_uses_the_reserve_and_so_does_its_undo(
    store: str, disk: str, tmp_path: Path
) -> None:
    damage(store)
    plan = str(tmp_path / "plan.json")
    for step in (["--plan", plan], ["--apply", plan]):
        assert main(["repair", store, *step, "--json"]) == 0, step
    assert main(["check", store, "--json"]) == 0
    os.remove(f"{disk}/others")
    with open(f"{store}/reserve", "wb") as file:
        file.write(bytes(MIB))
    fill(f"{disk}/others", 0)
    assert main(["repair", store, "--undo", "--json"]) == 0
    assert main(["check", store, "--json"]) == 1


def test_a_restore_uses_the_reserve(store: str, tmp_path: Path) -> None:
    expected = bodies(store)
    copy = str(tmp_path / "copy")
    assert main(["copy", store, copy, "--json"]) == 0
    assert main(["compact", copy, "--json"]) == 0
    shutil.rmtree(f"{store}/segments")
    os.makedirs(f"{store}/segments")
    Path(copy, "COPY.json").unlink()
    assert main(["restore", copy, store, "--json"]) == 0
    assert bodies(store) == expected


@pytest.mark.parametrize("verb", ["copy", "export", "import", "restore"])
def test_what_needs_room_says_where_and_what_to_do(
    store: str, disk: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    exported, copy = str(tmp_path / "exported"), str(tmp_path / "copy")
    assert main(["export", store, exported, "--json"]) == 0
    assert main(["copy", store, copy, "--json"]) == 0
    capsys.readouterr()
    expected, names = bodies(store), sorted(os.listdir(disk))
    arguments = {
        "copy": [store, f"{disk}/copy"],
        "export": [store, f"{disk}/exported"],
        "import": [store, exported],
        "restore": [copy, store],
    }[verb]
    code, answer = printed_json(capsys, verb, *arguments)
    assert code == 5
    assert answer["error"].startswith(f"{disk}/"), answer
    assert "No space left" in answer["error"]
    assert WHAT_TO_DO in answer["error"]
    assert sorted(os.listdir(disk)) == names
    assert bodies(store) == expected


def test_what_only_reads_needs_no_room(store: str, tmp_path: Path) -> None:
    for verb in (["check"], ["inspect"]):
        assert main([*verb, store, "--json"]) == 0
    assert main(["export", store, str(tmp_path / "exported"), "--json"]) == 0
    assert os.path.exists(f"{store}/reserve")
