"""A message is moved from queue to queue, and the power is cut at every operation of it.

A transaction that acks a message in one queue and publishes it to another is what dead-lettering
is made of: after any crash the message is in exactly one of them (I4, I7), and once the move was
promised, in the second (I5).
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from amqpstore import Envelope, Message, Options, Queue, Run, Store
from amqpstore.transaction import Transaction
from amqpstore_tools.simulation import stores
from amqpstore_tools.simulation.crash_images import crash_images
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.operations import Operation
from tests.crash.histories import DIRECTORY
from tests.small_limits import small_limits

ENVELOPE = Envelope("", "q", b"\x10\x00\x02")
OPTIONS = Options(
    segment_bytes=2500,
    memory_bytes=300,
    checkpoint_bytes=1500,
    checkpoint_ms=1 << 60,
    compaction_bytes_s=1 << 40,
    reserve_bytes=0,
    limits=small_limits(entries_a_file=6, max_runs=2),
)
MOVES = 6
COPIES = "copies"

Events = list[Operation | int]
"""Operations of the disk and, between them, the number of each move once it was promised."""


def open_store(files: MemoryFiles, options: Options) -> Store:
    return stores.open_store(DIRECTORY, files, options)


def body(number: int) -> bytes:
    return b"%d " % number + b"the same " * 40


def history(options: Options) -> tuple[MemoryFiles, Events]:
    """Fill a queue, and move its messages one by one. Returns the disk before the moves."""
    files = stores.new_disk(DIRECTORY)
    store = open_store(files, options)
    source, target, copies = (store.create_queue(name) for name in ("source", "target", COPIES))
    store.publish([source], [Message(ENVELOPE, body(number)) for number in range(MOVES)])
    store.sync()
    store.upkeep.checkpoint()
    base = files.fork()
    events: Events = []
    files.record = events.append
    for number in range(MOVES):
        run = store.take(source, 1)
        assert isinstance(run, Run)
        with store.transaction() as transaction:
            transaction.publish([target, copies], [Message(ENVELOPE, body(number))])
            transaction.ack(source, run)
        store.sync()
        events.append(number)
    store.abandon()
    return base, events


def numbers(store: Store, queue: Queue) -> list[int]:
    found: list[int] = []
    while queue.ready_count:
        run = store.take(queue, 100)
        assert isinstance(run, Run), run
        found += [int(message.body.split()[0]) for message in run.messages or ()]
    return found


def violations(options: Options) -> Iterator[str]:
    """Yield what is wrong with any of the disks that a crash may leave."""
    disk, events = history(options)
    promised = 0
    rng = random.Random("moves")
    for event in events:
        if isinstance(event, int):
            promised = event + 1
            continue
        disk.redo(event)
        for image in crash_images(disk, rng, 12):
            store = open_store(image.files, options)
            queues = {queue.definition: queue for queue in store.queues.values()}
            contents = {str(name): numbers(store, queue) for name, queue in queues.items()}
            store.abandon()
            moved = len(contents["target"])
            if contents["target"] != list(range(moved)) or contents[COPIES] != contents["target"]:
                yield f"I4 at {event} ({image.description}): {contents}"
            elif contents["source"] != list(range(moved, MOVES)):
                yield f"I7 at {event} ({image.description}): {contents}"
            elif moved < promised:
                yield f"I5 at {event} ({image.description}): {moved} of {promised} are moved"


@pytest.mark.parametrize(
    "options", [OPTIONS, OPTIONS._replace(compress_from_bytes=50)], ids=["plain", "compressed"]
)
def test_a_message_that_is_moved_is_in_exactly_one_queue(options: Options) -> None:
    assert list(violations(options)) == []


def test_a_move_in_two_batches_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def commit(self: Transaction) -> None:
        for publish in self._publishes:
            self._store.enqueue(publish.placements, publish.messages)
        self._store.sync()
        for queue, run in self._acks.runs:
            self._store.ack(queue, run)
        self._has_ended = True

    monkeypatch.setattr(Transaction, "commit", commit)
    assert any(found.startswith("I7") for found in violations(OPTIONS))
