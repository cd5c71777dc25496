"""Purges that are undone, or end, and the power is cut at every operation of it.

After any crash each queue holds all of what was purged, or it is aside as a whole, or gone; and
what was promised stays so: a purge, an undo, and the end of a purge.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from amqpstore import Envelope, Message, Queue, Run, Store
from amqpstore.purges import Purged
from amqpstore_tools.drill.trace import Trace
from amqpstore_tools.simulation.crash_images import crash_images
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.operations import Operation
from tests.crash.histories import DIRECTORY, open_store

ENVELOPE = Envelope("", "orders", b"\x10\x00\x02")
COUNT = 20
BOTH = {"source": [*range(2, COUNT + 1)], "other": [*range(1, 6)]}
"""The messages that are purged; the first message of `source` is unacked."""

Promise = tuple[str, int]
"""The state of the purge, and the operation from which on it holds."""


def publish(store: Store, queue: Queue, count: int) -> None:
    store.publish([queue], [Message(ENVELOPE, b"%d" % number) for number in range(count)])


def named(store: Store, name: str) -> Queue:
    (found,) = (queue for queue in store.queues.values() if queue.definition == name)
    return found


def purge(store: Store) -> Purged:
    found = store.purge_aside([named(store, "source"), named(store, "other")], {})
    assert found is not None
    store.sync()
    return found


def history(kind: str) -> tuple[Trace, list[Promise]]:
    """Two queues, one of them in several index files, and what happens to a purge of both."""
    files = MemoryFiles()
    files.make_directory(DIRECTORY.rpartition("/")[0])
    store = open_store(files)
    source, other = store.create_queue("source"), store.create_queue("other")
    publish(store, source, COUNT)
    store.sync()
    store.upkeep.checkpoint()
    store.abandon()
    store = open_store(files)
    source, other = named(store, "source"), named(store, "other")
    trace = Trace(files.fork())
    files.record = trace.note
    run = store.take(source, 1)
    assert isinstance(run, Run)
    publish(store, other, 5)
    promises: list[Promise] = []
    purged = purge(store)
    promises.append(("aside", len(trace.events)))
    publish(store, other, 1)
    store.sync()
    store.upkeep.checkpoint()
    if kind == "undo":
        promises.append(("undone or aside", len(trace.events)))
        purged.undo()
        promises.append(("undone", len(trace.events)))
    else:
        promises.append(("ended or aside", len(trace.events)))
        assert purged.end()
        store.sync()
        promises.append(("ended", len(trace.events)))
    publish(store, source, 1)
    store.sync()
    store.upkeep.checkpoint()
    store.abandon()
    return trace, promises


def ready(store: Store, name: str, most: int) -> list[int]:
    """The sequences of what is ready of the messages that were there at first."""
    queue = named(store, name)
    store.stored.paging.read_index(queue)
    found = [one for run in queue.ready for one in range(run.first_sequence, run.end)]
    return [one for one in found if one <= most]


def state_of(files: MemoryFiles) -> str:
    """Return the state of the purge on a disk, which is the same after one more start."""
    state = ""
    for _ in range(2):
        store = open_store(files)
        there = {"source": ready(store, "source", COUNT), "other": ready(store, "other", 5)}
        # The message that was unacked is ready.
        assert there["source"][:1] == [1]
        there["source"] = there["source"][1:]
        aside = [one.message_count for one in store.purged.values()]
        assert len(store.queues) == 2 + len(aside)
        if aside:
            assert (aside, there) == ([COUNT - 1 + 5], {"source": [], "other": []})
            now = "aside"
        elif there["source"]:
            # The messages of `other` are not durable until the purge is.
            assert there["source"] == BOTH["source"]
            now = "undone" if there == BOTH else "before"
        else:
            assert there["other"] == []
            now = "ended"
        assert state in ("", now)
        state = now
        store.upkeep.checkpoint()
        store.abandon()
    return state


def violations(kind: str) -> Iterator[str]:
    trace, promises = history(kind)
    rng = random.Random(kind)
    disk = trace.base.fork()
    for number, event in enumerate(trace.events, 1):
        if isinstance(event, Operation):
            disk.redo(event)
        promised = [promise for promise, start in promises if number > start]
        allowed = promised[-1].split(" or ") if promised else ["before", "undone", "aside"]
        for image in crash_images(disk, rng, 4):
            state = state_of(image.files)
            if state not in allowed:
                yield f"at {event} ({image.description}): {state}, not {allowed}"


@pytest.mark.parametrize("kind", ["undo", "end"])
def test_a_purge_is_all_or_nothing_after_any_crash(kind: str) -> None:
    assert list(violations(kind)) == []


def test_an_end_that_removes_the_row_first_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(self: Purged) -> bool:
        self.undo()
        for queue, last in zip(self.queues, (COUNT, 5), strict=True):
            for run in self._store.withdrawals.withdraw_range(queue, 1, last):
                self._store.ack(queue, run)
        return True

    monkeypatch.setattr(Purged, "end", end)
    assert any("undone, not ['ended', 'aside']" in found for found in violations("end"))
