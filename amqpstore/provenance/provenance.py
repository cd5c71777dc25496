"""The provenance of a message: what the log and the segments still say of it.

A message is enqueued in the batch that it was published in, and in no other; later batches have its
deliveries, and how it left each queue. Where it moved on, to a dead-letter queue for instance, the
batch in which it left has another message with its body, and that one is followed as well. So is
the one that it was before: the log is searched backwards for what left a queue in the batch that
brought it.

The log is read forwards from the segment that the message, or the first that it was, was published
in. Nothing is locked: a broker may write the log meanwhile, and remove segments. What it has
removed cannot be told any more: once a message is acked, that is soon the case. Which clients had
to do with the message is not in the log but beside it, and stays longer: see `client_trails`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from amqpstore.format.batches import StoredBatch, batches, written_end
from amqpstore.format.message import Message
from amqpstore.format.records import (
    Kind,
    MessageDecoder,
    Operation,
    OperationKind,
    Record,
    decode_message,
)
from amqpstore.format.windows import read_around, scan_file
from amqpstore.provenance.client_trails import Note, read_notes
from amqpstore.system.filenames import SEGMENTS, is_compacted, segment_numbers, segment_path
from amqpstore.system.files import File, Files

MAX_READ_BYTES = 1 << 30
"""How much of the log and of compacted segments is read for one answer."""

MAX_FOLLOWED = 32
"""How many messages that it became are followed, and how many that it was."""

MAX_SEARCHED_BYTES = 256 << 20
"""How much of the log before a message is searched for what it was before."""

MAX_STEPS = 1000
"""How many steps of a message are told."""

_FIRST_WINDOW_BYTES = 64 << 10

GoesOn = Callable[[], bool]
"""Asked between batches whether the log is to be read further. It may wait before it answers."""

IsCopy = Callable[[Message, Message, int], bool]
"""Tells whether the second message, with the same body, is what became of the first, which left the
queue of that id in the same batch.
"""


class QueuePlace(NamedTuple):
    """A place in a queue of the store, which only one message ever has."""

    queue_id: int
    sequence: int


class TrailStep(NamedTuple):
    """What happened to a message in one queue, in the batch `lsn`, sealed at `time_ms`.

    `detail` is that of the operation: when it expires, or how often it was delivered by then.
    """

    lsn: int
    time_ms: int
    kind: int
    place: QueuePlace
    detail: int


@dataclass
class Trail:
    """What is known of one message. `message` is None if no sound record of it was found.

    `lsn` and `time_ms` are those of the batch that it was published in, 0 if that is gone.
    `came_from` is the id of the message that became this one, 0 if it was published, or if the log
    does not have that one any more. `places` are
    those that it has not left. `segment` has its record, 0 if there is none.
    """

    id: int
    came_from: int = 0
    message: Message | None = None
    segment: int = 0
    lsn: int = 0
    time_ms: int = 0
    steps: list[TrailStep] = field(default_factory=list)
    steps_left_out: int = 0
    places: list[QueuePlace] = field(default_factory=list)
    became: list[int] = field(default_factory=list)


@dataclass
class Provenance:
    """The trails of a message and of what it became, and what they were read from.

    `first_lsn` is that of the first batch that the log still has, 0 if there is none. `read_bytes`
    were read; the answer `is_cut` if there was more. `damaged` batches and records could not be
    used; `missing` segments were removed while they were read. `clients` are those that had to do
    with it in any of its places, each as a note of one message, oldest first.
    """

    trails: list[Trail] = field(default_factory=list)
    clients: list[Note] = field(default_factory=list)
    first_lsn: int = 0
    last_lsn: int = 0
    read_bytes: int = 0
    is_cut: bool = False
    damaged: int = 0
    missing: int = 0


class ProvenanceReader:
    """Reads the provenance of messages of the store in `directory`; once for each answer.

    It changes nothing, and may be used in another thread than the one that owns the store.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        seed: int,
        decoder: MessageDecoder,
        is_copy: IsCopy,
        max_read_bytes: int = MAX_READ_BYTES,
        goes_on: GoesOn = lambda: True,
    ) -> None:
        self._files = files
        self._directory = directory
        self._seed = seed
        self._decoder = decoder
        self._is_copy = is_copy
        self._goes_on = goes_on
        self._left_bytes = max_read_bytes
        self._found = Provenance()
        self._trails: dict[int, Trail] = {}
        self._held: dict[int, dict[int, Trail]] = {}
        """The trails by the places that the messages have: queue and sequence."""
        self._wanted: QueuePlace | None = None
        self._asked: Trail | None = None
        """The one that the answer is about."""
        self._acked: list[Operation] = []
        """What left queues in the batch that it was published in."""
        self._is_gone = False
        """Whether the batch that the message was published in is no longer in the log."""
        self._newest = 0
        """The segment in which the log goes on."""

    def of_message(self, message_id: int, places: Iterable[QueuePlace] = ()) -> Provenance:
        """Return what is known of the message of an id. Args: places, that it is known to have."""
        known = [*places]
        self._asked = Trail(message_id)
        self._follow(self._asked, known)
        self._read(message_id)
        return self._with_origins(known)

    def of_place(self, place: QueuePlace) -> Provenance:
        """Return what is known of the message in a place; without a trail, if the log does not say
        which one that is.
        """
        self._wanted = place
        self._read(0)
        return self._with_origins([place])

    # What it was before.

    def _with_origins(self, known: list[QueuePlace]) -> Provenance:
        """Return what was found, with what the message was before, and the clients."""
        origins = self._origins()
        if self._asked is None or not origins:
            self._find_clients(known)
            return self._found
        again = ProvenanceReader(
            *(self._files, self._directory, self._seed, self._decoder, self._is_copy),
            *(self._left_bytes, self._goes_on),
        )
        # Read again, from the first of them on: their steps are between batches known by now.
        became: list[int] = []
        for message_id, came_from in zip([self._asked.id, *origins], [*origins, 0], strict=True):
            trail = Trail(message_id, came_from=came_from, became=became)
            again._follow(trail, [] if became else known)
            became = [message_id]
        found = again._read(origins[-1])
        found.read_bytes += self._found.read_bytes
        again._find_clients(known)
        return found

    def _origins(self) -> list[int]:
        """Return the ids of the messages that the one asked for was before, the last one first."""
        origins: list[int] = []
        trail, acked = self._asked, self._acked
        left_bytes = min(self._left_bytes, MAX_SEARCHED_BYTES)
        while trail is not None and trail.message is not None and acked:
            if len(origins) == MAX_FOLLOWED:
                break
            origin = None
            for number in reversed(self._log_until(trail.segment)):
                left_bytes -= self._size_of(number)
                if left_bytes < 0:
                    return origins
                if (origin := self._origin_in(number, trail, trail.message, acked)) is not None:
                    break
            if origin is None:
                break
            trail, acked = origin
            origins.append(trail.id)
        return origins

    def _log_until(self, segment: int) -> list[int]:
        names = self._files.list_directory(f"{self._directory}/{SEGMENTS}")
        numbers = sorted(segment_numbers(names))
        return [one for one in numbers if not is_compacted(one) and one <= segment]

    def _size_of(self, number: int) -> int:
        try:
            return self._files.size_of(segment_path(self._directory, number))
        except FileNotFoundError:
            return 0

    def _origin_in(
        self, number: int, copy: Trail, copied: Message, acked: list[Operation]
    ) -> tuple[Trail, list[Operation]] | None:
        """Find the message that became a copy in a segment of the log: it left its queue by one of
        the `acked` operations. Returns it, and what left queues in its own batch.
        """
        try:
            file = self._files.open(segment_path(self._directory, number))
        except FileNotFoundError:
            return None
        try:
            size = written_end(file)

            def payload_of(record: Record) -> bytes:
                return read_around(file, record.payload_offset, record.end - record.payload_offset)

            for batch in batches(scan_file(file, size, number, self._seed), payload_of, 0, size):
                if not self._goes_on():
                    self._found.is_cut = True
                    return None
                if not batch.is_whole():
                    continue
                if batch.lsn > copy.lsn:
                    return None
                for place, record in _left_of(batch, acked):
                    if record.number == copy.id:
                        continue
                    if not record.flags and record.end - record.payload_offset < len(copied.body):
                        continue
                    original = self._message(file, record)
                    if original is None or original.body != copied.body:
                        continue
                    if self._is_copy(original, copied, place.queue_id):
                        trail = Trail(record.number, message=original, segment=number)
                        trail.lsn = batch.lsn
                        return trail, _acks(batch)
        finally:
            file.close()
        return None

    def _find_clients(self, known: list[QueuePlace]) -> None:
        """Find the clients that had to do with the message, or with what it became."""
        found = self._found
        wanted: dict[int, set[int]] = {}
        steps = [step.place for trail in found.trails for step in trail.steps]
        for queue_id, sequence in [*known, *steps]:
            wanted.setdefault(queue_id, set()).add(sequence)
        for notes in read_notes(self._files, self._directory, self._seed):
            if not self._goes_on():
                found.is_cut = True
                return
            for note in notes:
                first, end = note.first_sequence, note.first_sequence + note.message_count
                for sequence in wanted.get(note.queue_id, ()):
                    if first <= sequence < end and len(found.clients) < MAX_STEPS:
                        of_one = note._replace(first_sequence=sequence, message_count=1)
                        found.clients.append(of_one)

    # Which segments.

    def _read(self, message_id: int) -> Provenance:
        names = self._files.list_directory(f"{self._directory}/{SEGMENTS}")
        numbers = sorted(segment_numbers(names))
        log = [number for number in numbers if not is_compacted(number)]
        self._newest = log[-1] if log else 0
        for number in self._segments_to_read(log, message_id):
            if self._is_done or not self._read_log(number):
                break
        compacted = [number for number in numbers if is_compacted(number)]
        for trail in list(self._trails.values()):
            if trail.message is None:
                self._find_record(trail, compacted)
        found = self._found
        found.first_lsn = self._first_lsn(log)
        found.trails = list(self._trails.values())
        return found

    def _segments_to_read(self, log: list[int], message_id: int) -> list[int]:
        """Return the segments of the log from that on in which a message was published; if that is
        gone, all, or none if no place is known in which later batches could have it.
        """
        if not message_id:
            return log
        known = [(first, at) for at, number in enumerate(log) if (first := self._first(number))]
        place = bisect_right(known, (message_id, len(log))) - 1
        if place >= 0:
            return log[known[place][1] :]
        self._is_gone = True
        return log if self._held else []

    def _first(self, number: int) -> int:
        """Return the id of the first message in a segment; 0 if it has none."""
        for found in self._records(number, _FIRST_WINDOW_BYTES):
            if isinstance(found, Record) and found.kind == Kind.MESSAGE:
                return found.number
        return 0

    def _first_lsn(self, log: list[int]) -> int:
        for number in log:
            for found in self._records(number, _FIRST_WINDOW_BYTES):
                if isinstance(found, Record) and found.kind == Kind.TRANSACTION:
                    return found.number
        return 0

    @property
    def _is_done(self) -> bool:
        """Whether nothing more can be found in the log: the messages have left all queues."""
        return self._wanted is None and not any(
            trail.places or not (trail.lsn or self._is_gone) for trail in self._trails.values()
        )

    # Reading.

    def _records(self, number: int, window_bytes: int) -> Iterator[object]:
        try:
            file = self._files.open(segment_path(self._directory, number))
        except FileNotFoundError:
            return
        try:
            size = written_end(file)
            yield from scan_file(file, size, number, self._seed, window_bytes=window_bytes)
        finally:
            file.close()

    def _may_read(self, size: int) -> bool:
        self._left_bytes -= size
        self._found.is_cut = self._found.is_cut or self._left_bytes < 0
        if self._left_bytes >= 0:
            self._found.read_bytes += size
        return self._left_bytes >= 0

    def _read_log(self, number: int) -> bool:
        """Read a segment of the log. Returns False if no more is to be read."""
        try:
            file = self._files.open(segment_path(self._directory, number))
        except FileNotFoundError:
            self._found.missing += 1
            return True
        try:
            size = written_end(file)
            if not self._may_read(size):
                return False
            scanned = scan_file(file, size, number, self._seed)

            def payload_of(record: Record) -> bytes:
                return read_around(file, record.payload_offset, record.end - record.payload_offset)

            unusable = 0
            for batch in batches(scanned, payload_of, 0, size):
                if not self._goes_on():
                    self._found.is_cut = True
                    return False
                if batch.is_whole():
                    self._found.damaged += unusable
                    unusable = 0
                    self._read_batch(file, number, batch)
                else:
                    unusable += not batch.is_blank
            # Behind the last whole batch of the log is what was there before the file was used
            # again, a torn tail, or what is being written now: that is not damage.
            if number != self._newest:
                self._found.damaged += unusable
        finally:
            file.close()
        return True

    def _read_batch(self, file: File, number: int, batch: StoredBatch) -> None:
        self._found.last_lsn = batch.lsn
        enqueues = [one for one in batch.operations if one.kind == OperationKind.ENQUEUE]
        self._find_wanted(enqueues)
        for trail in list(self._trails.values()):
            if not trail.lsn and batch.messages and _has(batch, trail.id):
                self._published(trail, file, number, batch, enqueues)
        left: list[tuple[Trail, int]] = []
        for operation in batch.operations:
            if operation.kind != OperationKind.ENQUEUE and operation.queue_id in self._held:
                left += self._happened(operation, batch)
        for trail, queue_id in left:
            self._find_copies(trail, queue_id, file, number, batch, enqueues)

    def _find_wanted(self, enqueues: Iterable[Operation]) -> None:
        if self._wanted is None:
            return
        for operation in enqueues:
            place = self._wanted.sequence - operation.first_sequence
            if operation.queue_id == self._wanted.queue_id and 0 <= place < operation.message_count:
                self._wanted = None
                self._asked = Trail(operation.first_id + place)
                self._follow(self._asked, ())
                return

    def _follow(self, trail: Trail, places: Iterable[QueuePlace]) -> None:
        self._trails[trail.id] = trail
        for place in places:
            self._hold(trail, place)

    def _hold(self, trail: Trail, place: QueuePlace) -> None:
        of_queue = self._held.setdefault(place.queue_id, {})
        if of_queue.get(place.sequence) is not trail:
            of_queue[place.sequence] = trail
            trail.places.append(place)

    def _published(
        self,
        trail: Trail,
        file: File,
        number: int,
        batch: StoredBatch,
        enqueues: Iterable[Operation],
    ) -> None:
        trail.lsn, trail.time_ms = batch.lsn, batch.time_ms
        if trail is self._asked:
            self._acked = _acks(batch)
        record = next(one for one in batch.messages if one.number == trail.id)
        self._read_record(trail, file, number, record)
        for operation in enqueues:
            place = trail.id - operation.first_id
            if 0 <= place < operation.message_count:
                at = QueuePlace(operation.queue_id, operation.first_sequence + place)
                self._hold(trail, at)
                self._add_step(
                    trail, TrailStep(batch.lsn, batch.time_ms, operation.kind, at, operation.detail)
                )

    def _read_record(self, trail: Trail, file: File, number: int, record: Record) -> None:
        trail.segment = number
        trail.message = self._message(file, record)

    def _message(self, file: File, record: Record) -> Message | None:
        payload = read_around(file, record.payload_offset, record.end - record.payload_offset)
        try:
            return decode_message(payload, record.flags, self._decoder)
        except ValueError:
            self._found.damaged += 1
            return None

    def _happened(self, operation: Operation, batch: StoredBatch) -> list[tuple[Trail, int]]:
        """Note an operation on messages that are followed. Returns those that left the queue."""
        of_queue = self._held[operation.queue_id]
        left = []
        end = operation.first_sequence + operation.message_count
        for sequence, trail in list(of_queue.items()):
            if not operation.first_sequence <= sequence < end:
                continue
            place = QueuePlace(operation.queue_id, sequence)
            step = TrailStep(batch.lsn, batch.time_ms, operation.kind, place, operation.detail)
            self._add_step(trail, step)
            if operation.kind != OperationKind.DELIVERED:
                del of_queue[sequence]
                trail.places.remove(place)
                left.append((trail, operation.queue_id))
        return left

    @staticmethod
    def _add_step(trail: Trail, step: TrailStep) -> None:
        if len(trail.steps) < MAX_STEPS:
            trail.steps.append(step)
        else:
            trail.steps_left_out += 1

    def _find_copies(
        self,
        trail: Trail,
        queue_id: int,
        file: File,
        number: int,
        batch: StoredBatch,
        enqueues: list[Operation],
    ) -> None:
        """Follow what a message that left a queue became in the same batch."""
        original = trail.message
        if original is None:
            return
        for record in batch.messages:
            if record.number in self._trails or len(self._trails) > MAX_FOLLOWED:
                continue
            if not record.flags and record.end - record.payload_offset < len(original.body):
                continue
            copy = self._message(file, record)
            if copy is None or copy.body != original.body:
                continue
            if self._is_copy(original, copy, queue_id):
                trail.became.append(record.number)
                following = Trail(record.number, came_from=trail.id)
                self._trails[record.number] = following
                self._published(following, file, number, batch, enqueues)

    def _find_record(self, trail: Trail, compacted: list[int]) -> None:
        """Find the record of a message whose batch is gone, in the compacted segments."""
        known = sorted((first, number) for number in compacted if (first := self._first(number)))
        place = bisect_right(known, (trail.id, 1 << 32)) - 1
        if place < 0:
            return
        number = known[place][1]
        try:
            file = self._files.open(segment_path(self._directory, number))
        except FileNotFoundError:
            self._found.missing += 1
            return
        try:
            size = written_end(file)
            if not self._may_read(size):
                return
            for found in scan_file(file, size, number, self._seed):
                if not self._goes_on():
                    self._found.is_cut = True
                    return
                if not isinstance(found, Record) or found.kind != Kind.MESSAGE:
                    continue
                if found.number == trail.id:
                    self._read_record(trail, file, number, found)
                if found.number >= trail.id:
                    return
        finally:
            file.close()


def _acks(batch: StoredBatch) -> list[Operation]:
    """Return the operations by which messages left queues, in a batch that has messages, too."""
    return [one for one in batch.operations if one.kind == OperationKind.ACK]


def _left_of(batch: StoredBatch, acked: Iterable[Operation]) -> Iterator[tuple[QueuePlace, Record]]:
    """Yield the messages of a batch that later left the places it gave them, by `acked`."""
    records: dict[int, Record] = {}
    for enqueue in batch.operations:
        if enqueue.kind != OperationKind.ENQUEUE:
            continue
        for ack in acked:
            if ack.queue_id != enqueue.queue_id:
                continue
            first = max(ack.first_sequence, enqueue.first_sequence)
            end = min(
                ack.first_sequence + ack.message_count,
                enqueue.first_sequence + enqueue.message_count,
            )
            if first < end and not records:
                records = {one.number: one for one in batch.messages}
            for sequence in range(first, end):
                record = records.get(enqueue.first_id + sequence - enqueue.first_sequence)
                if record is not None:
                    yield QueuePlace(enqueue.queue_id, sequence), record


def _has(batch: StoredBatch, message_id: int) -> bool:
    return batch.messages[0].number <= message_id <= batch.messages[-1].number and any(
        one.number == message_id for one in batch.messages
    )
