"""The rest of a damaged store is exported under the names that a repair gives, and imported."""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from amqpstore import Envelope, Message, Options, Store
from amqpstore.catalog.catalog import Change
from amqpstore.system.descriptors import MAX_OPEN_TO_READ
from amqpstore.system.filenames import (
    CATALOG,
    CATALOG_FILE,
    DEFINITIONS,
    INDEX,
    SEGMENTS,
    segment_name,
)
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.check.store import ReadableStore
from amqpstore_tools.repair.exporting import find_remains
from amqpstore_tools.transfer.exporting import export
from amqpstore_tools.transfer.importing import import_lines
from amqpstore_tools.transfer.lines import LineWriter, MessageLine, read_lines

ENVELOPE = Envelope("", "q", b"\x10\x00\x02")
NAMES = ("a", "b", "c")
COUNT = 40


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A closed store: three queues of a virtual host of its own, whose messages came in turn."""
    path = tmp_path / "store"
    options = Options(segment_bytes=1 << 12, reserve_bytes=0)
    with Store.open(str(path), options=options, worker=InlineWorker()) as opened:
        opened.definitions.define([Change("vhosts", "shop", {})])
        queues = [opened.create_queue({"vhost": "shop", "name": name}) for name in NAMES]
        for number in range(COUNT):
            for queue in queues:
                opened.publish([queue], [Message(ENVELOPE, b"%d" % number)])
            opened.sync()
    return path


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "amqpstore_tools", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def exported(store: Path) -> tuple[dict[str, Any], bytes]:
    """Export with the command, which finds damage. Returns what it says, and the file."""
    out = store.parent / "all.jsonl"
    done = run("export", store, out, "--json")
    assert done.returncode == 1, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found, out.read_bytes()


def numbers(content: bytes) -> dict[str | None, list[int]]:
    found: dict[str | None, list[int]] = {}
    for line, _ in read_lines(io.BytesIO(content)):
        if isinstance(line, MessageLine):
            found.setdefault(line.key.name, []).append(int(line.body))
    return found


def cut(store: Path) -> None:
    os.truncate(store / CATALOG / CATALOG_FILE, 12288)


def cut_without_names(store: Path) -> None:
    cut(store)
    (store / CATALOG / DEFINITIONS).unlink()


def no_catalog(store: Path) -> None:
    shutil.rmtree(store / CATALOG)


def renamed(store: Path) -> None:
    path = store / SEGMENTS / segment_name(2)
    path.rename(f"{path}.bak")


def no_index(store: Path) -> None:
    for path in (store / INDEX).iterdir():
        path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("damage", [cut, cut_without_names, no_catalog, renamed, no_index])
def test_everything_is_exported_and_can_be_imported(store: Path, damage: Any) -> None:
    damage(store)
    found, content = exported(store)
    names: tuple[str, ...] = NAMES
    if damage in (cut_without_names, no_catalog):
        names = tuple(f"amq.recovered.{number}" for number in (1, 2, 3))
    assert numbers(content) == {name: [*range(COUNT)] for name in names}
    assert sum(found["messages"].values()) == COUNT * len(NAMES)
    assert len(found["recovered"]) == (0 if names == NAMES else len(NAMES))
    assert found["is_damaged"]
    other = str(store.parent / "other")
    Store.open(other, worker=InlineWorker()).close()
    lines = [line for line, _ in read_lines(io.BytesIO(content))]
    imported = import_lines(other, lines, create=True)
    assert sum(imported.messages.values()) == COUNT * len(NAMES)
    with Store.open(other, worker=InlineWorker()) as opened:
        assert {queue.definition["name"] for queue in opened.queues.values()} == {*names}  # type: ignore[index] # a broker's definition


def test_people_are_warned(store: Path) -> None:
    cut_without_names(store)
    done = run("export", store, store.parent / "all.jsonl")
    assert done.returncode == 1
    assert "120 messages of 3 queues exported" in done.stderr
    assert "warning: the store is damaged" in done.stderr
    assert "its name is lost, and made of its id: queue 'amq.recovered.1'" in done.stderr


def test_one_queue_of_what_is_left(store: Path) -> None:
    cut(store)
    out = store.parent / "b.jsonl"
    assert run("export", store, out, "--queue", "b", "--vhost", "shop").returncode == 1
    assert numbers(out.read_bytes()) == {"b": [*range(COUNT)]}


def test_no_file_stays_open(store: Path) -> None:
    shutil.rmtree(store / CATALOG)
    before = len(os.listdir("/proc/self/fd"))
    with find_remains(ReadableStore.stopped(str(store)), lambda *_: None) as remains:
        out = io.BytesIO()
        export("", LineWriter(out, "jsonl"), remains.queues)
        assert len(os.listdir("/proc/self/fd")) <= before + MAX_OPEN_TO_READ
    assert sum(map(len, numbers(out.getvalue()).values())) == COUNT * len(NAMES)
    assert len(os.listdir("/proc/self/fd")) == before
