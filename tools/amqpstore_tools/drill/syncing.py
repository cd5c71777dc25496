"""A program that uses a store on a disk that will lose power, and says what it was promised.

Each batch goes to two queues, and a part of one of them is acked. A line on stdout is written once
a batch, or its acks, are durable: `published N` or `acked N`.
"""

from __future__ import annotations

import random
import sys

from amqpstore import Envelope, Message, Options, Run, Store
from amqpstore.upkeep.worker import InlineWorker

QUEUES = ("left", "right")
MESSAGES = 3
"""How many messages a batch has, in each queue."""

ACKED = 3
"""One batch out of this many is acked in the first queue."""

_OPTIONS = Options(
    segment_bytes=256 << 10, checkpoint_bytes=1 << 20, reserve_bytes=0, least_free_bytes=0
)


def body_of(seed: str, batch: int, index: int) -> bytes:
    """Return a body that contains its place, and can be made again from it."""
    rng = random.Random(f"{seed} {batch} {index}")  # noqa: S311 (no secret)
    return b"%d.%d " % (batch, index) + rng.randbytes(rng.choice([0, 100, 3000]))


def indexes_of(body: bytes) -> tuple[int, int] | None:
    """Return the batch and the place in a body; None if it has none."""
    batch, _, index = body.partition(b" ")[0].partition(b".")
    return (int(batch), int(index)) if batch.isdigit() and index.isdigit() else None


def work(directory: str, seed: str) -> None:
    """Publish and ack until the disk fails."""
    store = Store.open(directory, options=_OPTIONS, worker=InlineWorker())
    queues = [store.create_queue({"name": name}) for name in QUEUES]
    envelope = Envelope("", "drill", b"\x10\x00\x02")
    batch = 0
    while True:
        bodies = [body_of(seed, batch, index) for index in range(MESSAGES)]
        store.publish(queues, [Message(envelope, body) for body in bodies])
        store.sync()
        _tell("published", batch)
        if batch % ACKED == 0:
            first = queues[0].next_sequence - MESSAGES
            run = store.take(queues[0], MESSAGES, first_sequence=first)
            if not isinstance(run, Run):
                raise TypeError(f"a new store returned {run}")
            store.ack(queues[0], run)
            store.sync()
            _tell("acked", batch)
        if batch % 50 == 49:
            store.upkeep.checkpoint()
            store.upkeep.housekeep()
        batch += 1


def _tell(what: str, batch: int) -> None:
    sys.stdout.write(f"{what} {batch}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2])
