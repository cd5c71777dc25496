"""Messages that are on disk: read back for runs that are ready, and for those that were taken.

A run of a queue that is ready or unacked may have its messages in memory or not. Here are all ways
to have them again. Nothing here is on the path of a message that stays in memory.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from operator import attrgetter

from amqpstore.catalog.backing import Backing
from amqpstore.errors import DamageError, MessageDamagedError, PartlyReadError, ReadLaterError
from amqpstore.format.message import Message
from amqpstore.format.runs import Run
from amqpstore.log.log import Log
from amqpstore.log.segments import Unread
from amqpstore.queues.body_reader import BodyReader
from amqpstore.queues.memory import Memory
from amqpstore.queues.paging import Paging
from amqpstore.queues.quarantine import Quarantine
from amqpstore.queues.queue import Queue
from amqpstore.queues.run_sizes import RunSizes
from amqpstore.queues.transient import FIRST_TRANSIENT, TransientLog
from amqpstore.system.clock import Clock

_log = logging.getLogger(__name__)

_MAX_BROWSED = 2048
"""Messages in one part of what `browse` returns."""


class StoredRuns:
    """Reads the messages of the runs of one store that are on disk, ready or taken.

    `reader` reads bodies, `paging` index files; `sizes` knows how large bodies are, and
    `quarantine` has what cannot be read. To read a run moves it to no other place, with one
    exception: messages of a taken run that `bring_back` cannot read go to quarantine.
    """

    def __init__(
        self, backing: Backing, log: Log, transient: TransientLog, memory: Memory, clock: Clock
    ) -> None:
        limits = backing.limits
        self.reader = BodyReader(log, transient, limits.read_chunk_bytes, clock)
        self.quarantine = Quarantine(self.reader, clock)
        self.paging = Paging(backing, self.quarantine)
        self.sizes = RunSizes(self.reader, self.paging, log, limits.measured_messages)
        self._unacked = memory.unacked
        self._measures = log.measures

    def bring_back(
        self, queue: Queue, run: Run, *, in_chunks: bool = False
    ) -> tuple[Run | Unread, Run | None]:
        """Read back the messages of a run that was taken, if they have left memory meanwhile.

        Returns the run as far as it was read, which is all of it or about 1 MiB, and the rest of
        it, a run of its own, if there is one. If the first message cannot be read, the error takes
        its place, as in `take`: then it is in quarantine, and in no run any more; but with a
        ReadLaterError the run is unchanged, and is the rest. With `in_chunks` so it is while a
        large message is being read (PartlyReadError), which takes some calls.
        """
        if run.messages is not None:
            return run, None
        messages = self.reader.read_back(run, 0, run.count, in_chunks=in_chunks)
        if isinstance(messages, ReadLaterError):
            return messages, run
        if run.account is not None:
            run.account.remove(run)
        count = len(messages) if isinstance(messages, list) else 1
        part, rest = (run.split(count), run) if count < run.count else (run, None)
        if isinstance(messages, MessageDamagedError):
            # When it can be read again it has to be marked as delivered.
            part.delivery_count = max(part.delivery_count, 1)
            if rest is not None:
                queue.unloaded.add(rest)
            self.quarantine.set_aside(queue, part, messages)
            return messages, rest
        if rest is not None:
            queue.unloaded.add(rest)
        # The messages come back before the run is counted as unacked, by the memory that it has
        # then.
        self.fill(part, messages)
        self._unacked.add(queue, part)
        return part, rest

    def read(self, run: Run) -> list[Message]:
        """Return the messages of a run that can be read. They are not kept in memory."""
        if run.messages is not None:
            return run.messages
        messages: list[Message] = []
        index = 0
        while index < run.count:
            found = self.reader.read_back(run, index, run.count - index)
            if not isinstance(found, list):
                self.quarantine.note_skipped(None, found)
                index += 1
            else:
                index += len(found)
                messages += found
        return messages

    def read_all(self, run: Run) -> list[Message]:
        """Return all messages of a run. Raises: ReadLaterError, MessageDamagedError."""
        if run.messages is not None:
            return run.messages
        messages: list[Message] = []
        while len(messages) < run.count:
            found = self.reader.read_back(run, len(messages), run.count - len(messages))
            if not isinstance(found, list):
                raise found
            messages += found
        return messages

    def chunks(self, run: Run) -> Iterator[list[Message]]:
        """Yield all messages of a run in parts, and an empty list where others may have their turn
        before a large message is read on.

        Raises: ReadLaterError, MessageDamagedError.
        """
        if run.messages is not None:
            yield run.messages
            return
        index = 0
        while index < run.count:
            found = self.reader.read_back(run, index, run.count - index, in_chunks=True)
            if isinstance(found, PartlyReadError):
                yield []
            elif isinstance(found, list):
                index += len(found)
                yield found
            else:
                raise found

    def browse(self, queue: Queue) -> Iterator[list[Message]]:
        """Yield all messages that are ready now, in order; they stay in the queue.

        At a time about 1 MiB, and no more than some thousand messages.

        Messages that cannot be read are logged and left out. The queue may change in between, but
        only at its ends: what has left its head when its turn comes is left out.
        """
        position = 0
        # What is published from here on is not part of it: a copy of a queue into itself would
        # never end.
        stop = queue.next_sequence
        while position < stop and not queue.deleted:
            files = queue.paged_between(position, stop)
            paged: list[Run] = []
            end = stop
            if files:
                end = files[0].end
                try:
                    paged = self.paging.runs_of(queue, files[0])
                except (DamageError, OSError) as error:
                    self.paging.note_file(queue, files[0], error)
            # Those of the queue may grow, shrink, or leave memory.
            in_memory = [
                _copy_of(run) for run in queue.ready.between(position, end) if run.end > position
            ]
            # Messages in memory only may lie between those in an index file.
            for run in sorted([*paged, *in_memory], key=attrgetter("first_sequence")):
                for sequence, part in self._bodies_of(queue, run):
                    gone = max(queue.first_sequence - sequence, 0)
                    if gone < len(part):
                        yield part[gone:] if gone else part
            position = max(end, in_memory[-1].end if in_memory else 0)

    def _bodies_of(self, queue: Queue, run: Run) -> Iterator[tuple[int, list[Message]]]:
        """Yield the messages of a ready run in parts, each with its first sequence."""
        first = run.first_sequence
        if run.messages is not None:
            for index in range(0, run.count, _MAX_BROWSED):
                yield first + index, run.messages[index : index + _MAX_BROWSED]
            return
        index = 0
        while index < run.count:
            found = self.reader.read_back(run, index, min(run.count - index, _MAX_BROWSED))
            if not isinstance(found, list):
                self.quarantine.note_skipped(queue.definition, found)
                index += 1
            else:
                yield first + index, found
                index += len(found)

    def peek_behind(self, queue: Queue, first_sequence: int) -> Message | None:
        """Return the first ready message from a sequence on; None if it cannot be read."""
        for run in queue.ready:
            if run.end > first_sequence:
                index = max(first_sequence - run.first_sequence, 0)
                if run.messages is not None:
                    return run.messages[index]
                return self.read_one(run, index)
        return None

    def read_one(self, run: Run, index: int) -> Message | None:
        """Return one message of a run that is on disk; None if it cannot be read."""
        found = self.reader.read_back(run, index, 1)
        return found[0] if isinstance(found, list) else None

    def read_again(self, make_ready: Callable[[Queue, Run], None]) -> dict[Queue, int]:
        """Read what can be read of what could not: see `Store.read_again`."""
        counts: dict[Queue, int] = {}
        self.reader.drop_abandoned()
        if (readable := self.quarantine.readable()) is None:
            return counts
        messages, index_files = readable
        # The run goes back to its old place, by its sequence: it is older than what was served
        # meanwhile.
        for queue, run in messages:
            make_ready(queue, run)
            counts[queue] = counts.get(queue, 0) + run.count
        with contextlib.suppress(DamageError, OSError, MemoryError):
            for queue, file in index_files:
                # It has no state any more if all of it was acked, in the log that a start read, and
                # a checkpoint could read it before.
                runs = self.paging.runs_of(queue, file) if file.number in queue.index else []
                queue.could_read(file, runs)
                if runs:
                    counts[queue] = counts.get(queue, 0) + sum(run.count for run in runs)
        self.sizes.count_again()
        for queue, count in counts.items():
            _log.info("%d messages of queue %d can be read again", count, queue.id)
        return counts

    def fill(self, run: Run, messages: list[Message]) -> None:
        """Attach messages that were read to their run."""
        self._measures.read_messages += len(messages)
        if run.first_id >= FIRST_TRANSIENT:
            self.reader.release_transient(run)
            run.first_id = 0
        run.bring_back(messages)


def _copy_of(run: Run) -> Run:
    """Return a run with the same messages, which stays as it is."""
    return Run(
        run.first_sequence, run.count, first_id=run.first_id, ids=run.ids, messages=run.messages
    )
