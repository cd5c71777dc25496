"""Tools of the engine's tests: stores that open fast, their messages, and files that fail."""

import copy
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from amqpstore import Envelope, Message, Options, Queue, Run, Store
from amqpstore.catalog.catalog import TABLES, Change, Value, encode_key
from amqpstore.catalog.rows import encode_row
from amqpstore.format.limits import LIMITS, StoreLimits
from amqpstore.identity import marker
from amqpstore.system.clock import SYSTEM_CLOCK, Clock
from amqpstore.system.filenames import segment_path
from amqpstore.system.files import File, Files, OsFiles
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.simulation.wrapped_files import WrappedFile

ENVELOPE = Envelope("", "orders", bytes.fromhex("100002"))
TRANSIENT = Envelope("", "orders", persistent=False)


NO_CHECKPOINTS = Options(
    checkpoint_bytes=1 << 60, checkpoint_messages=1 << 60, checkpoint_ms=1 << 60, reserve_bytes=0
)
"""Options that have the next start read the whole log, and find the damage in it."""


class RowsCatalog:
    """A catalog in memory, kept by the test while stores come and go."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, Value]] = {table: {} for table in TABLES}

    def rows(self, table: str) -> dict[str, Value]:
        return copy.deepcopy(dict(sorted(self._tables[table].items())))

    def commit(self, changes: Sequence[Change]) -> None:
        changed = {table: dict(rows) for table, rows in self._tables.items()}
        for table, key, value in changes:
            encoded = encode_key(key)
            if value is None:
                changed[table].pop(key, None)
            else:
                encode_row(table, encoded, value)
                changed[table][key] = copy.deepcopy(value)
        self._tables = changed

    def close(self) -> None:
        pass

    def clone(self) -> "RowsCatalog":
        """A catalog with the same rows."""
        return copy.deepcopy(self)


class Seconds(Clock):
    """A clock by which each look is a second later."""

    def __init__(self) -> None:
        self.seconds = 0

    def wall_ms(self) -> int:
        return self.monotonic_ms()

    def monotonic_ms(self) -> int:
        self.seconds += 1
        return 1000 * self.seconds


@dataclass
class Disk:
    """A data directory and the catalog that goes with it, to be opened again and again."""

    directory: str
    catalog: RowsCatalog = field(default_factory=RowsCatalog)
    segment_bytes: int = 1 << 20
    options: Options = NO_CHECKPOINTS
    clock: Clock = SYSTEM_CLOCK
    limits: StoreLimits = LIMITS

    def open(self, files: Files | None = None) -> Store:
        return Store.open(
            self.directory,
            files=files,
            open_catalog=lambda path, create, *, plain=False: self.catalog,
            options=self.options._replace(segment_bytes=self.segment_bytes, limits=self.limits),
            worker=InlineWorker(),
            clock=self.clock,
        )

    def note_end(self) -> None:
        """Note the end of a log that `abandon` has left: what is before it was durable.

        Nothing else is: the next start reads the log from its start again.
        """
        self.open().abandon()

    @property
    def seed(self) -> int:
        """The seed of the checksums of the store's records."""
        found = marker.read(OsFiles(), self.directory)
        assert found is not None
        return found.seed

    def path(self, number: int) -> str:
        """Return where a segment is."""
        return segment_path(self.directory, number)

    def read(self, number: int) -> bytes:
        """A segment's content."""
        with open(self.path(number), "rb") as file:
            return file.read()

    def write(self, number: int, content: bytes) -> None:
        """Put other content in a segment's place."""
        with open(self.path(number), "wb") as file:
            file.write(content)

    def flip(self, number: int, offset: int) -> None:
        """Flip one bit of a segment."""
        content = bytearray(self.read(number))
        content[offset] ^= 0x10
        self.write(number, bytes(content))

    def size(self, number: int) -> int:
        """Bytes in a segment's file."""
        return os.path.getsize(self.path(number))


class FailingFiles(OsFiles):
    """Files of which one kind of call fails with an OSError from now on, when told so.

    `fails` holds names of calls: append, fill, datasync, sync_directory, create, recycle; `error`
    is what they raise, an OSError where it is not said.
    """

    def __init__(self) -> None:
        self.fails: set[str] = set()
        self.error: Exception | None = None
        self.calls: list[str] = []

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise self.error or OSError(5, f"{name} fails")

    def create(self, path: str) -> File:
        self._call("create")
        return FailingFile(self, super().create(path))

    def recycle(self, old: str, new: str) -> File:
        self._call("recycle")
        return FailingFile(self, super().recycle(old, new))

    def open(self, path: str) -> File:
        return FailingFile(self, super().open(path))

    def sync_directory(self, path: str) -> None:
        self._call("sync_directory")
        super().sync_directory(path)


class FailingFile(WrappedFile):
    """A file of `FailingFiles`. A failed append leaves half of what it was given."""

    def __init__(self, files: FailingFiles, file: File) -> None:
        super().__init__(file)
        self._files = files

    def append(self, buffers: Sequence[bytes]) -> None:
        try:
            self._files._call("append")
        except Exception:
            content = b"".join(buffers)
            self._file.append([content[: len(content) // 2]])
            raise
        self._file.append(buffers)

    def fill(self, start: int, stop: int) -> None:
        self._files._call("fill")
        self._file.fill(start, stop)

    def datasync(self) -> None:
        self._files._call("datasync")
        self._file.datasync()


def messages(*bodies: bytes, envelope: Envelope = ENVELOPE) -> list[Message]:
    """Return new messages."""
    return [Message(envelope, body) for body in bodies]


def take(store: Store, queue: Queue, limit: int = 1000, *, acked: bool = False) -> Run:
    """Take a run that must be readable."""
    run = store.take(queue, limit, acked=acked)
    assert isinstance(run, Run), run
    return run


def bodies(run: Run) -> list[bytes]:
    """The bodies of a run that was taken."""
    assert run.messages is not None
    assert len(run.messages) == run.count
    return [message.body for message in run.messages]


def drain(store: Store, queue: Queue) -> list[bytes]:
    """All bodies of a queue in order. Messages that cannot be read are left out."""
    found: list[bytes] = []
    while queue.ready_count:
        run = store.take(queue, 1000)
        if isinstance(run, Run):
            found += bodies(run)
    return found


def empty(store: Store, queue: Queue, limit: int = 1000) -> list[bytes]:
    """All bodies of a queue in order, each of which must be readable; they are acked."""
    found: list[bytes] = []
    while queue.ready_count:
        run = take(store, queue, limit)
        found += bodies(run)
        store.ack(queue, run)
    return found


def spans(queue: Queue) -> list[tuple[int, int, int]]:
    """Return sequence, count and delivery count of ready runs; those of one count are joined."""
    joined: list[tuple[int, int, int]] = []
    for run in queue.ready:
        if joined:
            first, count, delivered = joined[-1]
            if first + count == run.first_sequence and delivered == run.delivery_count:
                joined[-1] = first, count + run.count, delivered
                continue
        joined.append((run.first_sequence, run.count, run.delivery_count))
    return joined


def queue_named(store: Store, name: str) -> Queue:
    """The queue that was created with this name as its definition."""
    (found,) = (queue for queue in store.queues.values() if queue.definition == name)
    return found


def publish_batches(store: Store, queue: Queue, batches: Iterable[Sequence[bytes]]) -> list[int]:
    """Publish and sync each batch; the log's size in its segment before each, and at the end."""
    offsets = []
    for batch in batches:
        current = store.log.current
        offsets.append(current.size if current else 0)
        store.publish([queue], messages(*batch))
        store.sync()
    assert store.log.current is not None
    return [*offsets, store.log.current.size]
