"""All verbs say the same about a store with a damaged catalog: what a repair keeps."""

import fcntl
import itertools
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from amqpstore import Envelope, Message, Options, Run, Store
from amqpstore.catalog.catalog import Change
from amqpstore.system.filenames import CATALOG, CATALOG_FILE, DEFINITIONS, SEGMENTS, segment_name
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.repair.imaging import RemainingImage
from amqpstore_tools.repair.listing import listing
from amqpstore_tools.transfer.lines import MessageLine, QueueKey, QueueLine, read_lines
from tests.unit.offline.stores import Command, run_command
from tests.unit.repair.mending import mend, plan_of

ENVELOPE = Envelope("", "q", b"\x10\x00\x02")
OPTIONS = Options(segment_bytes=1 << 12, reserve_bytes=0)
PAGE = 4096


class Queue(NamedTuple):
    """A queue as a verb describes it; `bodies` are of its messages, in order."""

    kept: int
    lost: int
    again: int
    is_recovered: bool
    bodies: tuple[str, ...]


Queues = dict[str, Queue]


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two queues in turn, with a checkpoint in between, messages acked before and behind it, and
    one with two priorities.
    """
    path = tmp_path_factory.mktemp("catalogs") / "store"
    store = Store.open(str(path), options=OPTIONS, worker=InlineWorker())
    store.definitions.define([Change("vhosts", "shop", {})])
    names = ({"name": "a"}, {"name": "b"}, {"name": "c"}, {"name": "c", "level": 3})
    queues = [store.create_queue({"vhost": "shop", **name}) for name in names]
    for number in range(60):
        for place, queue in enumerate(queues):
            body = b"%s-%d" % ("abcd"[place].encode(), number)
            store.publish([queue], [Message(ENVELOPE, body + bytes(200))])
        store.sync()
        if number in (20, 50):
            run = store.take(queues[0], limit=5)
            assert isinstance(run, Run)
            store.ack(queues[0], run)
            store.sync()
        if number == 40:
            store.upkeep.checkpoint()
    store.abandon()
    return path


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return lambda *arguments: run_command(monkeypatch, capsys, *arguments)


def missing(path: Path) -> None:
    shutil.rmtree(path / CATALOG)


def file_missing(path: Path) -> None:
    (path / CATALOG / CATALOG_FILE).unlink()


def empty(path: Path) -> None:
    os.truncate(path / CATALOG / CATALOG_FILE, 0)


def cut(path: Path) -> None:
    size = os.path.getsize(path / CATALOG / CATALOG_FILE)
    os.truncate(path / CATALOG / CATALOG_FILE, size // 2 // PAGE * PAGE)


def cut_to_metas(path: Path) -> None:
    os.truncate(path / CATALOG / CATALOG_FILE, 2 * PAGE)


def zeros(path: Path) -> None:
    file = path / CATALOG / CATALOG_FILE
    file.write_bytes(bytes(file.stat().st_size))


def page_of_garbage(path: Path) -> None:
    file = path / CATALOG / CATALOG_FILE
    content = bytearray(file.read_bytes())
    pages = [at for at in range(2 * PAGE, len(content), PAGE) if any(content[at : at + PAGE])]
    for page in pages[:-1]:
        content[page : page + PAGE] = random.Random(page).randbytes(PAGE)
    file.write_bytes(content)


def metas_of_garbage(path: Path) -> None:
    file = path / CATALOG / CATALOG_FILE
    file.write_bytes(random.Random(1).randbytes(2 * PAGE) + file.read_bytes()[2 * PAGE :])


def of_another_version(path: Path) -> None:
    file = path / CATALOG / CATALOG_FILE
    content = bytearray(file.read_bytes())
    for meta in (0, PAGE):
        content[meta + 20] = 9  # LMDB's version of the data format
    file.write_bytes(content)


def directory_instead(path: Path) -> None:
    file_missing(path)
    (path / CATALOG / CATALOG_FILE).mkdir()


def file_instead_of_the_folder(path: Path) -> None:
    missing(path)
    (path / CATALOG).write_bytes(b"catalog")


def fifo_instead(path: Path) -> None:
    file_missing(path)
    os.mkfifo(path / CATALOG / CATALOG_FILE)


def link_to_nowhere(path: Path) -> None:
    file_missing(path)
    (path / CATALOG / CATALOG_FILE).symlink_to("nowhere")


def of_another_store(path: Path) -> None:
    other = path.parent / "other"
    Store.open(str(other), options=OPTIONS, worker=InlineWorker()).close()
    shutil.copyfile(other / CATALOG / CATALOG_FILE, path / CATALOG / CATALOG_FILE)


DAMAGES = [
    *(missing, file_missing, empty, cut, cut_to_metas, zeros, page_of_garbage, metas_of_garbage),
    *(of_another_version, directory_instead, file_instead_of_the_folder, fifo_instead),
    *(link_to_nowhere, of_another_store),
]


def nothing(_path: Path) -> None:
    pass


def no_copy(path: Path) -> None:
    if (path / CATALOG).is_dir():
        (path / CATALOG / DEFINITIONS).unlink(missing_ok=True)


def segment_gone(path: Path) -> None:
    (path / SEGMENTS / segment_name(2)).unlink()


def segment_renamed(path: Path) -> None:
    (path / SEGMENTS / segment_name(2)).rename(path / SEGMENTS / "second.bak")


CASES = [
    *((damage, nothing) for damage in DAMAGES),
    *itertools.product((missing, cut, page_of_garbage), (no_copy, segment_gone, segment_renamed)),
]
Damage = Callable[[Path], None]


def inspected(command: Command, path: Path, *options: str) -> Queues:
    found = json.loads(command("inspect", str(path), "--json", *options).out)
    assert found["catalog_reason"]
    rows = {}
    with RemainingImage.open(str(path), live=bool(options)) as image:
        for row in found["queues"]:
            bodies = []
            for queue in sorted(image.queues, key=lambda one: -(one.level or 0)):
                if queue.id in row["ids"]:
                    entries = list(queue.entries())
                    messages = dict(image.messages(sorted(one.message_id for one in entries)))
                    for entry in entries:
                        stored = messages[entry.message_id]
                        assert stored is not None
                        bodies.append(text(stored.message(image.decoder).body))
            name = f"{row['vhost']}/{row['name']}".replace("//", "/")
            lost = row["lost"] + row["unreadable"]
            rows[name] = Queue(row["ready"], lost, row["again"], row["is_recovered"], tuple(bodies))
    return rows


def exported(command: Command, path: Path, *options: str) -> Queues:
    out = path.parent / "all.jsonl"
    done = command("export", str(path), str(out), "--json", *options)
    assert done.code in (0, 1), done.err
    answer = json.loads(done.out)
    bodies: dict[QueueKey, list[tuple[int, str]]] = {}
    with out.open("rb") as file:
        for line, _ in read_lines(file):
            if isinstance(line, QueueLine | MessageLine):
                messages = bodies.setdefault(QueueKey(line.key.vhost, line.key.name), [])
                if isinstance(line, MessageLine):
                    messages.append((-line.key.level, text(line.body)))
    out.unlink()
    return {
        f"{key.vhost}/{key.name}".replace("//", "/"): Queue(
            len(found),
            answer["unreadable"].get(key.label, 0),
            answer["again"].get(key.label, 0),
            key.label in answer["recovered"],
            tuple(body for _, body in sorted(found, key=lambda one: one[0])),
        )
        for key, found in bodies.items()
    }


def text(body: bytes) -> str:
    return body.rstrip(b"\0").decode()


def without_bodies(rows: Queues) -> Queues:
    return {name: row._replace(bodies=()) for name, row in rows.items()}


@pytest.mark.parametrize(("damage", "more"), CASES)
def test_all_verbs_say_what_a_repair_keeps(
    original: Path, tmp_path: Path, command: Command, damage: Damage, more: Damage
) -> None:
    path = tmp_path / "store"
    shutil.copytree(original, path)
    more(path)
    damage(path)
    shown, written = inspected(command, path), exported(command, path)
    plan = plan_of(str(path))
    planned = {
        row["name"]: Queue(row["kept"], row["lost"], row["again"], row["is_recovered"], ())
        for row in plan.queues
    }
    assert without_bodies(shown) == planned
    assert written == shown
    answer = json.loads(command("inspect", str(path), "--json").out)
    assert answer["notes"] == plan.notes
    assert answer["lost"] == sum(row["lost"] for row in plan.queues) + plan.missing_messages
    assert mend(str(path))[1]
    repaired = exported(command, path)
    assert {name: row.bodies for name, row in repaired.items()} == {
        name: row.bodies for name, row in shown.items()
    }


@pytest.mark.parametrize("damage", DAMAGES)
def test_beside_a_broker_too(
    original: Path, tmp_path: Path, command: Command, damage: Damage
) -> None:
    path = tmp_path / "store"
    shutil.copytree(original, path)
    damage(path)
    expected = inspected(command, path)
    lock = (path / "lock").open("rb+")
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        assert exported(command, path, "--live") == expected
        assert inspected(command, path, "--live") == expected
    finally:
        lock.close()


@pytest.mark.parametrize("damage", [missing, cut, fifo_instead])
@pytest.mark.parametrize(
    "verb", [("compact", "DIR"), ("import", "DIR", "FILE"), ("users", "list", "--data", "DIR")]
)
def test_verbs_that_need_the_catalog_name_the_next_step(
    original: Path, tmp_path: Path, command: Command, damage: Damage, verb: tuple[str, ...]
) -> None:
    path, out = tmp_path / "store", tmp_path / "all.jsonl"
    shutil.copytree(original, path)
    assert command("export", str(path), str(out)).code == 0
    damage(path)
    before = listing(str(path))
    words = {"DIR": str(path), "FILE": str(out)}
    done = command(*(words.get(one, one) for one in verb))
    assert done.code == 5, done
    assert "data.mdb" in done.err
    assert "amqpstore repair DIR --plan plan.json" in done.err
    assert listing(str(path)) == before
