"""The log of a follower: batches of a leader are appended as they are, and count once committed.

Each batch takes three steps, as on the leader; but between the second and the third there is the
agreement of all in-sync replicas:

1. `accept`: the batch is sound, and continues the log.
2. `write`: the bytes to the segment, `datasync`, and for a new segment `sync_directory`. Then it is
   acked.
3. `commit`: only now do checkpoints know of it.

A crash within 2 leaves a torn tail, one between 2 and 3 a whole batch behind the committed ones.
Each batch is durable before the next one is written, as on the leader: what is in front of a sound
batch is never torn.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable

from amqpstore.errors import RefusedBatchError
from amqpstore.log.batch import Batch, BatchSummary
from amqpstore.log.log import Log
from amqpstore.log.segments import Segment
from amqpstore.log.space import Space, is_no_space
from amqpstore.replica.log_reading import LOG_START, BatchEnd
from amqpstore.replica.sealed_batch import SEGMENT_BYTES, SealedBatch
from amqpstore.replica.segment_rewrite import SegmentRewrite
from amqpstore.system.durability import sync_directory
from amqpstore.system.filenames import SEGMENTS, is_compacted, segment_path
from amqpstore.terms import batch_named, term_of

_MAX_SKIPPED = 100
"""Segments that a leader may have left empty in a row."""


class FollowerLog(Log):
    """The segments of a follower. `last` is where the last batch ends, committed or not.

    `is_appendable`: this process has created the last segment, or there is none. `received` are
    batches that are durable and not known to be committed.
    """

    last: BatchEnd = LOG_START
    is_appendable = False

    def follow(self, last: BatchEnd, space: Space) -> None:
        """Begin, behind what recovery found."""
        self.last = last
        self.received: deque[Batch] = deque()
        # What recovery has found may end with a torn tail: the segment is written anew, up to a
        # batch that the leader has, before anything is appended.
        self.is_appendable = not last.lsn
        self._room = space

    def ends(self) -> dict[int, int]:
        """Return where each segment of the log ends, by number, committed or not."""
        return {one.number: one.size for one in self.segments if not is_compacted(one.number)}

    def accept(self, sealed: SealedBatch, term: int) -> Batch:
        """Step 1: check that a batch continues the log. Args: term, of the leader that sent it.

        Raises: RefusedBatchError; nothing is changed then.
        """
        last = self.last
        # A deposed leader that does not know it yet may still send.
        if term_of(sealed.lsn) != term:
            reason = f"it is of term {term_of(sealed.lsn)}, and this follower is in term {term}"
            raise RefusedBatchError(sealed.lsn, reason)
        if not self.is_appendable:
            reason = "what the last segment ends with is not agreed on with the leader"
            raise RefusedBatchError(sealed.lsn, reason)
        return self.continue_with(sealed, last)

    def continue_with(self, sealed: SealedBatch, last: BatchEnd) -> Batch:
        """Return a batch that follows the one that ends at a place. Raises: RefusedBatchError."""
        lsn, where = sealed.lsn, (sealed.segment, sealed.offset)
        is_next = not sealed.offset and 0 < sealed.segment - last.segment <= _MAX_SKIPPED
        if where != (last.segment, last.offset) and not is_next:
            reason = f"it is for {where}, and the log ends at {(last.segment, last.offset)}"
            raise RefusedBatchError(lsn, reason)
        # A frame that came twice, or out of order, would otherwise be in the log twice, with ids
        # that are in use.
        if lsn <= last.lsn:
            raise RefusedBatchError(lsn, f"the log has {batch_named(last.lsn)} already")
        if sealed.lengths and sealed.first_id < last.message_id:
            reason = f"its first id is {sealed.first_id}, and the log has {last.message_id - 1}"
            raise RefusedBatchError(lsn, reason)
        operations = sealed.operations(self._store_id, self._seed)
        sealed = sealed._replace(first_id=sealed.first_id or last.message_id)
        # The bytes are taken as they are. To encode them again could differ by a byte, and the two
        # logs would no longer be the same.
        batch = Batch(sealed.first_id)
        batch.lsn = lsn
        batch.first_offset = sealed.offset or SEGMENT_BYTES
        batch.starts_segment = not sealed.offset
        batch.lengths = sealed.lengths.tolist()
        batch.buffers = [sealed.content]
        batch.summary = sealed.summary(operations)
        return batch

    def append(self, batch: Batch) -> None:
        """Step 2: make a batch durable that was accepted.

        Raises: DiskFullError (nothing is changed, but the last segment has to be written again
        before more is appended); DurabilityError, and all writing ends with it.
        """
        summary = summary_of(batch)
        segment = self._segment_for(batch)
        before = segment.size
        (content,) = batch.buffers
        segment.size = summary.end_bytes
        batch.fills = not batch.starts_segment and self._filling.is_due(segment, before)
        try:
            self._append(segment, batch)
        # Room on the disk is the one failure after which this store may go on: anything else has
        # an unknown part of the batch on disk.
        except OSError as error:
            if not is_no_space(error):
                self._fail(segment.path, error)
            self._take_back(segment, batch, before)
            raise self._room.error(len(content)) from error
        self.write(batch)
        self._receive(batch)

    def _segment_for(self, batch: Batch) -> Segment:
        current = self._current
        if self.failure:
            raise self.failure
        if batch.lengths:
            self._room.check(sum(batch.lengths))
        if current is None or batch.starts_segment:
            if current is not None:
                self._end_segment(current)
            number = summary_of(batch).segment
            self.skip_to(number)
            current = self._new_segment(number, batch.first_id)
            self._segments.append(current)
        batch.segment = current
        return current

    def skip_to(self, number: int) -> None:
        """Create the segments in front of one that have no batch. Durable on return.

        A leader that was killed before it had written to a segment, and leads again, goes on in the
        next one; and no number of a log may be missing.
        Raises: DurabilityError, OSError.
        """
        files = self._descriptors.files
        for skipped in range(self.last.segment + 1, number):
            path = segment_path(self._directory, skipped)
            if not files.exists(path):
                files.create(path).close()
                # The directory's entries may reach the disk in any order.
                # One by one: a crash must not leave a later one alone.
                sync_directory(files, f"{self._directory}/{SEGMENTS}")

    def _end_segment(self, segment: Segment) -> None:
        """Cut off the zeros behind the last batch of a segment that another one follows.

        Before that one exists: a crash must not leave them in any segment but the last.
        """
        if segment.filled_end > segment.size:
            try:
                segment.trim()
                segment.writer.datasync()
            except OSError as error:
                self._fail(segment.path, error)

    def _new_segment(self, number: int, first_id: int) -> Segment:
        path = segment_path(self._directory, number)
        segment = Segment(self._descriptors, path, number, self._seed, self._limits)
        segment.first_id = segment.end_id = first_id
        return segment

    def _take_back(self, segment: Segment, batch: Batch, size: int) -> None:
        """Forget a batch that the disk had no room for.

        What was written of it is behind the end of the last segment, like a torn tail.
        """
        self.is_appendable = False
        segment.size = size
        segment.seal()
        if batch.starts_segment:
            self._segments.remove(segment)
            with contextlib.suppress(OSError):
                self._descriptors.files.remove(segment.path)

    def _receive(self, batch: Batch) -> None:
        """Note a batch that is durable."""
        if batch.segment is None or batch.summary is None:
            raise ValueError("the batch was not accepted")
        self._current = batch.segment
        self.last = end_of_batch(batch, self.last)
        # Its bytes are on disk, and are not read from memory.
        batch.buffers = []
        # The batch is not committed yet: checkpoints must not move to a batch that the next leader
        # may not have.
        self.received.append(batch)

    def commit(self, lsn: int) -> None:
        """Step 3: batches up to one are committed."""
        while self.received and self.received[0].lsn <= lsn:
            batch = self.received.popleft()
            if batch.segment is not None and batch.lengths:
                batch.steps = batch.segment.steps(batch.first_id, batch.lengths, batch.first_offset)
            self.complete(batch)

    def replace_end(self, rewrite: SegmentRewrite, batches: Iterable[Batch]) -> None:
        """Have the log go on in a segment that was written anew, and is in its place; if that is
        empty, there is no log.

        Args: batches, those behind what is kept of it.
        """
        number, end = rewrite.number, rewrite.end
        while self.received and self.received[-1].lsn > end.lsn:
            self.received.pop()
        # Compacted segments have numbers of their own and hold committed messages only.
        of_log = [one for one in self._segments if not is_compacted(one.number)]
        gone = [one for one in of_log if one.number > number - (not rewrite.size)]
        for replaced in gone:
            replaced.close()
            self._segments.remove(replaced)
        self.last = end
        self.is_appendable = True
        if not rewrite.size:
            self._current = self._last_written = None
            return
        segment = next((one for one in of_log if one.number == number), None)
        if segment is None:
            segment = self._new_segment(number, end.message_id)
            self._segments.append(segment)
        segment.close()
        segment.write_to(rewrite.file, rewrite.size)
        segment.forget_from(rewrite.offset)
        self._current = self._last_written = segment
        for batch in batches:
            batch.segment = segment
            self._receive(batch)


def end_of_batch(batch: Batch, last: BatchEnd) -> BatchEnd:
    """Return the place where a batch ends. Args: last, where the one before it does."""
    summary = summary_of(batch)
    next_id = batch.first_id + len(batch.lengths) if batch.lengths else last.message_id
    return BatchEnd(batch.lsn, summary.segment, summary.end_bytes, next_id)


def summary_of(batch: Batch) -> BatchSummary:
    """Return the summary of a batch that was accepted."""
    if batch.summary is None:
        raise ValueError("the batch was not accepted")
    return batch.summary
