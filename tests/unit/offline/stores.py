"""Tools of the offline tools' tests: stores with something of everything, and runs."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from amqpstore import Envelope, Message, Options, Queue, Run, Store
from amqpstore.system.filenames import SEGMENTS, segment_numbers, segment_path, spare_path
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools import __main__ as program

FIXTURES = Path(__file__).parents[3] / "fixtures" / "v1"
SMALL = Options(segment_bytes=4096, reserve_bytes=0, checkpoint_ms=1 << 60)
ENVELOPE = Envelope("logs", "eu.de", bytes.fromhex("100002"))


class Outcome(NamedTuple):
    """The result of one run of the command."""

    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


def files_of(directory: str) -> dict[str, tuple[bytes, int]]:
    """Bytes and time of every file, and the directories."""
    found = {}
    for root, directories, names in os.walk(directory):
        for name in directories:
            found[os.path.relpath(os.path.join(root, name), directory)] = b"", 0
        for name in names:
            path = os.path.join(root, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, directory)] = file.read(), os.stat(path).st_mtime_ns
    return found


def copied(name: str, tmp_path: Path) -> str:
    """A copy of a store in `fixtures/`."""
    target = str(tmp_path / name)
    shutil.copytree(FIXTURES / name / "store", target)
    return target


def open_store(directory: str, options: Options = SMALL) -> Store:
    return Store.open(directory, options=options, worker=InlineWorker())


def create(store: Store, name: str, vhost: str = "/", **more: object) -> Queue:
    definition = {"vhost": vhost, "name": name, "auto_delete": False, "arguments": {}, **more}
    return store.create_queue(definition)


def publish(store: Store, queue: Queue, count: int) -> None:
    """Publish each message in a batch of its own, so that segments fill up."""
    for number in range(count):
        store.publish([queue], [Message(ENVELOPE, b"%d" % number * 100)])
        store.sync()


def take(store: Store, queue: Queue, count: int) -> list[Run]:
    found = []
    while count and isinstance(run := store.take(queue, limit=count), Run):
        found.append(run)
        count -= run.count
    return found


def make_busy(directory: str) -> str:
    """A store with several segments, index files, a compacted segment, and a log behind that."""
    store = open_store(directory)
    orders, audit = (create(store, name) for name in ("o", "a"))
    publish(store, orders, 100)
    store.publish([orders, audit], [Message(ENVELOPE, b"both")] * 3)
    store.upkeep.checkpoint()
    for number in range(80):
        [run] = take(store, orders, 1)
        if number % 4:
            store.ack(orders, run)
    store.sync()
    store.upkeep.checkpoint()
    for _ in range(5):
        store.upkeep.housekeep()
    publish(store, audit, 10)
    take(store, audit, 2)
    store.sync()
    store.abandon()
    write_spares(directory)
    return directory


def write_spares(directory: str) -> None:
    """Leave spare segments as crashes do: full of zeros, with all that a segment had, and with a
    name as a segment too.
    """
    numbers = segment_numbers(os.listdir(os.path.join(directory, SEGMENTS)))
    Path(spare_path(directory, 901)).write_bytes(bytes(4096))
    shutil.copy(segment_path(directory, numbers[0]), spare_path(directory, 902))
    os.link(segment_path(directory, numbers[-1]), spare_path(directory, 903))


def run_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> Outcome:
    """Run `amqpstore` in this process."""
    capsys.readouterr()
    monkeypatch.setenv("COLUMNS", "80")
    try:
        code = program.main(arguments)
    except SystemExit as error:
        code = int(error.code or 0)
    found = capsys.readouterr()
    return Outcome(code, found.out, found.err)
