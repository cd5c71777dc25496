"""Messages that the catalog does not know, and files that are not where they belong."""

import os
import shutil
from pathlib import Path

import pytest

from amqpstore import Envelope, Message, Options, Queue, Store
from amqpstore.system.filenames import CATALOG, INDEX, QUARANTINE, SEGMENTS, segment_name
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.check.engine import check
from amqpstore_tools.copying.copier import CopyOptions, copy_store
from amqpstore_tools.repair.listing import listing
from amqpstore_tools.repair.undo import undo
from fixtures.survivors import opened
from tests.unit.evidence.stores import killed_store
from tests.unit.repair.mending import mend, plan_of

OPTIONS = Options(segment_bytes=1 << 12, reserve_bytes=0)
ENVELOPE = Envelope("", "q", b"\x10\x00\x02")
COUNT = 60


def store_in(path: Path) -> Store:
    return Store.open(str(path), options=OPTIONS, worker=InlineWorker())


def put(store: Store, queue: Queue, count: int = COUNT) -> None:
    for number in range(count):
        store.publish([queue], [Message(ENVELOPE, b"%d" % number + bytes(400))])
        store.sync()


def bodies(directory: Path) -> dict[str, list[int]]:
    """Return the numbers of the messages in each queue."""
    return {
        name: [int(bytes.fromhex(one["body"]).rstrip(b"\0")) for one in queue["messages"]]
        for name, queue in opened(str(directory)).items()
    }


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A closed store of several segments."""
    path = tmp_path / "store"
    with store_in(path) as store:
        put(store, store.create_queue({"vhost": "/", "name": "q"}))
    return path


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("is_copy_newer", [False, True])
def test_a_queue_that_is_newer_than_the_catalog(
    tmp_path: Path, *, is_checkpointed: bool, is_copy_newer: bool
) -> None:
    path = tmp_path / "store"
    with store_in(path) as store:
        store.create_queue({"vhost": "/", "name": "first"})
    shutil.copytree(path / CATALOG, tmp_path / "old")
    with store_in(path) as store:
        queue = store.create_queue({"vhost": "/", "name": "second"})
        put(store, queue)
        if not is_checkpointed:
            store.abandon()
    old = ["data.mdb"] if is_copy_newer and is_checkpointed else ["data.mdb", "definitions"]
    for name in old:
        shutil.copyfile(tmp_path / "old" / name, path / CATALOG / name)
    plan, _ = mend(str(path))
    name = f"amq.recovered.{queue.id}" if len(old) == 2 else "second"
    assert bodies(path) == {"first": [], name: [*range(COUNT)]}
    (row,) = [one for one in plan.queues if one["name"] == f"/{name}"]
    assert (row["kept"], row["is_recovered"]) == (COUNT, len(old) == 2)


def to_bak(path: Path, name: str) -> None:
    (path / name).rename(path / f"{name}.bak")


def to_lost_and_found(path: Path, name: str) -> None:
    (path / "lost+found").mkdir()
    (path / name).rename(path / "lost+found/#12345")


def to_quarantine(path: Path, name: str) -> None:
    (path / QUARANTINE).mkdir(exist_ok=True)
    (path / name).rename(path / QUARANTINE / os.path.basename(name))


def swap(path: Path, name: str) -> None:
    other = next(one for one in sorted((path / name).parent.iterdir()) if one != path / name)
    (path / name).rename(path / "aside")
    other.rename(path / name)
    (path / "aside").rename(other)


def to_bak_and_headless(path: Path, name: str) -> None:
    """The first record of the file is gone, too."""
    content = (path / name).read_bytes()
    (path / f"{name}.bak").write_bytes(bytes(60) + content[60:])
    (path / name).unlink()


def zeros_and_bak(path: Path, name: str) -> None:
    """A file of zeros is in its place, and the good one beside it."""
    shutil.copyfile(path / name, path / f"{name}.bak")
    (path / name).write_bytes(bytes(4096))


def halves(path: Path, name: str) -> None:
    """Two copies, each with another half of it."""
    content = (path / name).read_bytes()
    half = len(content) // 2
    (path / name).write_bytes(bytes(half) + content[half:])
    (path / f"{name}.bak").write_bytes(content[:half] + bytes(len(content) - half))


MOVES = (to_bak, to_lost_and_found, to_quarantine, swap, zeros_and_bak)


@pytest.mark.parametrize("is_catalog_lost", [False, True])
@pytest.mark.parametrize("number", [2, -1])
@pytest.mark.parametrize("move", [*MOVES, to_bak_and_headless, halves])
def test_a_segment_that_is_not_in_its_place(
    filled: Path, move: object, number: int, *, is_catalog_lost: bool
) -> None:
    names = sorted(os.listdir(filled / SEGMENTS))
    number = number if number > 0 else len(names)
    name = f"{SEGMENTS}/{segment_name(number)}"
    assert callable(move)
    move(filled, name)
    if is_catalog_lost:
        (filled / CATALOG / "data.mdb").unlink()
    before = listing(str(filled))
    assert check(str(filled)).is_damaged
    mend(str(filled))
    assert bodies(filled) == {"q": [*range(COUNT)]}
    assert not check(str(filled)).is_damaged
    undo(str(filled))
    assert listing(str(filled)) == before


@pytest.mark.parametrize("move", MOVES[:3])
def test_an_index_file_that_is_not_in_its_place(tmp_path: Path, move: object) -> None:
    """No other file tells the order of what is acked and what is not."""
    path = tmp_path / "store"
    with store_in(path) as store:
        queue = store.create_queue({"vhost": "/", "name": "q"})
        put(store, queue)
        store.upkeep.checkpoint()
        run = store.take(queue, 7)
        store.ack(queue, run)  # type: ignore[arg-type] # it is one
        store.sync()
    (name,) = os.listdir(path / INDEX)
    assert callable(move)
    move(path, f"{INDEX}/{name}")
    assert check(str(path)).is_damaged
    mend(str(path))
    assert bodies(path) == {"q": [*range(7, COUNT)]}


def test_a_copy_of_a_segment_that_is_in_its_place_is_only_in_the_way(filled: Path) -> None:
    name = f"{SEGMENTS}/{segment_name(2)}"
    shutil.copyfile(filled / name, filled / f"{name}.bak")
    assert [one.code for one in check(str(filled)).findings.of_harm()] == ["file-unknown"]
    plan, _ = mend(str(filled))
    assert not plan.is_rebuild
    assert plan.moves == ["STORE", f"{name}.bak"]


@pytest.mark.parametrize("move", [*MOVES, to_bak_and_headless])
def test_a_copy_has_what_lies_in_another_place(filled: Path, move: object) -> None:
    assert callable(move)
    move(filled, f"{SEGMENTS}/{segment_name(2)}")
    copy = filled.parent / "copy"
    copy_store(str(filled), str(copy), CopyOptions())
    assert check(str(copy)).is_damaged
    mend(str(copy))
    assert bodies(copy) == {"q": [*range(COUNT)]}


def test_what_only_the_catalog_knows_is_counted_as_lost(tmp_path: Path) -> None:
    """Segments and index files are older than the catalog, as after a rsync that was stopped."""
    path = tmp_path / "store"
    with store_in(path) as store:
        put(store, store.create_queue({"vhost": "/", "name": "q"}))
    shutil.copytree(path, tmp_path / "old")
    with store_in(path) as store:
        first, *_ = store.queues.values()
        second = store.create_queue({"vhost": "/", "name": "second"})
        put(store, first)
        put(store, second, 17)
        run = store.take(first, 5)
        store.ack(first, run)  # type: ignore[arg-type] # it is one
    for name in (SEGMENTS, INDEX):
        shutil.rmtree(path / name)
        shutil.copytree(tmp_path / "old" / name, path / name)
    plan, _ = mend(str(path))
    counted = {row["name"]: (row["kept"], row["lost"]) for row in plan.queues}
    assert counted == {"/q": (COUNT - 5, COUNT), "/second": (0, 17)}


def is_said_to_be_lost(directory: Path) -> set[str]:
    """Return the codes of the steps of a plan that call something lost."""
    return {step["code"] for step in plan_of(str(directory)).steps} & {"message-lost", "log-short"}


def test_what_lies_under_another_name_is_not_called_lost(tmp_path: Path) -> None:
    """A check reads no such file, and misses what is in it; a plan says what a repair reaches."""
    directory = killed_store(tmp_path / "store")
    names = [directory / SEGMENTS / segment_name(number) for number in (1, 4)]
    for path in names:
        path.rename(path.with_name(path.name.upper()))
    assert {"message-lost", "log-short"} <= {one.code for one in check(str(directory)).findings}
    assert is_said_to_be_lost(directory) == set()
    plan, _ = mend(str(directory))
    assert [(one["kept"], one["lost"]) for one in plan.queues] == [(20, 0)]


def test_what_is_in_no_file_is_called_lost_beside_it(tmp_path: Path) -> None:
    directory = killed_store(tmp_path / "store")
    for number, to in ((1, "gone"), (2, "moved"), (4, "gone")):
        path = directory / SEGMENTS / segment_name(number)
        path.rename(directory / to) if to == "moved" else path.unlink()
    assert is_said_to_be_lost(directory) == {"message-lost", "log-short"}
    plan, _ = mend(str(directory))
    assert [(one["kept"], one["lost"]) for one in plan.queues] == [(10, 5)]


def test_a_sound_copy_beside_a_damaged_segment_is_what_counts(tmp_path: Path) -> None:
    directory = killed_store(tmp_path / "store")
    path = directory / SEGMENTS / segment_name(1)
    content = bytearray(path.read_bytes())
    path.with_suffix(".orig").write_bytes(content)
    content[300] ^= 1
    path.write_bytes(content)
    assert "message-lost" in {one.code for one in check(str(directory)).findings}
    assert is_said_to_be_lost(directory) == set()
