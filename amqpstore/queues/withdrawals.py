"""Withdrawals: ready messages leave their queues, from memory or from disk, and come back.

A message that was withdrawn is in no queue, and on disk it still is: nothing here is logged. So
whoever withdraws it then acks it, by itself or in a transaction, takes it as a delivery, or puts it
back; a crash before that leaves it ready. See `Store.take`, `Store.ack` and `Store.purge`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from amqpstore.errors import DamageError, MessageDamagedError, ReadLaterError
from amqpstore.format.index import PagedFile
from amqpstore.format.message import Message
from amqpstore.format.runs import Run
from amqpstore.log.segments import Unread
from amqpstore.queues.arguments import check_queue, check_taken, check_whole
from amqpstore.queues.memory import Memory
from amqpstore.queues.queue import Queue
from amqpstore.queues.stored_runs import StoredRuns
from amqpstore.queues.transient import FIRST_TRANSIENT

_log = logging.getLogger(__name__)

_MAX_PEEKED = 64
"""Messages that are read back with the one at the head."""


class Withdrawals:
    """Takes messages off the queues of one store, and makes them ready again.

    It alone moves runs out of `Queue.ready`, but for whole queues that are purged, and keeps the
    queue's counts and the memory's in step with that. Args: split_messages, of which a part is
    split off a longer run whose messages are taken one by one.
    """

    def __init__(self, stored: StoredRuns, memory: Memory, split_messages: int) -> None:
        self._stored = stored
        self._reader = stored.reader
        self._paging = stored.paging
        self._sizes = stored.sizes
        self._memory = memory
        self._split_messages = split_messages

    def withdraw(
        self, queue: Queue, limit: int, first_sequence: int = 0, *, in_chunks: bool = False
    ) -> Run | Unread | None:
        """Withdraw up to `limit` messages at the head of a queue; None if nothing is ready.

        With `first_sequence`, the first messages from it on. A run may hold fewer than there are;
        of messages on disk it holds about 1 MiB. A message that cannot be read is returned as the
        error that says why, once, and is in quarantine until `Store.read_again` or the next start
        can read it. But if the reason is a lack of descriptors or memory (ReadLaterError) it stays
        ready, to be withdrawn some time later. With `in_chunks` so does a large one that is on disk
        (PartlyReadError), until some calls have read it, so that none of them holds up others.
        Raises: TypeError.
        """
        if queue.__class__ is not Queue:
            check_queue(queue)
        if limit.__class__ is not int:
            check_whole("a limit", limit)
        if limit < 1:
            return None
        if first_sequence:
            return self._withdraw_behind(queue, limit, first_sequence, in_chunks=in_chunks)
        # This is the hot path: nothing that is known is asked again.
        ready, paged = queue.ready, queue.paged
        if paged and queue.is_head_paged and (error := self._paging.page_in(queue, paged[0])):
            return error
        if not ready.count:
            return None
        run = ready.first
        if run.count > limit:
            self._split_first(queue, limit)
            run = ready.first
        if run.messages is None:
            return self._remove_stored(queue, run, 0, limit, in_chunks=in_chunks)
        run = ready.take_first(limit)
        # As `Queue.count_out`, without the call.
        queue.ready_bytes -= run.body_bytes
        if not run.first_id:
            queue.unlogged_count -= run.count
            queue.unlogged_bytes -= run.body_bytes
        if run.expires_ms:
            queue.watch(())
        self._memory.let_go(queue, run.memory_bytes)
        # If its envelope was counted in another run, the rest takes over more than it has.
        queue.taken_bytes += max(run.memory_bytes, 0)
        return run

    def _withdraw_behind(
        self, queue: Queue, limit: int, first_sequence: int, *, in_chunks: bool
    ) -> Run | Unread | None:
        """Withdraw messages from a sequence on, as `withdraw` does."""
        while file := queue.paged_before(first_sequence):
            if error := self._paging.page_in(queue, file):
                return error
        run = queue.ready.at_or_after(first_sequence)
        if run is None:
            return None
        skipped = max(first_sequence - run.first_sequence, 0)
        if run.messages is None:
            return self._remove_stored(queue, run, skipped, limit, in_chunks=in_chunks)
        run = self._cut(queue, run, skipped, min(limit, run.count - skipped))
        self._count_out(queue, run)
        queue.taken_bytes += max(run.memory_bytes, 0)
        return run

    def withdraw_first(self, queue: Queue, limit: int) -> Run | ReadLaterError | None:
        """Withdraw messages at the head of a queue, which are not needed: they are not read. The
        run has its messages only if they are in memory.

        Returns: None, if nothing is ready.
        Raises: TypeError.
        """
        check_queue(queue)
        if limit.__class__ is not int:
            check_whole("a limit", limit)
        while queue.is_head_paged:
            error = self._paging.page_in(queue, queue.paged[0])
            if isinstance(error, ReadLaterError):
                return error
            if error:
                _log.error("%s", error)
        ready = queue.ready
        if not ready.count:
            return None
        if ready.first.count > limit:
            self._split_first(queue, limit)
        run = self._cut(queue, ready.first, 0, min(limit, ready.first.count))
        self._count_out(queue, run)
        return run

    def withdraw_range(self, queue: Queue, first_sequence: int, count: int) -> list[Run]:
        """Withdraw the existing ones of `count` messages from a sequence on.

        Bodies are not read: a run has its messages only if they are in memory.
        Raises: ReadLaterError, TypeError; nothing is withdrawn then.
        """
        check_queue(queue)
        if count.__class__ is not int:
            check_whole("a count", count)
        end = first_sequence + count
        for file in queue.paged_between(first_sequence, end):
            error = self._paging.page_in(queue, file)
            if isinstance(error, ReadLaterError):
                raise error
            if error:
                _log.error("%s", error)
        return self.withdraw_known(queue, first_sequence, count)

    def withdraw_known(self, queue: Queue, first_sequence: int, count: int) -> list[Run]:
        """Withdraw those of `count` messages from a sequence on that are not in an index file
        only.
        """
        runs = queue.ready.remove(first_sequence, count)
        if runs:
            self._recount_before(queue, runs[0])
        for run in runs:
            self._count_out(queue, run)
        if any(run.expires_ms for run in runs):
            before = queue.ready.at(first_sequence - 1)
            queue.watch((before,) if before else ())
        return runs + queue.quarantined.remove(first_sequence, count)

    def withdraw_expired(
        self, queue: Queue, now_ms: int, *, bodies: bool, in_chunks: bool = False
    ) -> Run | Unread | None:
        """Withdraw a run that expires by `now_ms`, the earliest; None if there is none.

        Args: now_ms, since 1970; bodies, whether messages are needed: otherwise they are not read,
        and the run has them only if they are in memory; in_chunks, as of `withdraw`.
        """
        if queue.__class__ is not Queue:
            check_queue(queue)
        while (first := queue.first_to_expire()) and first.expires_ms <= now_ms:
            if isinstance(first, PagedFile):
                if error := self._paging.page_in(queue, first):
                    return error
            elif first.messages is None and bodies:
                return self._remove_stored(queue, first, 0, first.count, in_chunks=in_chunks)
            else:
                run = self._cut(queue, first, 0, first.count)
                self._count_out(queue, run)
                return run
        return None

    def next_expiry(self, queue: Queue) -> int:
        """Return when, ms since 1970, the first ready message expires; 0 if none ever does.

        Nothing expires before that. It may be too early: then `withdraw_expired` finds nothing, and
        returns a later time from then on.
        """
        if queue.__class__ is not Queue:
            check_queue(queue)
        found = queue.first_to_expire()
        return found.expires_ms if found else 0

    def peek(self, queue: Queue, first_sequence: int = 0) -> Message | None:
        """Return the message at the head of a queue, and leave it: the one that `withdraw` returns
        next.

        None if nothing is ready, or it cannot be read: `withdraw` then says so.
        """
        check_queue(queue)
        if queue.is_head_paged:
            file = queue.paged[0]
            try:
                runs = self._paging.runs_of(queue, file)
            except (DamageError, OSError, MemoryError):
                return None
            queue.paged_in(file, runs)
        if first_sequence:
            return self._stored.peek_behind(queue, first_sequence)
        if not queue.ready.count:
            return None
        run = queue.ready.first
        if run.first_id >= FIRST_TRANSIENT:
            # It was written to `transient/`, and would be once more, at once if memory is short.
            return self._stored.read_one(run, 0)
        if run.messages is None:
            # Some messages after it are read too, as they are likely to be next.
            messages = self._reader.read_back(run, 0, min(run.count, _MAX_PEEKED))
            if not isinstance(messages, list):
                return None
            run = self._cut(queue, run, 0, len(messages))
            self._stored.fill(run, messages)
            queue.count_out(run, was_stored=True)
            self.make_ready(queue, run)
        return run.messages[0] if run.messages else None

    def peek_many(self, queue: Queue, limit: int, first_sequence: int = 0) -> Sequence[Message]:
        """Return up to `limit` messages that one `withdraw` returns next, and leave them; empty if
        `peek` returns None. Raises: TypeError.
        """
        if limit.__class__ is not int:
            check_whole("a limit", limit)
        head = self.peek(queue, first_sequence)
        if head is None:
            return ()
        if not first_sequence and queue.ready.count:
            messages = queue.ready.first.messages
            if messages is not None and messages[0] is head:
                return messages[:limit]
        return (head,)

    def put_back(self, queue: Queue, run: Run) -> None:
        """Put a run that was withdrawn or taken back in its place, ready."""
        if queue.__class__ is not Queue or run.__class__ is not Run:
            check_taken(queue, run)
        if run.account is not None:
            run.account.remove(run)
        if run.messages is not None:
            if run.is_short:
                # An envelope shared with neighbours that have left meanwhile counts here from now
                # on.
                run.bring_back(run.messages)
        else:
            run.let_go()
        self.make_ready(queue, run)

    def make_ready(self, queue: Queue, run: Run) -> None:
        """Insert a run in its place in its queue: it can be taken."""
        if queue.deleted:
            if run.messages is None:
                self._reader.release_transient(run)
            return
        self._sizes.measure(queue, run)
        queue.ready.insert(run)
        queue.count_in(run)
        if run.messages is None:
            run.body_sizes = None
        if run.expires_ms:
            queue.watch((run,))
        if run.messages is not None:
            self._memory.add(queue, run, run.memory_bytes)

    def _count_out(self, queue: Queue, run: Run) -> None:
        """Stop counting a run that is not ready any more, in memory or on disk as it was."""
        self._sizes.measure(queue, run)
        queue.count_out(run, was_stored=run.messages is None)
        self._memory.let_go(queue, run.memory_bytes)

    def _split_first(self, queue: Queue, limit: int) -> None:
        """Split a part off the first run if that is long and no more than `limit` of it are to be
        removed: each removal would copy all that it leaves in the run.
        """
        if not queue.ready.first.count > 2 * self._split_messages > 2 * limit:
            return
        part = queue.ready.split_first(self._split_messages)
        if part.is_short and part.messages is not None:
            # A ready run counts its envelope itself.
            counted_bytes = part.memory_bytes
            part.bring_back(part.messages)
            self._memory.add(queue, part, part.memory_bytes - counted_bytes)
        if part.expires_ms:
            queue.watch((part,))

    def _remove_stored(
        self, queue: Queue, run: Run, skipped: int, limit: int, *, in_chunks: bool = False
    ) -> Run | Unread:
        """Remove messages of a run that is on disk, after the first `skipped`; with bodies."""
        count = min(limit, run.count - skipped)
        found = self._reader.read_back(run, skipped, count, in_chunks=in_chunks)
        if isinstance(found, ReadLaterError):
            return found
        if isinstance(found, MessageDamagedError):
            run = self._cut(queue, run, skipped, 1)
            self._sizes.measure(queue, run)
            queue.count_out(run, was_stored=True)
            found.body_bytes = run.body_bytes
            self._stored.quarantine.set_aside(queue, run, found)
            return found
        run = self._cut(queue, run, skipped, len(found))
        self._stored.fill(run, found)
        queue.count_out(run, was_stored=True)
        queue.taken_bytes += run.memory_bytes
        return run

    def _cut(self, queue: Queue, run: Run, skipped: int, count: int) -> Run:
        """Remove part of a ready run: `count` messages after the first `skipped`."""
        (part,) = queue.ready.remove(run.first_sequence + skipped, count)
        if skipped:
            self._recount_before(queue, part)
        if part.expires_ms:
            before = queue.ready.at(part.first_sequence - 1) if skipped else None
            # Of what is left, only the end is watched already.
            queue.watch((before,) if before else ())
        return part

    def _recount_before(self, queue: Queue, removed: Run) -> None:
        """Count an envelope that a run shared with removed messages after it for the run."""
        before = queue.ready.at(removed.first_sequence - 1)
        if before and before.messages is not None and removed.messages is not None:
            memory_bytes = before.memory_bytes
            before.bring_back(before.messages)
            removed.memory_bytes -= before.memory_bytes - memory_bytes
            removed.is_short = True
