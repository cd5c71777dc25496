"""Stores with a history: copies from several moments, and what should be left of a mixture.

What is left is known without any reader of the product: every file is searched for sound records,
whatever its name, and what they say is compared with what was published and acked.
"""

import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from amqpstore import Envelope, Message, Options, Queue, Run, Store
from amqpstore.format.compression import Decompressor
from amqpstore.format.index import decode_block
from amqpstore.format.records import (
    HEADER,
    MAGIC,
    Kind,
    MessageDecoder,
    Operation,
    OperationKind,
    Record,
    decode_message,
    decode_transaction,
    record_at,
)
from amqpstore.identity import marker
from amqpstore.system.filenames import FIRST_COMPACTED
from amqpstore.system.files import OsFiles
from amqpstore.upkeep.worker import InlineWorker

OPTIONS = Options(
    segment_bytes=4 << 10,
    memory_bytes=16 << 10,
    checkpoint_bytes=1 << 60,
    checkpoint_messages=1 << 60,
    checkpoint_ms=1 << 60,
    compaction_bytes_s=1 << 40,
    compress_from_bytes=600,
    reserve_bytes=0,
    least_free_bytes=0,
)
ENVELOPE = Envelope("amq.topic", "a.b", b"\x10\x00\x02")
MOMENTS = 6


class Chronicle:
    """A store in `path`, as a seed makes it: `moments` are copies of it, the last one the last.

    `published` are the numbers of all messages by queue id, in order; `live` those of the last
    moment. `names` of the queues by id, also of deleted ones.
    """

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self._rng = random.Random(seed)
        self._directory = str(path / "store")
        self.moments: list[str] = []
        self.published: dict[int, list[int]] = {}
        self.live: dict[int, set[int]] = {}
        self.names: dict[int, str] = {}
        self._made = self._number = 0
        self._store = self._opened()
        for moment in range(MOMENTS):
            for _ in range(self._rng.choice([8, 25, 40])):
                self._step()
            self._keep(moment)
        self._store.abandon()
        found = marker.read(OsFiles(), self._directory)
        assert found is not None
        self.store_id = found.store_id.bytes
        self.seed = found.seed
        shutil.rmtree(self._directory)

    def _opened(self) -> Store:
        return Store.open(self._directory, options=OPTIONS, worker=InlineWorker())

    def _keep(self, moment: int) -> None:
        """Copy the store as it is after something that ends a moment."""
        store = self._store
        store.sync()
        kind = self._rng.choice(["synced", "checkpoint", "closed", "crashed", "compacted"])
        if kind in ("checkpoint", "compacted"):
            store.upkeep.checkpoint()
        if kind == "compacted":
            for _ in store.upkeep.compact():
                pass
        if kind == "closed":
            store.close()
        if kind == "crashed":
            store.abandon()
        to = str(self.path / f"moment{moment}")
        shutil.copytree(self._directory, to, ignore=shutil.ignore_patterns("lock", "lock.mdb"))
        self.moments.append(to)
        if kind in ("closed", "crashed"):
            self._store = self._opened()

    def _step(self) -> None:
        store, rng = self._store, self._rng
        queues = list(store.queues.values())
        kind = rng.random()
        if len(queues) < 2 or (kind < 0.06 and len(queues) < 6):
            self._made += 1
            queue = store.create_queue({"vhost": "/", "name": f"q{self._made}"})
            self.names[queue.id] = f"q{self._made}"
            self.published[queue.id], self.live[queue.id] = [], set()
        elif kind < 0.08:
            queue = rng.choice(queues)
            store.delete_queue(queue)
            del self.live[queue.id]
        elif kind < 0.5:
            self._publish(rng.sample(queues, rng.randint(1, 2)))
        elif kind < 0.75:
            self._consume(rng.choice(queues))
        elif kind < 0.78:
            queue = rng.choice(queues)
            store.purge(queue)
            self.live[queue.id] = set()
        elif kind < 0.9:
            store.sync()
        elif kind < 0.96:
            store.sync()
            store.upkeep.checkpoint()
        else:
            for _ in range(4):
                store.upkeep.housekeep()

    def _publish(self, queues: list[Queue]) -> None:
        count = self._rng.randint(1, 12)
        numbers = range(self._number, self._number + count)
        self._number += count
        size = self._rng.choice([0, 9, 900])
        self._store.publish(
            queues, [Message(ENVELOPE, b"%d:" % one + b"x" * size) for one in numbers]
        )
        for queue in queues:
            self.published[queue.id] += numbers
            self.live[queue.id] |= set(numbers)

    def _consume(self, queue: Queue) -> None:
        run = self._store.take(queue, self._rng.randint(1, 9))
        if not isinstance(run, Run):
            return
        if self._rng.random() < 0.7:
            self.live[queue.id] -= {number_of(one.body) for one in run.messages or ()}
            self._store.ack(queue, run)
        else:
            self._store.requeue(queue, run)


def number_of(body: bytes) -> int:
    """Return which message this is."""
    return int(body.partition(b":")[0])


class Enqueued(NamedTuple):
    """A place of a message, as some record says."""

    queue_id: int
    sequence: int
    message_id: int


@dataclass
class Evidence:
    """Contents of sound records below a directory: the numbers of messages by id, where messages
    were, and what was acked, as pairs of a queue id and a sequence. `torn` are the ids of messages
    in a batch that may be a torn tail: a repair that knows better may keep them.
    """

    numbers: dict[int, int] = field(default_factory=dict)
    enqueued: set[Enqueued] = field(default_factory=set)
    acked: set[tuple[int, int]] = field(default_factory=set)
    torn: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, directory: str, seed: int) -> "Evidence":
        out = cls()
        decoder = MessageDecoder({}, Decompressor({}).decompress)
        files = {path: list(sound_records(path, seed)) for path in files_below(directory)}
        torn = _torn(files)
        for path, found in files.items():
            for record, _, payload in found:
                if (path, record.offset) in torn:
                    if record.kind == Kind.MESSAGE:
                        out.torn.add(record.number)
                elif record.kind == Kind.MESSAGE:
                    body = decode_message(payload, record.flags, decoder).body
                    out.numbers[record.number] = number_of(body)
                elif record.kind == Kind.TRANSACTION:
                    out._add(operations_of(record, payload))
                elif record.kind == Kind.INDEX:
                    queue_id, entries = decode_block(payload)
                    for sequence, one in zip(entries.sequences, entries.ids, strict=True):
                        out.enqueued.add(Enqueued(queue_id, sequence, one))
        return out

    def _add(self, operations: list[Operation]) -> None:
        for one in operations:
            for place in range(one.message_count):
                sequence = one.first_sequence + place
                if one.kind == OperationKind.ENQUEUE:
                    self.enqueued.add(Enqueued(one.queue_id, sequence, one.first_id + place))
                elif one.kind in (OperationKind.ACK, OperationKind.PURGE):
                    self.acked.add((one.queue_id, sequence))


Found = tuple[Record, int, bytes]


def _torn(files: dict[str, list[Found]]) -> set[tuple[str, int]]:
    """Return the records of the log's last batch in each file of its last segment, if it is not
    whole there: damage to it cannot be told from a torn tail.
    """
    last = max(
        (
            segment
            for found in files.values()
            for record, segment, _ in found
            if record.kind != Kind.INDEX and segment < FIRST_COMPACTED
        ),
        default=0,
    )
    torn = set()
    for path, records in files.items():
        batch: list[Record] = []
        before: list[Record] = []
        for record, segment, payload in records:
            if segment != last or record.kind not in (Kind.MESSAGE, Kind.TRANSACTION):
                continue
            batch.append(record)
            if record.kind == Kind.TRANSACTION:
                there = {one.number for one in batch}
                enqueued = {
                    one.first_id + place
                    for one in operations_of(record, payload)
                    if one.kind == OperationKind.ENQUEUE
                    for place in range(one.message_count)
                }
                before = [] if enqueued <= there else batch
                batch = []
        torn |= {(path, one.offset) for one in (*before, *batch)}
    return torn


def operations_of(record: Record, payload: bytes) -> list[Operation]:
    """Return the operations of a TRANSACTION."""
    return decode_transaction(payload, record.end)[1]


def files_below(directory: str) -> Iterator[str]:
    """Yield every file that may have records of the store."""
    for folder, folders, names in os.walk(directory):
        if folder == directory:
            folders[:] = [one for one in folders if one not in ("catalog", "trails", "transient")]
        for name in sorted(names):
            if not name.endswith(".spare"):
                yield os.path.join(folder, name)


def sound_records(path: str, seed: int) -> Iterator[Found]:
    """Yield each sound record of a file with the segment that it names, and its payload."""
    content = Path(path).read_bytes()
    offset = content.find(MAGIC)
    while offset >= 0:
        if len(content) - offset < HEADER.size:
            return
        segment = HEADER.unpack_from(content, offset)[5]
        found = record_at(content, offset, segment, seed)
        end = offset + 1
        if isinstance(found, Record) and found.kind != Kind.SEGMENT:
            yield found, segment, content[found.payload_offset : found.end]
            end = found.end
        offset = content.find(MAGIC, end)
