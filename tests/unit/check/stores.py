"""Stores that have seen everything, for checks to look at."""

import random

from amqpstore import Envelope, Message, MessageDamagedError, Options, Queue, Run, Store
from amqpstore.upkeep.worker import InlineWorker

OPTIONS = Options(
    segment_bytes=4 << 10,
    memory_bytes=16 << 10,
    checkpoint_bytes=1 << 60,
    checkpoint_messages=1 << 60,
    checkpoint_ms=1 << 60,
    compaction_bytes_s=1 << 40,
    compress_from_bytes=200,
    train_dictionary=True,
    reserve_bytes=0,
    least_free_bytes=0,
)


class History:
    """A store in `directory` and what a seed makes of it, through closes and crashes."""

    def __init__(self, directory: str, seed: int) -> None:
        self.directory = directory
        self._rng = random.Random(seed)
        self._store: Store | None = None
        self._made = 0

    @property
    def store(self) -> Store:
        """The store, which is opened if it is closed."""
        if self._store is None:
            self._store = Store.open(self.directory, options=OPTIONS, worker=InlineWorker())
        return self._store

    def steps(self, count: int) -> None:
        """Make a number of random steps."""
        for _ in range(count):
            self._step()

    def close(self) -> None:
        """Close the store in order."""
        self.store.close()
        self._store = None

    def abandon(self) -> None:
        """End the store as a crash would: what was not synced is lost."""
        self.store.abandon()
        self._store = None

    def _step(self) -> None:
        store, rng = self.store, self._rng
        queues = list(store.queues.values())
        kind = rng.random()
        if len(queues) < 3 or (kind < 0.03 and len(queues) < 6):
            self._made += 1
            store.create_queue({"vhost": "/", "name": f"q{self._made}"}, durable=kind > 0.005)
        elif kind < 0.05:
            store.delete_queue(rng.choice(queues))
        elif kind < 0.5:
            self._publish(rng.sample(queues, rng.randint(1, 3)))
        elif kind < 0.8:
            self._consume(rng.choice(queues))
        elif kind < 0.82:
            store.purge(rng.choice(queues))
        elif kind < 0.9:
            store.sync()
        elif kind < 0.96:
            store.sync()
            store.upkeep.checkpoint()
        else:
            for _ in range(4):
                store.upkeep.housekeep()

    def _publish(self, queues: list[Queue]) -> None:
        rng = self._rng
        envelope = Envelope(
            "amq.topic",
            rng.choice(["a.b", "grüße"]),
            b"\x10\x00\x02",
            persistent=rng.random() < 0.9,
        )
        messages = [
            Message(envelope, b'{"order": %d, "state": "new"}' % n + b"x" * rng.choice([0, 9, 900]))
            for n in range(rng.randint(1, 12))
        ]
        expires_ms = rng.choice([0, 0, 4_000_000_000_000])
        self.store.publish(queues, messages, expires_ms=expires_ms)

    def _consume(self, queue: Queue) -> None:
        run = self.store.take(queue, self._rng.randint(1, 9))
        if isinstance(run, MessageDamagedError):
            raise run
        if isinstance(run, Run):
            self.store.ack(queue, run) if self._rng.random() < 0.7 else self.store.requeue(
                queue, run
            )
