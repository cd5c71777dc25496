"""Small stores to be copied, and what is in one."""

from __future__ import annotations

import os
from collections.abc import Sequence

from amqpstore import Envelope, Message, Options, Queue, Run, Store
from amqpstore.upkeep.worker import InlineWorker

OPTIONS = Options(
    segment_bytes=4 << 10,
    checkpoint_messages=1 << 60,
    checkpoint_ms=1 << 60,
    compaction_bytes_s=1 << 40,
    reserve_bytes=0,
    least_free_bytes=0,
)


def open_store(directory: str) -> Store:
    return Store.open(directory, options=OPTIONS, worker=InlineWorker())


def queue_of(store: Store, name: str) -> Queue:
    """Return a queue by its name; create it if it does not exist."""
    for queue in store.queues.values():
        if name_of(queue) == name:
            return queue
    return store.create_queue({"name": name, "vhost": "/"})


def name_of(queue: Queue) -> str:
    definition = queue.definition
    assert isinstance(definition, dict)
    return str(definition["name"])


def publish(store: Store, name: str, bodies: Sequence[bytes]) -> None:
    """One batch."""
    envelope = Envelope("", name, b"\x10\x00\x02")
    store.publish([queue_of(store, name)], [Message(envelope, body) for body in bodies])
    store.sync()


def make_store(directory: str, *, batches: int = 30, close: bool = True) -> None:
    """Several segments, an index file, a checkpoint, and a log behind it."""
    store = open_store(directory)
    for batch in range(batches):
        publish(store, "orders", [b"%d.%d " % (batch, place) * 40 for place in range(5)])
        if batch == batches // 2:
            store.upkeep.checkpoint()
    if close:
        store.close()
    else:
        store.abandon()


def bodies(directory: str) -> dict[str, list[bytes]]:
    """Return what a store holds, by queue: it is opened, and left as a crash would leave it."""
    store = open_store(directory)
    try:
        assert store.recovery_report.damage == []
        return {name_of(queue): _take_all(store, queue) for queue in store.queues.values()}
    finally:
        store.abandon()


def _take_all(store: Store, queue: Queue) -> list[bytes]:
    found: list[bytes] = []
    while queue.ready_count:
        run = store.take(queue, 1000)
        assert isinstance(run, Run)
        found += [message.body for message in run.messages or []]
    return found


def contents(directory: str) -> dict[str, bytes]:
    """Every file of a directory, but the lock: that says who had it last."""
    found = {}
    for folder, _, names in os.walk(directory):
        for name in set(names) - {"lock"}:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, directory)] = file.read()
    return found
