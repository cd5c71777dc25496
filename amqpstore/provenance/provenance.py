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
from collections.abc import Iterable

from amqpstore.format.batches import StoredBatch
from amqpstore.format.records import Kind, Operation, OperationKind, Record
from amqpstore.format.windows import scan_file
from amqpstore.provenance.client_trails import read_notes
from amqpstore.provenance.log_reading import LogReading, OpenSegment
from amqpstore.provenance.origins import MAX_FOLLOWED, IsCopy, acks_in, may_have, origins_of
from amqpstore.provenance.trails import Provenance, QueuePosition, Trail, TrailStep
from amqpstore.system.filenames import is_compacted

MAX_STEPS = 1000
"""How many steps of a message are told."""


class ProvenanceReader:
    """Reads the provenance of messages of a store; once for each answer.

    It changes nothing, and may be used in another thread than the one that owns the store.
    """

    def __init__(self, reading: LogReading, is_copy: IsCopy) -> None:
        self._reading = reading
        self._is_copy = is_copy
        self._found = self._reading.answer
        self._trails: dict[int, Trail] = {}
        self._held: dict[int, dict[int, Trail]] = {}
        """The trails by the places that the messages have: queue and sequence."""
        self._wanted: QueuePosition | None = None
        self._asked: Trail | None = None
        """The one that the answer is about."""
        self._acked: list[Operation] = []
        """Operations that took messages off queues in the batch that it was published in."""
        self._is_gone = False
        """Whether the batch that the message was published in is no longer in the log."""
        self._newest = 0
        """The segment in which the log goes on."""

    def of_message(self, message_id: int, positions: Iterable[QueuePosition] = ()) -> Provenance:
        """Return the provenance of the message of an id. Args: positions, known ones of it."""
        known = [*positions]
        self._asked = Trail(message_id)
        self._follow(self._asked, known)
        self._read(message_id)
        return self._with_origins(known)

    def of_position(self, position: QueuePosition) -> Provenance:
        """Return what is known of the message in a place; without a trail, if the log does not say
        which one that is.
        """
        self._wanted = position
        self._read(0)
        return self._with_origins([position])

    # What it was before.

    def _with_origins(self, known: list[QueuePosition]) -> Provenance:
        """Return what was found, with what the message was before, and the clients."""
        origins = origins_of(self._reading, self._asked, self._acked, self._is_copy)
        if self._asked is None or not origins:
            self._find_clients(known)
            return self._found
        again = ProvenanceReader(self._reading.again(), self._is_copy)
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

    def _find_clients(self, known: list[QueuePosition]) -> None:
        """Find the clients that had to do with the message, or with what it became."""
        found = self._found
        wanted: dict[int, set[int]] = {}
        steps = [step.position for trail in found.trails for step in trail.steps]
        for queue_id, sequence in [*known, *steps]:
            wanted.setdefault(queue_id, set()).add(sequence)
        reading = self._reading
        for notes in read_notes(reading.files, reading.directory, reading.seed):
            if not reading.goes_on():
                return
            for note in notes:
                first, end = note.first_sequence, note.first_sequence + note.message_count
                for sequence in wanted.get(note.queue_id, ()):
                    if first <= sequence < end and len(found.clients) < MAX_STEPS:
                        of_one = note._replace(first_sequence=sequence, message_count=1)
                        found.clients.append(of_one)

    # Which segments.

    def _read(self, message_id: int) -> Provenance:
        numbers = self._reading.numbers()
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
        known = [(first, at) for at, number in enumerate(log) if (first := self._first_id(number))]
        index = bisect_right(known, (message_id, len(log))) - 1
        if index >= 0:
            return log[known[index][1] :]
        self._is_gone = True
        return log if self._held else []

    def _first_id(self, number: int) -> int:
        """Return the id of the first message in a segment; 0 if it has none."""
        return self._reading.first_number(number, Kind.MESSAGE)

    def _first_lsn(self, log: list[int]) -> int:
        """Return the first LSN in the log; 0 if it has no batch."""
        lsns = (self._reading.first_number(number, Kind.TRANSACTION) for number in log)
        return next(filter(None, lsns), 0)

    @property
    def _is_done(self) -> bool:
        """Whether nothing more can be found in the log: the messages have left all queues."""
        return self._wanted is None and not any(
            trail.positions or not (trail.lsn or self._is_gone) for trail in self._trails.values()
        )

    # Reading.

    def _read_log(self, number: int) -> bool:
        """Read a segment of the log. Returns False if no more is to be read."""
        with self._reading.opened(number) as segment:
            if segment is None:
                self._found.missing += 1
                return True
            if not self._reading.may_read(segment.size):
                return False
            unusable = 0
            for batch in self._reading.batches_of(segment):
                if not self._reading.goes_on():
                    return False
                if batch.is_whole():
                    self._found.damaged += unusable
                    unusable = 0
                    self._read_batch(segment, batch)
                else:
                    unusable += not batch.is_blank
            # Behind the last whole batch of the log is what was there before the file was used
            # again, a torn tail, or what is being written now: that is not damage.
            if number != self._newest:
                self._found.damaged += unusable
        return True

    def _read_batch(self, segment: OpenSegment, batch: StoredBatch) -> None:
        self._found.last_lsn = batch.lsn
        enqueues = [one for one in batch.operations if one.kind == OperationKind.ENQUEUE]
        self._find_wanted(enqueues)
        for trail in list(self._trails.values()):
            if not trail.lsn and batch.messages and _has(batch, trail.id):
                self._published(trail, segment, batch, enqueues)
        left: list[tuple[Trail, int]] = []
        for operation in batch.operations:
            if operation.kind != OperationKind.ENQUEUE and operation.queue_id in self._held:
                left += self._happened(operation, batch)
        for trail, queue_id in left:
            self._find_copies(trail, queue_id, segment, batch, enqueues)

    def _find_wanted(self, enqueues: Iterable[Operation]) -> None:
        if self._wanted is None:
            return
        for operation in enqueues:
            index = self._wanted.sequence - operation.first_sequence
            if operation.queue_id == self._wanted.queue_id and 0 <= index < operation.message_count:
                self._wanted = None
                self._asked = Trail(operation.first_id + index)
                self._follow(self._asked, ())
                return

    def _follow(self, trail: Trail, positions: Iterable[QueuePosition]) -> None:
        self._trails[trail.id] = trail
        for position in positions:
            self._hold(trail, position)

    def _hold(self, trail: Trail, position: QueuePosition) -> None:
        of_queue = self._held.setdefault(position.queue_id, {})
        if of_queue.get(position.sequence) is not trail:
            of_queue[position.sequence] = trail
            trail.positions.append(position)

    def _published(
        self,
        trail: Trail,
        segment: OpenSegment,
        batch: StoredBatch,
        enqueues: Iterable[Operation],
    ) -> None:
        trail.lsn, trail.time_ms = batch.lsn, batch.time_ms
        if trail is self._asked:
            self._acked = acks_in(batch)
        record = next(one for one in batch.messages if one.number == trail.id)
        self._read_record(trail, segment, record)
        for operation in enqueues:
            index = trail.id - operation.first_id
            if 0 <= index < operation.message_count:
                at = QueuePosition(operation.queue_id, operation.first_sequence + index)
                self._hold(trail, at)
                self._add_step(
                    trail, TrailStep(batch.lsn, batch.time_ms, operation.kind, at, operation.detail)
                )

    def _read_record(self, trail: Trail, segment: OpenSegment, record: Record) -> None:
        trail.segment = segment.number
        trail.message = self._reading.message(segment.file, record)

    def _happened(self, operation: Operation, batch: StoredBatch) -> list[tuple[Trail, int]]:
        """Note an operation on messages that are followed. Returns those that left the queue."""
        of_queue = self._held[operation.queue_id]
        left = []
        end = operation.first_sequence + operation.message_count
        for sequence, trail in list(of_queue.items()):
            if not operation.first_sequence <= sequence < end:
                continue
            position = QueuePosition(operation.queue_id, sequence)
            step = TrailStep(batch.lsn, batch.time_ms, operation.kind, position, operation.detail)
            self._add_step(trail, step)
            if operation.kind != OperationKind.DELIVERED:
                del of_queue[sequence]
                trail.positions.remove(position)
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
        segment: OpenSegment,
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
            if not may_have(record, original.body):
                continue
            copy = self._reading.message(segment.file, record)
            if copy is None or copy.body != original.body:
                continue
            if self._is_copy(original, copy, queue_id):
                trail.became.append(record.number)
                following = Trail(record.number, came_from=trail.id)
                self._trails[record.number] = following
                self._published(following, segment, batch, enqueues)

    def _find_record(self, trail: Trail, compacted: list[int]) -> None:
        """Find the record of a message whose batch is gone, in the compacted segments."""
        known = sorted((first, number) for number in compacted if (first := self._first_id(number)))
        index = bisect_right(known, (trail.id, 1 << 32)) - 1
        if index < 0:
            return
        with self._reading.opened(known[index][1]) as segment:
            if segment is None:
                self._found.missing += 1
                return
            number, file, size = segment
            if not self._reading.may_read(size):
                return
            for record in scan_file(file, size, number, self._reading.seed):
                if not self._reading.goes_on():
                    return
                if not isinstance(record, Record) or record.kind != Kind.MESSAGE:
                    continue
                if record.number == trail.id:
                    self._read_record(trail, segment, record)
                # Ids ascend, so the message is not further on.
                if record.number >= trail.id:
                    return


def _has(batch: StoredBatch, message_id: int) -> bool:
    return batch.messages[0].number <= message_id <= batch.messages[-1].number and any(
        one.number == message_id for one in batch.messages
    )
