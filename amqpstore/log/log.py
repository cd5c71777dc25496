"""The log: all segments, the open batch at their end, and the steps that make a batch durable.

A batch is what one fdatasync makes durable: MESSAGE records, then exactly one TRANSACTION record
with the operations on them. The owner drives it in three steps, so that only the middle one, which
does nothing but file access, needs a thread of its own:

1. `seal`: close the open batch and encode it, unless it is large; later changes belong to the next
   batch.
2. `write`: encode it if that is left to do; the bytes to the segment, `datasync`, and for a new
   segment `sync_directory`. A small batch needs no thread for it, where the kernel can sync in the
   background: `start_write`, and `finish_write` once that has ended. What a leader writes counts
   once `is_committed` says that its followers have it, too.
3. `complete`: the batch is durable; call those who wait for it.

Only one batch is being written at a time. What arrives during its fdatasync is the next batch:
batching emerges from the disk's speed, and no timer delays anyone.

A crash between 1 and 2 leaves nothing of the batch. A crash within 2 leaves any part of it, which
is a torn tail: recovery rolls the batch back as a whole. A crash after 2 leaves the batch. A batch
lies in one segment only, and is written only after the one before it is durable, so a torn tail is
always in the last batch of the last segment.
"""

from __future__ import annotations

import threading
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import NoReturn

from amqpstore.catalog.tables import START, Position
from amqpstore.errors import DeposedError, DurabilityError, MessageDamagedError
from amqpstore.format.compression import Compressor, Decompressor
from amqpstore.format.limits import LIMITS, StoreLimits
from amqpstore.format.message import Message
from amqpstore.format.records import (
    FORMAT_VERSION,
    OPERATION,
    MessageDecoder,
    Operation,
    SpreadEnqueue,
    checksum_seed,
    encode_segment_header,
)
from amqpstore.log.batch import MESSAGE_BYTES, Batch, BatchSummary, joined
from amqpstore.log.companion import Companion
from amqpstore.log.filling import Filling
from amqpstore.log.large_reads import LargeReads
from amqpstore.log.measures import MAX_UNCOUNTED, StoreMeasures
from amqpstore.log.segments import Segment, Unread
from amqpstore.log.space import Space, is_no_space
from amqpstore.log.spares import Spares
from amqpstore.system.datasyncs import Datasyncs
from amqpstore.system.descriptors import Descriptors, insist
from amqpstore.system.filenames import SEGMENTS, segment_path

_FIRST_ID = attrgetter("first_id")


class Log:
    """The segments in `directory`, and the next numbers after those in them.

    Args: segment_bytes, the size from which on a segment gets no further batch; segments, those
    that recovery found, ascending in id; next_segment, the first number never used; position, where
    the log ended at recovery; space, whose reserve may be used for writes; compressor, for bodies;
    dictionaries, of zstd, by id; companion, of a leader, without which no batch is complete;
    spares, files for new segments.
    """

    def __init__(
        self,
        descriptors: Descriptors,
        directory: str,
        *,
        store_id: bytes,
        segment_bytes: int,
        segments: list[Segment],
        next_segment: int = 1,
        position: Position = START,
        space: Space | None = None,
        compressor: Compressor | None = None,
        dictionaries: dict[int, bytes] | None = None,
        limits: StoreLimits = LIMITS,
        measures: StoreMeasures | None = None,
        companion: Companion | None = None,
        spares: Spares | None = None,
    ) -> None:
        self.measures = measures or StoreMeasures()
        self._companion = companion
        self._spares = spares
        self._descriptors = descriptors
        self._directory = directory
        self._store_id = store_id
        self._seed = checksum_seed(store_id)
        self._segment_bytes = segment_bytes
        self._segments = segments
        self._space = space
        self._limits = limits
        self._filling = Filling(segment_bytes, limits, space)
        # Also after a start: what recovery found is never appended to, as the remains of a torn
        # tail may lie behind its end.
        self._current: Segment | None = None
        self._next_segment = next_segment
        self._next_lsn = position.lsn
        self._open = Batch(position.message_id)
        self._end: tuple[int, int, int, int] = position
        # Those that a checkpoint has taken, until it is in use.
        self._taken: list[BatchSummary] = []
        # Since the last `take_durable`.
        self.durable: list[BatchSummary] = []
        self.durable_bytes = 0
        self.durable_messages = 0
        self.completed_s = 0.0
        """The time at which the last batch was known to be durable, by `time.perf_counter`."""
        self.under_way: Batch | None = None
        """The batch between `seal` and `complete`."""
        self.dictionaries = {} if dictionaries is None else dictionaries
        self._compressor = compressor
        self._decoder = MessageDecoder({}, Decompressor(self.dictionaries).decompress)
        self.failure: DurabilityError | None = None
        """The error that ended all writing, if one did."""
        self.is_open = True
        """Whether more may be appended: neither was it closed, nor has an error ended all writing,
        here or in the catalog.
        """
        self._is_closed = False
        self.before_seal: Callable[[], None] | None = None
        """Makes what the open batch depends on durable, if that is not the case yet."""
        # Held while a file is written to.
        self._writing = threading.Lock()
        self._last_written: Segment | None = None
        self._batch_count = 0
        """How many batches were written to that segment since it was created."""

    @property
    def position(self) -> Position:
        """The end of the last durable batch."""
        return Position(*self._end)

    @position.setter
    def position(self, position: Position) -> None:
        self._end = position

    @property
    def seed(self) -> int:
        """The seed of the checksums of its records."""
        return self._seed

    @property
    def current(self) -> Segment | None:
        """The segment that the last batch went to; None before the first batch."""
        return self._current

    @property
    def is_idle(self) -> bool:
        """Whether no batch is between `seal` and `complete`."""
        return self.under_way is None

    @property
    def is_promised(self) -> bool:
        """Whether the open batch holds messages, or anybody waits for it."""
        return bool(self._open.messages or self._open.waiters)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was appended since the last `seal`."""
        return not self._open.runs

    @property
    def pending_bytes(self) -> int:
        """About how many bytes are in memory because they are not durable yet."""
        under_way = self.under_way.byte_count if self.under_way else 0
        return self._open.byte_count + under_way

    def append_messages(self, messages: Sequence[Message], body_bytes: int) -> int:
        """Put messages in the open batch, under contiguous ids from the returned one on."""
        batch = self._open
        first_id = batch.first_id + len(batch.messages)
        batch.messages.extend(messages)
        # Messages of one call usually share an envelope, and its properties may be large.
        head_bytes = len(messages[0].envelope.head) if messages else 0
        batch.byte_count += body_bytes + (MESSAGE_BYTES + head_bytes) * len(messages)
        return first_id

    def append_operation(self, operation: Operation | SpreadEnqueue) -> None:
        """Put an operation in the open batch: merged into the queue's last one, if it continues
        that.
        """
        batch = self._open
        key = operation.kind, operation.queue_id
        runs = batch.runs.get(key)
        if runs is None:
            batch.runs[key] = [operation]
        elif one := joined(runs[-1], operation):
            runs[-1] = one
            return
        else:
            runs.append(operation)
        batch.operation_count += 1
        batch.byte_count += OPERATION.size * (
            operation.message_count if isinstance(operation, SpreadEnqueue) else 1
        )

    def append_acks(self, acks: list[Operation]) -> None:
        """Put acks of one queue in the open batch, in little time however many there are."""
        self.append_operation(acks[0])
        batch = self._open
        first = acks[0]
        batch.runs[first.kind, first.queue_id] += acks[1:]
        batch.operation_count += len(acks) - 1
        batch.byte_count += OPERATION.size * (len(acks) - 1)

    def when_durable(self, callback: Callable[[], None]) -> None:
        """Call back from `complete` once everything appended so far is durable.

        At once, if everything is durable already.
        """
        if self._open.runs:
            self._open.waiters.append(callback)
        elif self.under_way is not None:
            self.under_way.waiters.append(callback)
        else:
            callback()

    def seal(self, now_ms: int) -> Batch | None:
        """Step 1: encode the open batch and return it, or None when it is empty.

        Call it only when `is_idle`.
        Raises: DurabilityError, when a write failed before, or if the batch cannot be encoded; all
        writing ends with it.
        """
        if self.failure:
            raise self.failure
        batch = self._open
        if not batch.runs:
            return None
        if self.before_seal:
            self.before_seal()
        self._open = Batch(batch.first_id + len(batch.messages))
        self.under_way = batch
        # Its messages are in queues, and perhaps delivered: a log without them would be wrong.
        try:
            segment = self._current
            if segment is None or segment.size >= self._segment_bytes:
                segment = self._start_segment(batch, now_ms)
            batch.segment = segment
            batch.first_offset = segment.size
            batch.lsn = self._next_lsn
            self._next_lsn += 1
            batch.sealed_ms = now_ms
            if not batch.is_large:
                batch.encode(segment, self._seed, self._compressor)
                if segment.size > max(segment.filled_end, self._limits.fill_from_bytes):
                    batch.fills = self._filling.is_due(segment, batch.first_offset)
        except BaseException as error:  # noqa: BLE001
            self._fail(f"{self._directory}/{SEGMENTS}", error)
        return batch

    def write(self, batch: Batch) -> None:
        """Step 2: make the batch durable here; `is_committed` tells whether it is in all places
        where it has to be. These two may run in another thread.

        Raises: DurabilityError; all writing ends with it, as a segment whose datasync failed
        must not be appended to.
        """
        with self._writing:
            try:
                self._write(self._to_write(batch), batch)
            finally:
                if self._is_closed and batch.segment:
                    batch.segment.seal()

    def on_committed(self, callback: Callable[[], None]) -> None:
        """Have a function called, in any thread, once a batch is committed of which `is_committed`
        has said that it is not, or never will be.
        """
        if self._companion is not None:
            self._companion.on_committed = callback

    def is_committed(self, batch: Batch, *, wait: bool = False) -> bool:
        """Return whether a batch that is durable here is so wherever it has to be: step 3 may
        follow. Args: wait, until it is.

        Raises: DurabilityError; all writing ends with it.
        """
        if self._companion is None:
            return True
        try:
            return self._companion.is_committed(batch, wait=wait)
        except BaseException as error:  # noqa: BLE001
            self._fail(self._directory, error)

    def _write(self, segment: Segment, batch: Batch) -> None:
        try:
            if not batch.is_appended:
                if batch.summary is None:
                    batch.encode(segment, self._seed, self._compressor)
                if self._companion is not None:
                    # Before the append, so that the followers sync while this disk does. After a
                    # crash here they may have this batch and this member not: it is unconfirmed.
                    self._companion.begin(batch)
                self._append(segment, batch)
            # A crash before this returns leaves any part of the batch, which is a torn tail, or all
            # of it. Of a new segment not even the name is durable then: so its directory is synced
            # too before anything is confirmed.
            began_s = time.perf_counter()
            segment.writer.datasync()
            batch.sync_s = time.perf_counter() - began_s
            if batch.starts_segment:
                insist(self._descriptors.files.sync_directory, f"{self._directory}/{SEGMENTS}")
            if self._companion is not None:
                self._companion.written(batch)
        except BaseException as error:  # noqa: BLE001
            self._fail(segment.path, error)

    def start_write(self, batch: Batch, datasyncs: Datasyncs) -> bool:
        """Step 2 of a small batch without waiting for the disk, in the owner's thread:
        `finish_write` ends it.

        Returns False if `write` has to do it: the kernel cannot sync it in the background.
        Raises: DurabilityError; all writing ends with it.
        """
        segment = self._to_write(batch)
        try:
            if self._companion is not None:
                self._companion.begin(batch)
            self._append(segment, batch)
            batch.sync_s = time.perf_counter()
            # A small batch never starts a segment: nothing here would sync the directory.
            return datasyncs.start(segment.writer)
        except BaseException as error:  # noqa: BLE001
            self._fail(segment.path, error)

    def finish_write(self, batch: Batch, datasyncs: Datasyncs, *, wait: bool = False) -> bool:
        """Return whether a batch that was started is durable, here and wherever it has to be.

        Raises: DurabilityError; all writing ends with it.
        """
        segment = self._to_write(batch)
        if not batch.is_synced:
            try:
                # The kernel tells only once that a sync has ended: `is_synced` remembers it while
                # others are waited for.
                if not datasyncs.is_done(wait=wait):
                    return False
                batch.is_synced = True
                batch.sync_s = time.perf_counter() - batch.sync_s
                if self._companion is not None:
                    self._companion.written(batch)
            except BaseException as error:  # noqa: BLE001
                self._fail(segment.path, error)
        return self._companion is None or self.is_committed(batch, wait=wait)

    def _to_write(self, batch: Batch) -> Segment:
        """Return the segment of a batch. Raises: DurabilityError, if nothing may be written."""
        segment = batch.segment
        if segment is None:
            raise ValueError("the batch was not sealed")
        if self._is_closed and not self.failure:
            self.failure = DurabilityError(segment.path, OSError("the store was closed"))
        if self.failure:
            raise self.failure
        return segment

    def _append(self, segment: Segment, batch: Batch) -> None:
        start = 0 if batch.starts_segment else batch.first_offset
        space, size = self._space, segment.size - start
        if space:
            if space.written_bytes + size < space.trusted_bytes:
                space.written_bytes += size
            else:
                space.make_room(size)
        if batch.starts_segment:
            if self._last_written:
                self._last_written.seal()
            self._create(segment)
            self._last_written = segment
            self._batch_count = 0
        if batch.fills:
            self._filling.fill(segment)
        file = segment.writer
        try:
            file.append(batch.buffers)
        except OSError as error:
            self._give_up_reserve(error)
            # The part that was written is the batch's beginning, and the rest follows it: no sync
            # has failed, so nothing of it was lost.
            written = file.end() - start
            file.append([b"".join(batch.buffers)[written:]])
        batch.is_appended = True
        self._batch_count += 1

    def _mean_batch_bytes(self) -> int:
        """Return the size of the batches of the last segment on average; 0 if there is none."""
        if not self._last_written:
            return 0
        # None was counted if the disk had no room for the first one.
        return self._last_written.size // max(1, self._batch_count)

    def _create(self, segment: Segment) -> None:
        """Open the file of a new segment: a spare one, if there is any. Raises: OSError."""
        if self._spares and (spare := self._spares.take(segment.path, self._mean_batch_bytes())):
            segment.use(spare)
            return
        try:
            insist(segment.create)
        except OSError as error:
            self._give_up_reserve(error)
            segment.create()

    def trim(self) -> None:
        """Cut off what the last segment was filled with ahead of use. Not durable.

        Call it only when `is_idle`, and nothing more is written. Raises: OSError.
        """
        if self._last_written and not self.failure:
            self._last_written.trim()

    def _give_up_reserve(self, error: OSError) -> None:
        """Free the reserve for a write that failed because the disk is full. Raises: `error`, in
        any other case.

        A write that fails once more has failed for good.
        """
        if not (self._space and is_no_space(error)):
            raise error
        self._space.give_up()

    def complete(self, batch: Batch) -> None:
        """Step 3: note where the batch's messages are and call those who waited for it.

        All of them are called, as it is durable for all.
        Raises: the first error of a callback, a DurabilityError before any other.
        """
        if batch.segment is None or batch.summary is None:
            raise ValueError("the batch was not sealed")
        self.completed_s = time.perf_counter()
        try:
            self._note(batch, batch.segment, batch.summary)
        except BaseException as error:  # noqa: BLE001
            self._fail(batch.segment.path, error)
        first_error: Exception | None = None
        for callback in batch.waiters:
            try:
                callback()
            except Exception as error:  # noqa: BLE001 (raised below)
                if first_error is None or isinstance(error, DurabilityError):
                    first_error = error
        if first_error is not None:
            raise first_error

    def _note(self, batch: Batch, segment: Segment, summary: BatchSummary) -> None:
        count = len(summary.sizes)
        byte_count = summary.end_bytes - batch.first_offset
        measures = self.measures
        measures.batches.append((count, byte_count, batch.sync_s))
        if len(measures.batches) >= MAX_UNCOUNTED:
            measures.count_batches()
        next_id = batch.first_id + count
        if count:
            segment.note_steps(batch.first_id, next_id, batch.steps)
        # The position and the list of batches move together: a checkpoint at a position whose
        # batches it does not have would leave messages that neither it nor recovery applies.
        self._end = segment.number, summary.end_bytes, batch.lsn + 1, next_id
        self.durable.append(summary)
        self.durable_bytes += byte_count
        for operation in summary.operations:
            self.durable_messages += operation.message_count
        self.under_way = None

    def read(
        self, first_id: int, count: int, large: LargeReads | None = None
    ) -> list[Message] | Unread:
        """Read some, at least one, of `count` durable messages of contiguous ids: see
        `Segment.read`.
        """
        index = bisect_right(self._segments, first_id, key=_FIRST_ID) - 1
        while index >= 0 and self._segments[index].is_empty:
            # The neighbours of a torn segment may have been merged: its ids are in the middle of
            # theirs.
            index -= 1
        if index < 0 or first_id >= self._segments[index].end_id:
            return MessageDamagedError(first_id, "no segment contains it")
        return self._segments[index].read(first_id, count, self._decoder, large)

    def forget_damage(self) -> None:
        """Check damaged places again at the next read."""
        for segment in self._segments:
            segment.forget_damage()

    def take_durable(self) -> list[BatchSummary]:
        """Return the batches that became durable since the last call."""
        durable, self.durable = self.durable, []
        self.durable_bytes = self.durable_messages = 0
        self._taken = [*self._taken, *durable]
        return durable

    def forget_taken(self) -> None:
        """Forget the batches that a checkpoint took: its index files have all that is left of
        them.
        """
        self._taken = []

    @property
    def first_summarized_id(self) -> int:
        """The id from which on `body_sizes` knows the messages."""
        for batches in (self._taken, self.durable):
            if batches:
                return batches[0].first_id
        return self.position.message_id

    def body_sizes(self, ids: Sequence[int]) -> array[int] | None:
        """Return the sizes of the bodies of messages that no index file in use has yet, by their
        ids, which ascend; None if one of them is unknown.
        """
        sizes = array("I")
        done = 0
        for batches in (self._taken, self.durable):
            index = bisect_right(batches, ids[done], key=_FIRST_ID) - 1 if done < len(ids) else -1
            while 0 <= index < len(batches) and done < len(ids):
                batch = batches[index]
                if ids[done] < batch.first_id:
                    return None  # a batch before it was lost
                stop = bisect_left(ids, batch.first_id + len(batch.body_sizes), done)
                if ids[stop - 1] - ids[done] == stop - done - 1:
                    start = ids[done] - batch.first_id
                    sizes += batch.body_sizes[start : start + stop - done]
                else:
                    sizes.extend([batch.body_sizes[one - batch.first_id] for one in ids[done:stop]])
                done = stop
                index += 1
        return sizes if len(sizes) == len(ids) else None

    @property
    def segments(self) -> list[Segment]:
        """All segments, ascending in id. The log's own list: not to be changed."""
        return self._segments

    def drop(self, numbers: Collection[int]) -> list[Segment]:
        """Forget segments in which nothing is live. Returns them: they have to be closed."""
        dropped = [one for one in self._segments if one.number in numbers]
        self._segments = [one for one in self._segments if one.number not in numbers]
        return dropped

    def replace(self, numbers: Collection[int], segment: Segment) -> list[Segment]:
        """Replace neighbours by one segment that holds the same messages. Returns the
        neighbours.
        """
        index = next(i for i, one in enumerate(self._segments) if one.number in numbers)
        replaced = self.drop(numbers)
        self._segments.insert(index, segment)
        return replaced

    def close(self) -> None:
        """Close every file, but for one that another thread is writing to: `write` closes that."""
        self._is_closed = True
        self.is_open = False
        self._descriptors.close()
        # Not while it is written to: its descriptor might be another file's, or a client's socket,
        # before that call ends.
        if self._last_written and self._writing.acquire(blocking=False):
            self._last_written.seal()
            self._writing.release()

    def _fail(self, path: str, error: BaseException) -> NoReturn:
        """End all writing because of an error in it: it is unknown how much was done before it."""
        self.is_open = False
        # This disk is sound: the error stays what it is, so that the process goes on as a follower.
        if isinstance(error, DeposedError):
            self.failure = error
            raise error
        # Never tried again: Linux marks pages as clean whose write has failed, so the next sync of
        # the file succeeds although they are not on disk. PostgreSQL lost data by that until 2018.
        self.failure = DurabilityError(path, error)
        if not isinstance(error, Exception):
            raise error  # KeyboardInterrupt is the caller's
        raise self.failure from error

    def _start_segment(self, batch: Batch, now_ms: int) -> Segment:
        number = self._next_segment
        self._next_segment += 1
        path = segment_path(self._directory, number)
        segment = Segment(self._descriptors, path, number, self._seed, self._limits)
        header = encode_segment_header(number, FORMAT_VERSION, self._store_id, now_ms)
        segment.size = len(header)
        segment.first_id = segment.end_id = batch.first_id
        batch.buffers.append(header)
        batch.starts_segment = True
        self._segments.append(segment)
        self._current = segment
        return segment
