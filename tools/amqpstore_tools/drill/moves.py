"""Moves messages from queue to queue, with a power cut at every operation.

Dead-lettering is a transaction that acks a message in one queue and publishes it to others. After
any crash the message is in the source or in all of the targets (I4, I7), and once the move was
promised, in the targets (I5).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from amqpstore import Envelope, Message, Queue, Run, Store
from amqpstore_tools.drill.invariants import Fault
from amqpstore_tools.drill.outside import OpenStore
from amqpstore_tools.simulation.crash_images import crash_images
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.operations import Operation

_ENVELOPE = Envelope("", "moved", b"\x10\x00\x02")
_SOURCE, _TARGETS = "drill-source", ("drill-target", "drill-copies")


@dataclass(frozen=True)
class MoveCut:
    """All images of one cut: at operation `number`, `promised` moves were promised, and `least` to
    `most` of them survived.
    """

    number: int
    operation: Operation
    images: int
    promised: int
    least: int
    most: int
    faults: tuple[tuple[str, Fault], ...]


def explore_moves(
    open_store: OpenStore,
    files: MemoryFiles,
    rng: random.Random,
    *,
    moves: int,
    images: int,
    go_on: Callable[[MoveCut], bool],
) -> None:
    """Move messages one by one, and recover at most `images` images at each operation.

    `go_on` is called for each cut, and returns whether to continue.
    """
    disk, events = _history(open_store, files, rng, moves)
    promised = number = 0
    for event in events:
        if isinstance(event, int):
            promised = event
            continue
        disk.redo(event)
        number += 1
        faults: list[tuple[str, Fault]] = []
        survived: list[int] = []
        for image in crash_images(disk, rng, images):
            image_faults = _found(open_store, image.files, moves, promised, survived)
            faults += [(image.description, fault) for fault in image_faults]
        least, most = min(survived, default=0), max(survived, default=0)
        cut = MoveCut(number, event, len(survived), promised, least, most, tuple(faults))
        if not go_on(cut):
            return


def _history(
    open_store: OpenStore, files: MemoryFiles, rng: random.Random, moves: int
) -> tuple[MemoryFiles, list[Operation | int]]:
    """Return the disk before the moves, and the operations on it; a number is that of the moves
    that were promised then.
    """
    store = open_store(files)
    source, *targets = (store.create_queue({"name": name}) for name in (_SOURCE, *_TARGETS))
    bodies = [b"%d " % number + rng.randbytes(rng.choice([0, 80, 700])) for number in range(moves)]
    store.publish([source], [Message(_ENVELOPE, body) for body in bodies])
    store.sync()
    store.upkeep.checkpoint()
    base = files.fork()
    events: list[Operation | int] = []
    files.record = events.append
    for number, body in enumerate(bodies, 1):
        run = store.take(source, 1)
        if not isinstance(run, Run):
            raise TypeError(f"nothing to move: {run}")
        with store.transaction() as transaction:
            transaction.publish(targets, [Message(_ENVELOPE, body)])
            transaction.ack(source, run)
        store.sync()
        events.append(number)
    store.abandon()
    return base, events


def _found(
    open_store: OpenStore, files: MemoryFiles, moves: int, promised: int, survived: list[int]
) -> list[Fault]:
    try:
        store = open_store(files)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is the finding)
        survived.append(0)
        return [("I9", f"opening failed: {error!r}")]
    numbers = {
        queue.definition["name"]: _numbers(store, queue)
        for queue in store.queues.values()
        if isinstance(queue.definition, dict)
        and queue.definition.get("name") in (_SOURCE, *_TARGETS)
    }
    store.abandon()
    targets = [numbers.get(name, []) for name in _TARGETS]
    moved = len(targets[0])
    survived.append(moved)
    faults: list[Fault] = []
    if any(target != list(range(moved)) for target in targets):
        faults.append(("I4", f"the targets of the moves hold {targets}"))
    if numbers.get(_SOURCE) != list(range(moved, moves)):
        faults.append(("I7", f"{moved} are moved, but the source holds {numbers.get(_SOURCE)}"))
    if moved < promised:
        faults.append(("I5", f"{promised} moves were promised, but {moved} are there"))
    return faults


def _numbers(store: Store, queue: Queue) -> list[int]:
    found: list[int] = []
    while queue.ready_count:
        run = store.take(queue, 100)
        if not isinstance(run, Run):
            return [*found, -1]
        found += [_number(message.body) for message in run.messages or ()]
    return found


def _number(body: bytes) -> int:
    """Return the number in the body of a message that is moved; -1 if it is another one."""
    number = body.partition(b" ")[0]
    return int(number) if number.isdigit() else -1
