"""The store against plain lists: publishes, deliveries, acks, and every way to go down and come up.

The model keeps two things: what an open store must show, and, as of each batch that became durable,
what a store that was opened again must show. A crash may take back what came after the last durable
batch, as a whole; it may take nothing else, and it may bring back only what was not acked.
"""

import os
import shutil
import tempfile
from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from amqpstore import (
    Envelope,
    Message,
    MessageDamagedError,
    Options,
    Placement,
    Queue,
    Run,
    Store,
)
from amqpstore.format.records import Gap, Kind, scan
from amqpstore.format.runs import body_bytes, overhead_bytes
from amqpstore.identity import marker
from amqpstore.queues.transient import FIRST_TRANSIENT
from amqpstore.system.clock import SimulatedClock
from amqpstore.system.filenames import segment_path
from amqpstore.system.files import OsFiles
from tests.late_worker import LateWorker
from tests.small_limits import small_limits

PERSISTENT = Envelope("", "key", b"\x10\x00\x02")
TRANSIENT = Envelope("", "key", persistent=False)
OPTIONS = Options(
    segment_bytes=700,
    memory_bytes=6_000,
    checkpoint_bytes=1 << 60,
    checkpoint_messages=1 << 60,
    checkpoint_ms=1000,
    reserve_bytes=0,
    limits=small_limits(entries_a_file=4, max_runs=1),
)
"""Checkpoints come by their rules alone: no time passes but by them."""

indexes = st.integers(0, 10_000)


@dataclass(frozen=True)
class Stored:
    """A message in a queue: `deliveries` counts all, `requeues` those that came back."""

    sequence: int
    body: bytes
    persistent: bool
    deliveries: int = 0
    requeues: int = 0
    expires_ms: int = 0


@dataclass
class Model:
    """A queue in an open store."""

    queue: Queue
    ready: list[Stored] = field(default_factory=list)
    taken: list[tuple[Run, list[Stored]]] = field(default_factory=list)
    withdrawn: list[tuple[Run, list[Stored]]] = field(default_factory=list)
    quarantined: list[Stored] = field(default_factory=list)

    def logged(self) -> list[Stored]:
        """Return what the log keeps: everything persistent that is not settled, in order."""
        held = [stored for _, run in [*self.taken, *self.withdrawn] for stored in run]
        return sorted(
            (one for one in [*self.ready, *held, *self.quarantined] if one.persistent),
            key=lambda stored: stored.sequence,
        )


class StoreAgainstPlainLists(RuleBasedStateMachine):
    """One store over many openings. Durable queues are known by id, others die with the store."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="store-")
        self.models: dict[int, Model] = {}
        self.durable: dict[int, list[Stored]] = {}
        self.highest: dict[int, int] = {}
        self.bodies = 0
        self.promised: list[str] = []
        self.clock = SimulatedClock(1_700_000_000_000)
        self.opened = 0
        self.store = self._open()

    def teardown(self) -> None:
        self.store.abandon()
        shutil.rmtree(self.directory)

    def _open(self) -> Store:
        self.opened += 1
        worker = LateWorker(f"property {self.opened}")
        return Store.open(self.directory, options=OPTIONS, worker=worker, clock=self.clock)

    def _model(self, place: int) -> Model:
        return list(self.models.values())[place % len(self.models)]

    # Queues.

    @initialize()
    def two_queues(self) -> None:
        self.create_queue(durable=True)
        self.create_queue(durable=True)

    @precondition(lambda self: len(self.models) < 4)
    @rule(durable=st.sampled_from([True, True, False]))
    def create_queue(self, durable: bool) -> None:
        queue = self.store.create_queue({"a": 1}, durable=durable)
        assert queue.id not in self.models
        assert queue.id not in self.highest
        self.models[queue.id] = Model(queue)
        if durable:
            self.durable[queue.id] = []
            self.highest[queue.id] = 0

    @precondition(lambda self: len(self.models) > 2)
    @rule(place=indexes)
    def delete_queue(self, place: int) -> None:
        model = self._model(place)
        self.store.delete_queue(model.queue)
        del self.models[model.queue.id]
        self.durable.pop(model.queue.id, None)
        for run, _ in [*model.taken, *model.withdrawn]:
            self.store.ack(model.queue, run)

    # Messages.

    @precondition(lambda self: self.models)
    @rule(
        chosen=st.lists(indexes, min_size=1, max_size=3),
        sizes=st.lists(st.integers(0, 120), min_size=1, max_size=6),
        persistent=st.sampled_from([True, True, True, False]),
    )
    def publish(
        self, chosen: list[int], sizes: list[int], persistent: bool, expires_ms: int = 0
    ) -> None:
        models = {model.queue.id: model for model in map(self._model, chosen)}
        envelope = PERSISTENT if persistent else TRANSIENT
        bodies = [b"%d " % (self.bodies + place) + b"x" * size for place, size in enumerate(sizes)]
        self.bodies += len(bodies)
        first = {key: model.queue.next_sequence for key, model in models.items()}
        logged = self.store.publish(
            [model.queue for model in models.values()],
            [Message(envelope, body) for body in bodies],
            expires_ms=expires_ms,
        )
        durable = any(model.queue.durable for model in models.values())
        assert logged == (persistent and durable)
        for queue_id, model in models.items():
            assert first[queue_id] > self.highest.get(queue_id, 0)
            model.ready += [
                Stored(first[queue_id] + place, body, persistent, expires_ms=expires_ms)
                for place, body in enumerate(bodies)
            ]

    @precondition(lambda self: self.models)
    @rule(
        routes=st.lists(st.lists(indexes, min_size=1, max_size=3), min_size=1, max_size=12),
        is_durable=st.booleans(),
        persistent=st.booleans(),
    )
    def spread(self, routes: list[list[int]], is_durable: bool, persistent: bool) -> None:
        envelope = PERSISTENT if persistent else TRANSIENT
        messages: list[Message] = []
        chosen: dict[Queue, list[int]] = {}
        for route in routes:
            models = {model.queue: model for model in map(self._model, route)}
            alike = {queue: one for queue, one in models.items() if queue.durable == is_durable}
            body = b"%d" % (self.bodies + len(messages))
            for queue, model in alike.items():
                indexes = chosen.setdefault(queue, [])
                sequence = queue.next_sequence + len(indexes)
                assert sequence > self.highest.get(queue.id, 0)
                model.ready.append(Stored(sequence, body, persistent))
                indexes.append(len(messages))
            if alike:
                messages.append(Message(envelope, body))
        self.bodies += len(messages)
        if messages:
            placements = [Placement(queue, indexes=at) for queue, at in chosen.items()]
            assert self.store.enqueue(placements, messages) == (persistent and is_durable)

    @precondition(lambda self: any(model.ready for model in self.models.values()))
    @rule(place=indexes, limit=st.integers(1, 8), acked=st.sampled_from([False, False, True]))
    def take(self, place: int, limit: int, acked: bool) -> None:
        models = [model for model in self.models.values() if model.ready]
        model = models[place % len(models)]
        run = self.store.take(model.queue, limit, acked=acked)
        assert isinstance(run, Run)
        assert 1 <= run.count <= limit
        taken, model.ready = model.ready[: run.count], model.ready[run.count :]
        assert run.messages is not None
        assert [message.body for message in run.messages] == [stored.body for stored in taken]
        assert run.first_sequence == taken[0].sequence
        assert run.end == taken[-1].sequence + 1
        assert {run.delivery_count} == {stored.requeues for stored in taken}
        if not acked:
            delivered = [replace(one, deliveries=one.deliveries + 1) for one in taken]
            model.taken.append((run, delivered))

    @precondition(lambda self: any(model.taken for model in self.models.values()))
    @rule(place=indexes, part=indexes, requeued=st.booleans())
    def settle(self, place: int, part: int, requeued: bool) -> None:
        """Ack or requeue a run that was taken, or the first messages of it."""
        models = [model for model in self.models.values() if model.taken]
        model = models[place % len(models)]
        at = place % len(model.taken)
        run, held = model.taken.pop(at)
        count = 1 + part % run.count
        if count < run.count:
            rest = run
            run = rest.split(count)
            model.taken.insert(at, (rest, held[count:]))
        if requeued:
            self._requeue(model, run, held[:count])
        else:
            self.store.ack(model.queue, run)

    def _requeue(self, model: Model, run: Run, held: list[Stored]) -> None:
        self.store.requeue(model.queue, run)
        back = [replace(stored, requeues=stored.requeues + 1) for stored in held]
        model.ready = sorted([*model.ready, *back], key=lambda stored: stored.sequence)

    @precondition(lambda self: any(model.ready for model in self.models.values()))
    @rule(place=indexes, skipped=indexes, limit=st.integers(1, 8), dropped=st.booleans())
    def withdraw_unread(self, place: int, skipped: int, limit: int, dropped: bool) -> None:
        """Take some off the head, or from the middle, without their bodies, and perhaps back."""
        models = [model for model in self.models.values() if model.ready]
        model = models[place % len(models)]
        at = skipped % len(model.ready)
        if at:
            first = model.ready[at].sequence
            runs = self.store.withdrawals.withdraw_range(model.queue, first, limit)
        else:
            run = self.store.withdrawals.withdraw_first(model.queue, limit)
            assert isinstance(run, Run)
            runs = [run]
        for run in runs:
            if run.count > 1:  # as of a limit that allows only some of them to move now
                head = run.split(1 + place % (run.count - 1))
                self._drop_or_put_back(model, head, dropped=dropped)
            self._drop_or_put_back(model, run, dropped=dropped)

    def _drop_or_put_back(self, model: Model, run: Run, *, dropped: bool) -> None:
        sequences = range(run.first_sequence, run.end)
        sizes = [len(one.body) for one in model.ready if one.sequence in sequences]
        if len(sizes) < run.count:
            model.quarantined = [one for one in model.quarantined if one.sequence not in sequences]
            self.store.ack(model.queue, run)
        elif dropped:
            assert run.body_bytes == sum(sizes)
            model.ready = [one for one in model.ready if one.sequence not in sequences]
            self.store.ack(model.queue, run)
        else:
            self.store.withdrawals.put_back(model.queue, run)

    @precondition(lambda self: self.models)
    @rule(place=indexes)
    def purge(self, place: int) -> None:
        model = self._model(place)
        assert self.store.purge(model.queue) == len(model.ready)
        model.ready = []

    # Durability.

    def _note_durable(self) -> None:
        """All that was done so far is durable from here on."""
        for queue_id, model in self.models.items():
            if model.queue.durable:
                self.durable[queue_id] = model.logged()
                last = [stored.sequence for stored in self.durable[queue_id]]
                self.highest[queue_id] = max([self.highest[queue_id], *last])

    @precondition(lambda self: self.models)
    @rule(place=indexes)
    def publish_and_sync(self, place: int) -> None:
        self.publish([place], [place % 100], persistent=True)
        self.sync()

    @rule()
    def sync(self) -> None:
        told: list[str] = []
        self.store.log.when_durable(lambda: told.append("durable"))
        self.store.sync()
        assert told == ["durable"]
        self._note_durable()

    # Housekeeping, which is not to be noticed outside of the store.

    @rule(times=st.integers(0, 3))
    def checkpoint(self, times: int) -> None:
        """Make a checkpoint, drop entries from memory that index files have, and merge what is
        due.
        """
        self.store.upkeep.checkpoint()
        for _ in range(2 * times):
            self.store.upkeep.housekeep()

    @rule()
    def work_is_due(self) -> None:
        """Begin housekeeping, or go on with it: its result is taken over some rules later."""
        self.clock.advance(OPTIONS.checkpoint_ms)
        self.store.upkeep.housekeep()

    @precondition(lambda self: self.models)
    @rule(place=indexes, acked=st.integers(1, 5))
    def settle_meanwhile(self, place: int, acked: int) -> None:
        """Take the messages that a checkpoint is writing, and give most of them back."""
        model = self._model(place)
        at = list(self.models.values()).index(model)
        for _ in range(3):
            self.publish([at], [20, 20, 20, 20], persistent=True)
            self.sync()
        self.work_is_due()
        while model.ready:
            self.take([one for one in self.models.values() if one.ready].index(model), 3, False)
        while model.taken:
            run, held = model.taken.pop()
            if len(model.taken) % acked:
                self._requeue(model, run, held)
            else:
                self.store.ack(model.queue, run)
        for _ in range(10):
            self.store.upkeep.housekeep()

    @precondition(lambda self: self.models)
    @rule(place=indexes)
    def keep_few(self, place: int) -> None:
        """Fill some segments and index files, and ack most of what is in them: both are merged."""
        self.fill_and_keep_few(place)
        self.checkpoint(times=3)

    def fill_and_keep_few(self, place: int) -> None:
        """Leave merges to the next checkpoint."""
        model = self._model(place)
        at = list(self.models.values()).index(model)
        for _ in range(8):
            self.publish([at], [90, 90, 90], persistent=True)
            self.sync()
        self.store.upkeep.checkpoint()
        left = []
        while model.ready:
            run = self.store.take(model.queue, 1)
            assert isinstance(run, Run)
            stored = model.ready.pop(0)
            if stored.sequence % 5:
                self.store.ack(model.queue, run)
            else:
                again = stored.deliveries + 1
                left.append((run, replace(stored, deliveries=again, requeues=stored.requeues + 1)))
        for run, stored in left:
            self.store.requeue(model.queue, run)
            model.ready.append(stored)
        self.sync()

    @precondition(lambda self: self.models)
    @rule(place=indexes, lazy=st.booleans())
    def set_lazy(self, place: int, lazy: bool) -> None:
        self.store.memory.set_lazy(self._model(place).queue, lazy=lazy)

    @precondition(lambda self: self.models)
    @rule(place=indexes)
    def read_index(self, place: int) -> None:
        self.store.stored.paging.read_index(self._model(place).queue)

    @precondition(lambda self: self.models)
    @rule(place=indexes)
    def look_at_all(self, place: int) -> None:
        model = self._model(place)
        bodies = [one.body for part in self.store.stored.browse(model.queue) for one in part]
        assert bodies == [stored.body for stored in model.ready]

    # Damage, which costs the message that it is in and no other.

    def _on_disk(self) -> list[Model]:
        """Queues whose next message is in its segment only, and in no other queue: that one would
        be told that it is damaged for as long as the store is open."""
        found = []
        for model in self.models.values():
            self.store.stored.paging.read_index(model.queue)
            if model.ready and model.queue.ready.first.messages is None:
                found.append(model)
        ids = [model.queue.ready.first.first_id for model in found]
        return [
            model
            for model, message_id in zip(found, ids, strict=True)
            if message_id < FIRST_TRANSIENT and self._count_of(message_id) == 1
        ]

    def _count_of(self, message_id: int) -> int:
        """Return how many queues have a message."""
        runs = [
            run
            for model in self.models.values()
            for run in [
                *model.queue.ready,
                *(run for run, _ in [*model.taken, *model.withdrawn]),
            ]
        ]
        return sum(run.first_id <= message_id < run.first_id + run.count for run in runs)

    @rule(place=indexes, bit=st.integers(0, 7))
    def read_while_damaged(self, place: int, bit: int) -> None:
        """A message cannot be read: it is named, put in quarantine, and there after a restart."""
        models = self._on_disk()
        if not models:
            return
        model = models[place % len(models)]
        message_id = model.queue.ready.first.first_id
        path, offset = self._record_of(message_id)
        _flip(path, offset, bit)
        found = self.store.take(model.queue, 1)
        _flip(path, offset, bit)
        assert isinstance(found, MessageDamagedError)
        assert found.message_id == message_id
        model.quarantined.append(model.ready.pop(0))

    def _record_of(self, message_id: int) -> tuple[str, int]:
        """The file that a message is in, and the last byte of its record."""
        found = marker.read(OsFiles(), self.directory)
        assert found is not None
        seed = found.seed
        for segment in self.store.log.segments:
            if not os.path.exists(segment.path):
                continue  # Nothing in it is live, and what says so is not taken over yet.
            with open(segment.path, "rb") as file:
                # What was torn off behind that may have had the same id.
                content = file.read(segment.size)
            for record in scan(content, segment.number, seed):
                if isinstance(record, Gap) or record.kind != Kind.MESSAGE:
                    continue
                if record.number == message_id:
                    return segment.path, record.end - 1
        raise AssertionError(f"message {message_id} is in no segment")

    # Going down and coming up: one rule, as the others are what makes it hard.

    @rule(
        how=st.sampled_from(["close", "abandon", "die before settling", "die while writing"]),
        place=indexes,
    )
    def reopen(self, how: str, place: int) -> None:
        torn_bytes = 0
        if how == "close":
            self._note_durable()
            self.store.close()
        elif how == "abandon":
            self.store.abandon()
        elif how == "die before settling":
            self._die_before_settling()
        else:
            # Something to lose, whatever the rules before this one did.
            if self.models:
                self.publish([place], [place % 50, place % 70], persistent=True)
            torn_bytes = self._die_while_writing(place)
        self._reopen()
        report = self.store.recovery_report
        assert (report.damage, report.lost, report.torn_bytes) == ([], [], torn_bytes)
        assert report.is_clean == (torn_bytes == 0)

    def _die_before_settling(self) -> None:
        """Die when the batch is on disk, before its publishers are told."""
        batch = self.store.log.seal(0)
        if batch is not None:
            self.store.log.write(batch)
            self._note_durable()
        self.store.abandon()

    def _die_while_writing(self, place: int) -> int:
        """Some bytes of the batch are on disk. Returns how many."""
        batch = self.store.log.seal(0)
        if batch is None or batch.segment is None:
            self.store.abandon()
            return 0
        self.store.log.write(batch)
        self.store.abandon()
        start = 0 if batch.starts_segment else batch.first_offset
        path = segment_path(self.directory, batch.segment.number)
        # Not the zeros behind it that the file was filled with ahead of use.
        written = batch.segment.size - start
        # Small numbers are drawn most often, and most is to go wrong when most of it is there.
        cut = written - 1 - place % written
        os.truncate(path, start + cut)
        return cut

    def _reopen(self) -> None:
        self.store = self._open()
        self.models = {}
        assert set(self.store.queues) == set(self.durable)
        for queue_id, stored in self.durable.items():
            # The holders of runs are gone; delivered messages are ready, with the number of their
            # deliveries.
            ready = [replace(one, requeues=one.deliveries) for one in stored]
            self.models[queue_id] = Model(self.store.queues[queue_id], ready)
        self.durable = {key: list(model.ready) for key, model in self.models.items()}
        report = self.store.recovery_report
        for queue_id, model in self.models.items():
            assert report.kept[queue_id] == len(model.ready)
            assert report.redelivered[queue_id] == sum(bool(one.requeues) for one in model.ready)

    @invariant()
    def the_store_has_what_the_lists_have(self) -> None:
        for model in self.models.values():
            found = [
                (run.first_sequence + place, run.delivery_count)
                for run in model.queue.ready
                for place in range(run.count)
            ]
            kept = [(stored.sequence, stored.requeues) for stored in model.ready]
            if model.queue.paged:
                assert set(found) <= set(kept)
                assert found == sorted(found)
            else:
                assert found == kept
            assert model.queue.ready_count == len(model.ready)

    @invariant()
    def memory_is_what_it_says(self) -> None:
        """Messages in memory, and those written aside, are the ones that queues still need, and are
        counted.
        """
        total = aside = 0
        for model in self.models.values():
            held = 0
            for run in model.queue.ready:
                messages = run.messages or []
                in_memory = body_bytes(messages) + overhead_bytes(messages) if messages else 0
                assert run.memory_bytes == in_memory
                held += run.memory_bytes
            assert model.queue.memory_bytes == held
            total += held
            taken = [run for run, _ in [*model.taken, *model.withdrawn] if run.messages is None]
            runs = [*model.queue.ready, *taken]
            aside += sum(run.count for run in runs if run.first_id >= FIRST_TRANSIENT)
        assert self.store.memory.memory_bytes == total
        assert sum(self.store._transient._unread.values()) == aside

    @invariant()
    def sums_are_what_a_recount_finds(self) -> None:
        for model in self.models.values():
            queue, ready = model.queue, model.ready
            assert queue.sized_bytes == sum(len(one.body) for one in ready)
            logged = [one for one in ready if queue.durable and one.persistent]
            assert queue.unlogged_count == len(ready) - len(logged)
            logged_bytes = queue.ready_bytes - queue.unlogged_bytes
            assert logged_bytes == sum(len(one.body) for one in logged)
            on_disk = [run for run in queue.ready if run.messages is None]
            assert queue.stored_count == sum(run.count for run in on_disk)
            indexes = {one for run in on_disk for one in range(run.first_sequence, run.end)}
            sizes = [len(one.body) for one in ready if one.sequence in indexes]
            assert queue.stored_bytes == sum(sizes)
            left = [run for run, _ in model.taken if run.messages is None]
            assert queue.unloaded.count == sum(run.count for run in left)
            assert queue.unloaded.body_bytes == sum(run.body_bytes for run in left)


def _flip(path: str, offset: int, bit: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        flipped = file.read(1)[0] ^ 1 << bit
        file.seek(offset)
        file.write(bytes([flipped]))


TestStoreAgainstPlainLists = StoreAgainstPlainLists.TestCase
TestStoreAgainstPlainLists.settings = settings(max_examples=80, stateful_step_count=50)
