"""The checkpoint state says what a plain dict says, with checkpoints anywhere."""

import contextlib
import os
import tempfile
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from amqpstore.catalog import tables
from amqpstore.catalog.backing import Backing
from amqpstore.catalog.tables import Position
from amqpstore.checkpoints.checkpoint import Checkpoint
from amqpstore.checkpoints.checkpoint_state import CheckpointState, QueueIndex, Sizes
from amqpstore.checkpoints.index_writer import IndexWriter
from amqpstore.format.index import IndexReader, IndexState, live_runs
from amqpstore.format.records import Operation, OperationKind
from amqpstore.format.runs import Run
from amqpstore.log.batch import BatchSummary
from amqpstore.log.segment_accounts import SegmentAccount, SegmentAccounts
from amqpstore.system.filenames import index_key, segment_path
from amqpstore.system.files import OsFiles
from tests.unit.engine.stores import RowsCatalog

STORE_ID = bytes(range(16))
BATCHES_A_SEGMENT = 3


class Entry(NamedTuple):
    """A message in a queue of the model."""

    id: int
    expires_ms: int
    priority: int
    delivered: int = 0


@dataclass
class Plain:
    """The model: entries by sequence of each queue, and the size and segment of each message."""

    queues: dict[int, dict[int, Entry]] = field(default_factory=dict)
    heads: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    segments: dict[int, int] = field(default_factory=dict)

    def apply(self, operation: Operation) -> None:
        queue = self.queues[operation.queue_id]
        for place in range(operation.message_count):
            sequence = operation.first_sequence + place
            if operation.kind == OperationKind.ENQUEUE:
                queue[sequence] = Entry(
                    operation.first_id + place, operation.detail, operation.priority
                )
            elif sequence in queue and operation.kind == OperationKind.DELIVERED:
                queue[sequence] = queue[sequence]._replace(
                    delivered=max(queue[sequence].delivered, operation.detail)
                )
            elif operation.kind != OperationKind.DELIVERED:
                queue.pop(sequence, None)

    def references(self) -> Counter[int]:
        return Counter(entry.id for queue in self.queues.values() for entry in queue.values())


class Subject:
    """The checkpoint state on a real directory, and the log's counters."""

    def __init__(self, directory: str) -> None:
        for name in ("segments", "index"):
            os.mkdir(os.path.join(directory, name))
        self.backing = Backing.of(OsFiles(), directory, STORE_ID, RowsCatalog())
        self.reader = IndexReader(self.backing.files, directory, self.backing.seed)
        self.checkpoint_state = CheckpointState(SegmentAccounts([]), (), self.reader)
        self.writer = IndexWriter(self.backing.files, directory, self.backing.seed)
        self.plain = Plain()
        self.created: list[int] = []
        self.deleted: list[int] = []
        self.batches: list[BatchSummary] = []
        self.next_queue = 1
        self.next_id = 1
        self.written = 0
        self.position = Position(0, 0, 1, 1)

    def create(self) -> None:
        self.plain.queues[self.next_queue] = {}
        self.plain.heads[self.next_queue] = 1
        self.created.append(self.next_queue)
        self.next_queue += 1

    def delete(self, queue_id: int) -> None:
        del self.plain.queues[queue_id]
        self.deleted.append(queue_id)

    def batch(self, operations: list[Operation], sizes: list[int]) -> None:
        segment = self.written // BATCHES_A_SEGMENT + 1
        end = 1000 * (self.written % BATCHES_A_SEGMENT + 1)
        self.written += 1
        path = os.path.join(self.backing.directory, "segments", f"{segment:010}.segment")
        with open(path, "ab"):
            pass
        for place, size in enumerate(sizes):
            self.plain.sizes[self.next_id + place] = size
            self.plain.segments[self.next_id + place] = segment
        operations = sorted(operations, key=lambda one: (one.kind, one.queue_id))
        for operation in operations:
            self.plain.apply(operation)
        bodies = array("I", [size - 32 for size in sizes])
        self.batches.append(
            BatchSummary(operations, self.next_id, array("I", sizes), bodies, segment, end)
        )
        self.next_id += len(sizes)
        self.position = Position(segment, end, self.written + 1, self.next_id)

    def checkpoint(self) -> None:
        work = Checkpoint(
            self.backing,
            self.checkpoint_state,
            self.writer,
            created=self.created,
            batches=self.batches,
            deleted=self.deleted,
            offset_tables={},
            damaged=(),
            position=self.position,
        )
        for number in work.run().dropped:
            os.remove(segment_path(self.backing.directory, number))
        self.created, self.deleted, self.batches = [], [], []

    def restart(self) -> None:
        """Restart as recovery does, from a checkpoint with nothing behind it."""
        self.checkpoint()
        self.writer.close()
        catalog = self.backing.catalog
        states: dict[int, list[IndexState]] = {}
        for key, row in catalog.rows("index").items():
            states.setdefault(int(key[:20]), []).append(IndexState(**row))
        queues = [
            QueueIndex(int(key), row["next_sequence"], states.pop(int(key), []), self.reader)
            for key, row in catalog.rows("heads").items()
        ]
        assert not states
        known = {queue.id for queue in queues}
        # A queue that nothing happened to has a row of the store's only.
        queues += [QueueIndex(one, 1, (), self.reader) for one in self.plain.queues.keys() - known]
        accounts = list(map(SegmentAccount.of_row, tables.SEGMENTS.read(catalog.rows).values()))
        self.checkpoint_state = CheckpointState(SegmentAccounts(accounts), queues, self.reader)
        self.writer = IndexWriter(self.backing.files, self.backing.directory, self.backing.seed)

    def check(self) -> None:
        """Check that after a checkpoint, queues, accounts and files are what the model says."""
        assert self.checkpoint_state.queues.keys() == self.plain.queues.keys()
        for queue_id, expected in self.plain.queues.items():
            queue = self.checkpoint_state.queues[queue_id]
            assert queue.next_sequence == self.plain.heads[queue_id]
            assert not len(queue.fresh)
            assert self.live_of(queue) == expected
            body_bytes = [file.state.body_bytes for file in queue.files]
            counted = sum(self.plain.sizes[one.id] - 32 for one in expected.values())
            assert sum(size for size in body_bytes if size is not None) == counted
            assert None not in body_bytes
        references = self.plain.references()
        position = self.position.segment
        segments = {self.plain.segments[one] for one in references}
        numbers = {account.number for account in self.checkpoint_state.accounts}
        assert segments <= numbers <= segments | {position}
        for account in self.checkpoint_state.accounts:
            live = [one for one in references if self.plain.segments[one] == account.number]
            assert account.live_count == len(live)
            assert account.live_bytes == sum(self.plain.sizes[one] for one in live)
        self.check_files(numbers)

    def check_files(self, numbers: set[int]) -> None:
        states = {
            (queue.id, file.state.number)
            for queue in self.checkpoint_state.queues.values()
            for file in queue.files
        }
        names = os.listdir(os.path.join(self.backing.directory, "index"))
        assert {index_key(name) for name in names} == states
        names = os.listdir(os.path.join(self.backing.directory, "segments"))
        assert {int(name[:10]) for name in names} == numbers

    def live_of(self, queue: QueueIndex) -> dict[int, Entry]:
        found: dict[int, Entry] = {}
        for file in queue.files:
            state = file.state
            assert state.live
            runs = live_runs(self.reader.entries(queue.id, state), state, 0, 2**64)
            assert sum(run.count for run in runs) == state.live
            for run in runs:
                for place in range(run.count):
                    found[run.first_sequence + place] = Entry(
                        run.first_id + place, run.expires_ms, run.priority, run.delivery_count
                    )
        return found


def draw_batch(data: st.DataObject, subject: Subject) -> None:
    """Publishes to some queues, and what happened to runs of them, in one batch."""
    plain = subject.plain
    operations: list[Operation] = []
    sizes: list[int] = []
    for _ in range(data.draw(st.integers(0, 3))):
        count = data.draw(st.integers(1, 4))
        expires_ms, priority = data.draw(st.sampled_from([(0, 0), (5, 0), (0, 9)]))
        first_id = subject.next_id + len(sizes)
        for queue_id in data.draw(st.sets(st.sampled_from(sorted(plain.queues)))):
            first = plain.heads[queue_id]
            plain.heads[queue_id] += count
            kind = OperationKind.ENQUEUE
            operations.append(
                Operation(kind, count, queue_id, first, first_id, expires_ms, priority)
            )
        sizes += data.draw(st.lists(st.integers(32, 99), min_size=count, max_size=count))
    for _ in range(data.draw(st.integers(0, 3))):
        queue_id = data.draw(st.sampled_from(sorted(plain.queues)))
        if plain.heads[queue_id] == 1:
            continue
        first = data.draw(st.integers(1, plain.heads[queue_id] - 1))
        count = data.draw(st.integers(1, plain.heads[queue_id] - first))
        kind = data.draw(
            st.sampled_from([OperationKind.ACK, OperationKind.DELIVERED, OperationKind.PURGE])
        )
        detail = data.draw(st.integers(1, 4)) if kind == OperationKind.DELIVERED else 0
        operations.append(Operation(kind, count, queue_id, first, 0, detail))
    subject.batch(operations, sizes)


ACTIONS = st.sampled_from(["batch"] * 6 + ["checkpoint"] * 2 + ["restart", "create", "delete"])


@given(st.lists(ACTIONS, min_size=1, max_size=25), st.data())
def test_with_checkpoints_anywhere_what_is_live_is_what_a_plain_dict_says(
    actions: list[str], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        subject = Subject(directory)
        # Hypothesis gives up some examples half-way. (A restart replaces the writer.)
        stack.callback(lambda: subject.writer.close())
        subject.create()
        for action in actions:
            if action == "batch" and subject.plain.queues:
                draw_batch(data, subject)
            elif action == "create":
                subject.create()
            elif action == "delete" and subject.plain.queues:
                subject.delete(data.draw(st.sampled_from(sorted(subject.plain.queues))))
            elif action == "restart":
                subject.restart()
                subject.check()
            elif action == "checkpoint":
                subject.checkpoint()
                subject.check()
        subject.checkpoint()
        subject.check()


def test_sizes_of_a_run_that_several_batches_hold() -> None:
    sizes = Sizes()
    sizes.add(5, array("I", [50, 60]), array("I", [5, 6]))
    sizes.add(7, array("I"), array("I"))
    sizes.add(7, array("I", [70, 80, 90]), array("I", [7, 8, 9]))
    for first_id, bodies in (5, [5, 6, 7, 8]), (6, [6, 7, 8]), (9, [9]):
        run = Run(1, len(bodies), first_id=first_id)
        found = [column.tolist() for column in sizes.of(run)]
        assert found == [[10 * size for size in bodies], bodies]
