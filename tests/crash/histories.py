"""Histories that the crash tests share, and how they open the store under test."""

from __future__ import annotations

import random
from collections.abc import Callable

from amqpstore import Options, Store
from amqpstore.system.files import Files
from amqpstore_tools.drill.outside import OpenStore, Outside
from amqpstore_tools.drill.random_history import play
from amqpstore_tools.drill.trace import Trace
from amqpstore_tools.simulation import stores
from amqpstore_tools.simulation.faulty_files import Faults
from amqpstore_tools.simulation.memory_files import MemoryFiles
from tests.small_limits import small_limits

DIRECTORY = "/var/store"
OPTIONS = Options(
    segment_bytes=1024,
    memory_bytes=8000,
    checkpoint_bytes=3000,
    checkpoint_ms=1 << 60,
    reserve_bytes=0,
    limits=small_limits(entries_a_file=6, max_runs=2),
)


def open_store(
    files: MemoryFiles, seen_as: Files | None = None, options: Options = OPTIONS
) -> Store:
    """The store of these tests on a simulated disk, which it may see as something else."""
    return stores.open_store(DIRECTORY, files, options, seen_as=seen_as)


def open_faulty_store(files: MemoryFiles, faults: Faults) -> Store:
    """Open the store with faults: one of the calls to files and catalog fails."""
    return stores.open_store(DIRECTORY, files, OPTIONS, faults=faults)


def outside_of(open_store: OpenStore) -> Outside:
    """Everyone who will use a store that is not on its disk yet."""
    files = stores.new_disk(DIRECTORY)
    return Outside(Trace(files.fork()), files, open_store)


def record(tell: Callable[[Outside], None], open_store: OpenStore = open_store) -> Trace:
    """The trace of a history, told from a disk on where the store is not yet."""
    outside = outside_of(open_store)
    tell(outside)
    return outside.trace


def short_history(outside: Outside) -> None:
    """Everything a store does, a few times each, over several segments."""
    outside.open()
    outside.keep_file(f"{DIRECTORY}/segments/notes.txt", b"not the store's")
    outside.keep_file(f"{DIRECTORY}/by-hand", b"nor this")
    outside.create_queue("orders")
    outside.create_queue("audit")
    outside.create_queue("passing", durable=False)
    _fan_out(outside)
    _rolled_segments(outside)
    outside.close()
    outside.open()
    _after_reopening(outside)
    outside.kill()
    outside.open()
    _last_of_all(outside)
    _little_is_left(outside)
    outside.close()
    outside.open()
    outside.close()


def _fan_out(outside: Outside) -> None:
    outside.publish(["orders", "audit"], [b"one", b"two" * 100])
    outside.sync()
    outside.publish(["orders", "audit", "passing"], [bytes(700)])
    outside.publish(["orders"], [b"gone with the restart"], persistent=False)
    outside.begin_sync()
    outside.publish(["audit"], [b"while the disk is busy"])
    outside.sync()
    outside.take("orders", 1)
    outside.take("audit", 2)
    outside.sync()
    outside.ack("audit")
    outside.requeue("orders")
    outside.sync()


def _rolled_segments(outside: Outside) -> None:
    for size in (1500, 900, 0, 2100, 40, 1300):
        outside.publish(["orders", "audit"], [bytes([size % 251]) * size, b"small"])
        outside.sync()
    outside.create_queue("short-lived")
    outside.publish(["short-lived", "audit"], [b"soon in one queue only"])
    outside.take("audit", 1, acked=True)
    outside.sync()
    outside.delete_queue("short-lived")


def _after_reopening(outside: Outside) -> None:
    outside.take("orders", 3)
    outside.take("orders", 1)
    outside.publish(["audit", "orders"], [b"after reopening", bytes(range(256)) * 3])
    outside.sync()
    outside.ack("orders", 1)
    outside.begin_sync()
    outside.purge("audit")
    outside.publish(["audit"], [b"after the purge"] * 3)
    outside.sync()
    outside.requeue("orders")
    outside.publish(["audit", "orders"], [b"never synced"])


def _last_of_all(outside: Outside) -> None:
    outside.take("orders", 2)
    outside.take("audit", 1)
    outside.sync()
    outside.ack("orders")
    outside.publish(["audit", "orders"], [bytes(1200), b"the last"])


def _little_is_left(outside: Outside) -> None:
    """A history of several segments and index files, so that they are merged and removed."""
    outside.create_queue("slow")
    outside.create_queue("archive")
    outside.set_lazy("audit", True)
    for size in (1100, 1300, 1200):
        outside.publish(["audit"], [bytes(size), b"fast"] * 2)
        outside.publish(["slow", "archive"], [b"waits for long, in two queues"])
        outside.sync()
    outside.checkpoint()
    outside.delete_queue("orders")
    while outside.ready_count("audit") > 1:
        outside.take("audit", 4, acked=True)
    outside.sync()
    outside.checkpoint()
    outside.housekeep(4)
    outside.take("slow", 1)
    outside.publish(["slow", "audit"], [b"behind what was merged"])
    outside.sync()
    outside.kill()
    outside.open()
    outside.purge("audit")
    outside.take("slow", 1, acked=True)
    outside.sync()
    outside.checkpoint()
    outside.housekeep(2)


def merging_history(outside: Outside) -> None:
    """Index files of one queue are merged in three groups by one checkpoint, and again."""
    full_index_files(outside)
    half_acked(outside)
    merged_and_used(outside)


def full_index_files(outside: Outside) -> None:
    """Six index files that are full, and one that is appended to; a consumer holds what is in
    them, one by one."""
    outside.open()
    outside.create_queue("orders")
    for number in range(6):
        outside.publish(["orders"], [b"%d.%d" % (number, place) for place in range(6)])
        outside.sync()
        outside.checkpoint()
    outside.publish(["orders"], [b"the last"])
    outside.sync()
    outside.checkpoint()
    while outside.ready_count("orders"):
        outside.take("orders", 1)
    outside.sync()


def half_acked(outside: Outside) -> None:
    """Every other message is acked, the others are given back, and each two files are merged."""
    while outside.unacked_count("orders") > 1:
        outside.requeue("orders")
        outside.ack("orders")
    outside.sync()
    outside.checkpoint()


def merged_and_used(outside: Outside) -> None:
    """Take messages from merged files, merge again, and have the next process read them."""
    outside.take("orders", 4)
    outside.ack("orders", 1)
    outside.publish(["orders"], [b"behind what was merged"])
    outside.sync()
    outside.checkpoint()
    outside.kill()
    outside.open()
    outside.take("orders", 1)
    outside.take("orders", 3, acked=True)
    outside.sync()
    outside.checkpoint()


def random_history(seed: str, steps: int) -> Trace:
    """A history drawn by seed."""
    return record(lambda outside: play(outside, random.Random(seed), steps))
