"""Messages that are on disk: read back for runs that are ready, and for those that were taken.

A run of a queue that is ready or unacked may have its messages in memory or not. Here are all ways
to have them again, and what happens if they cannot be read: the messages of a run go to quarantine,
and are tried again. Nothing here is on the path of a message that stays in memory.
"""

from __future__ import annotations

import contextlib
import logging
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from operator import attrgetter

from amqpstore.catalog.backing import Backing
from amqpstore.catalog.catalog import Value
from amqpstore.errors import DamageError, MessageDamagedError, PartlyReadError, ReadLaterError
from amqpstore.format.index import Entries, IndexReader, PagedFile, live_runs
from amqpstore.format.message import Message
from amqpstore.format.runs import Run, body_bytes
from amqpstore.log.large_reads import LargeReads
from amqpstore.log.log import Log
from amqpstore.log.segments import Unread
from amqpstore.queues.arguments import check_queue
from amqpstore.queues.body_sizes import BodySizes
from amqpstore.queues.memory import Memory
from amqpstore.queues.queue import Queue
from amqpstore.queues.rereading import Rereading, UnreadLog
from amqpstore.queues.transient import FIRST_TRANSIENT, TransientLog
from amqpstore.system.clock import Clock
from amqpstore.system.descriptors import is_shortage
from amqpstore.system.filenames import index_path

_log = logging.getLogger(__name__)

_MAX_BROWSED = 2048
"""Messages in one part of what `browse` returns."""

_READ_BYTES = 1 << 20
"""How many bytes of bodies are read at a time."""

_BYTES_OF_ONE = 512
"""Reading each of these bytes of bodies costs as much as another message."""


class StoredRuns:
    """The messages of the runs of one store.

    Args: log, in which they are, or transient, if they are not logged; rereading, which retries
    what could not be read.
    """

    def __init__(
        self, backing: Backing, log: Log, transient: TransientLog, memory: Memory, clock: Clock
    ) -> None:
        self._directory = backing.directory
        self._log = log
        self._transient = transient
        self._unacked = memory.unacked
        self._index = IndexReader(backing.files, backing.directory, backing.seed)
        self._body_sizes = BodySizes(self._index)
        self._measured_messages = backing.limits.measured_messages
        self._large = LargeReads(backing.limits.read_part_bytes, clock)
        self._rereading = Rereading(self.read_back, self._forget_damage, clock)
        self.unread_log = UnreadLog(clock)
        self._uncounted: list[Queue] = []

    def bring_back(
        self, queue: Queue, run: Run, *, in_parts: bool = False
    ) -> tuple[Run | Unread, Run | None]:
        """Read back the messages of a run that was taken, if they have left memory meanwhile.

        Returns the run as far as it was read, which is all of it or about 1 MiB, and the rest of
        it, a run of its own, if there is one. If the first message cannot be read, the error takes
        its place, as in `take`: then it is in quarantine, and in no run any more; but with a
        ReadLaterError the run is unchanged, and is the rest. With `in_parts` so it is while a large
        message is being read (PartlyReadError), which takes some calls.
        """
        if run.messages is not None:
            return run, None
        messages = self.read_back(run, 0, run.count, in_parts=in_parts)
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
            self.set_aside(queue, part, messages)
            return messages, rest
        if rest is not None:
            queue.unloaded.add(rest)
        self.fill(part, messages)
        self._unacked.add(queue, part)
        return part, rest

    def read(self, run: Run) -> list[Message]:
        """Return the messages of a run that can be read. They are not kept in memory."""
        if run.messages is not None:
            return run.messages
        messages: list[Message] = []
        place = 0
        while place < run.count:
            found = self.read_back(run, place, run.count - place)
            if not isinstance(found, list):
                self._note_skipped(None, found)
                place += 1
            else:
                place += len(found)
                messages += found
        return messages

    def read_all(self, run: Run) -> list[Message]:
        """Return all messages of a run. Raises: ReadLaterError, MessageDamagedError."""
        if run.messages is not None:
            return run.messages
        messages: list[Message] = []
        while len(messages) < run.count:
            found = self.read_back(run, len(messages), run.count - len(messages))
            if not isinstance(found, list):
                raise found
            messages += found
        return messages

    def parts(self, run: Run) -> Iterator[list[Message]]:
        """Yield all messages of a run in parts, and an empty list where others may have their turn
        before a large message is read on.

        Raises: ReadLaterError, MessageDamagedError.
        """
        if run.messages is not None:
            yield run.messages
            return
        place = 0
        while place < run.count:
            found = self.read_back(run, place, run.count - place, in_parts=True)
            if isinstance(found, PartlyReadError):
                yield []
            elif isinstance(found, list):
                place += len(found)
                yield found
            else:
                raise found

    def run_bytes(self, run: Run) -> int:
        """Return the bytes in the bodies of a run, as far as it can be read."""
        if run.messages is not None or run.body_bytes:
            return run.body_bytes
        total = counted = 0
        while counted < run.count:
            found = self.read_back(run, counted, run.count - counted)
            if not isinstance(found, list):
                counted += 1
            else:
                counted += len(found)
                total += body_bytes(found)
        return total

    def ready_bytes(self, queue: Queue) -> int:
        """Return the bytes in the bodies of ready messages.

        For index files, these and the catalog have the sizes. For messages since the last
        checkpoint, or in an index file without sizes, bodies are read, about 1 MiB at a time, as
        far as they can be, and not kept.
        """
        on_disk = [run for run in queue.ready if run.messages is None and not run.body_bytes]
        total, unknown = self._body_sizes.total(queue, on_disk)
        total += sum(run.body_bytes for run in queue.ready) + sum(map(self.run_bytes, unknown))
        for file in queue.paged:
            if file.body_bytes is not None:
                total += file.body_bytes
                continue
            try:
                runs = self.runs_of(queue, file)
            except (DamageError, OSError) as error:
                self.note_file(queue, file, error)
                continue
            total += sum(map(self.run_bytes, runs))
        return total

    def measuring(self, queue: Queue) -> Iterator[None]:
        """Find the sizes of ready bodies, so that `ready_bytes` knows nearly all of them, in steps.

        The queue may change in between: what it gets meanwhile, and what is split or joined on
        disk, has to be found out by `ready_bytes`, which is a little at most.
        """
        cost = 0
        for read in self._measured(queue):
            cost += read
            if cost >= self._measured_messages:
                cost = 0
                yield

    def _measured(self, queue: Queue) -> Iterator[int]:
        """Do the work of `measuring`. Yields how many messages a part of it cost."""
        for number in [*queue.index]:
            # Meanwhile a file may be merged into another one, or dropped.
            if (state := queue.index.get(number)) and self._body_sizes.fill(queue, state):
                yield state.end - state.first
        for run in [run for run in queue.ready if run.messages is None and not run.body_bytes]:
            yield from self._measured_run(queue, run)

    def _measured_run(self, queue: Queue, run: Run) -> Iterator[int]:
        """Find the size of the bodies of a run that is in no index file: they are read."""
        first, count = run.first_sequence, run.count
        total = place = 0
        while place < count:
            found = self.read_back(run, place, count - place)
            size = body_bytes(found) if isinstance(found, list) else 0
            read = len(found) if isinstance(found, list) else 1
            place += read
            total += size
            yield read + size // _BYTES_OF_ONE
            if queue.ready.at(first) is not run or run.messages is not None or run.count != count:
                return
        run.body_bytes = total

    def browse(self, queue: Queue) -> Iterator[list[Message]]:
        """Yield all messages that are ready now, in order; they stay in the queue.

        At a time about 1 MiB, and no more than some thousand messages.

        Messages that cannot be read are logged and left out. The queue may change in between, but
        only at its ends: what has left its head when its turn comes is left out.
        """
        position = 0
        stop = queue.next_sequence
        while position < stop and not queue.deleted:
            files = queue.paged_between(position, stop)
            paged: list[Run] = []
            end = stop
            if files:
                end = files[0].end
                try:
                    paged = self.runs_of(queue, files[0])
                except (DamageError, OSError) as error:
                    self.note_file(queue, files[0], error)
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
            for place in range(0, run.count, _MAX_BROWSED):
                yield first + place, run.messages[place : place + _MAX_BROWSED]
            return
        place = 0
        while place < run.count:
            found = self.read_back(run, place, min(run.count - place, _MAX_BROWSED))
            if not isinstance(found, list):
                self._note_skipped(queue.definition, found)
                place += 1
            else:
                yield first + place, found
                place += len(found)

    def peek_behind(self, queue: Queue, first_sequence: int) -> Message | None:
        """Return the first ready message from a sequence on; None if it cannot be read."""
        for run in queue.ready:
            if run.end > first_sequence:
                place = max(first_sequence - run.first_sequence, 0)
                if run.messages is not None:
                    return run.messages[place]
                return self.read_one(run, place)
        return None

    def read_one(self, run: Run, place: int) -> Message | None:
        """Return one message of a run that is on disk; None if it cannot be read."""
        found = self.read_back(run, place, 1)
        return found[0] if isinstance(found, list) else None

    def read_again(self, make_ready: Callable[[Queue, Run], None]) -> dict[Queue, int]:
        """Read what can be read of what could not: see `Store.read_again`."""
        readable: dict[Queue, int] = {}
        self._large.drop_abandoned()
        self.unread_log.write()
        if not self._rereading.is_due():
            return readable
        for queue, run in self._rereading.messages():
            make_ready(queue, run)
            readable[queue] = readable.get(queue, 0) + run.count
        with contextlib.suppress(DamageError, OSError, MemoryError):
            for queue, file in self._rereading.index_files():
                # It has no state any more if all of it was acked, in the log that a start read, and
                # a checkpoint could read it before.
                runs = self.runs_of(queue, file) if file.number in queue.index else []
                queue.could_read(file, runs)
                if runs:
                    readable[queue] = readable.get(queue, 0) + sum(run.count for run in runs)
        self._count_again()
        for queue, count in readable.items():
            _log.info("%d messages of queue %d can be read again", count, queue.id)
        return readable

    def retry(self, queue: Queue) -> None:
        """Retry what cannot be read of a queue: see `read_again`."""
        self._rereading.add(queue)

    def measure(self, queue: Queue, run: Run) -> None:
        """Find out how many bytes the bodies of a run have, and each of them if it is on disk: it
        may be split. They are read only if neither an index file nor the log's last batches know.
        """
        if run.messages is not None or run.body_sizes is not None:
            return
        if run.body_bytes and run.count == 1:
            return
        sizes = self._sizes_of(queue, run)
        if sizes is None:
            sizes = array("I")
            while len(sizes) < run.count:
                found = self.read_back(run, len(sizes), run.count - len(sizes))
                # One that cannot be read has none, as far as that is known.
                messages = found if isinstance(found, list) else ()
                sizes.extend([len(message.body) for message in messages] or [0])
        run.body_bytes = sum(sizes)
        run.body_sizes = sizes if run.count > 1 else None

    def _sizes_of(self, queue: Queue, run: Run) -> array[int] | None:
        """Return the sizes of the bodies of a run on disk, in order; None if one is unknown."""
        if run.first_id >= FIRST_TRANSIENT:
            return None
        first_id = self._log.first_summarized_id
        if run.ids is not None:
            count = bisect_left(run.ids, first_id)
        else:
            count = min(max(first_id - run.first_id, 0), run.count)
        sizes: array[int] | None = array("I")
        if count:
            sizes = self._body_sizes.of(queue, run.first_sequence, count)
        if sizes is not None and count < run.count:
            ids = range(run.first_id, run.end_id) if run.ids is None else run.ids
            rest = self._log.body_sizes(ids[count:])
            sizes = None if rest is None else sizes + rest
        return sizes

    def count_ready(self, queue: Queue) -> None:
        """Count what is ready, without reading a body: after a start, and again while an index file
        could not be read for it.
        """
        queue.is_sized = all(file.body_bytes is not None for file in queue.paged)
        queue.ready_bytes = sum(file.body_bytes or 0 for file in queue.paged)
        queue.stored_count = queue.stored_bytes = 0
        self._body_sizes.has_failed = False
        for run in queue.ready:
            if run.messages is None:
                if not run.body_bytes and run.first_id < FIRST_TRANSIENT:
                    sizes = self._sizes_of(queue, run)
                    queue.is_sized = queue.is_sized and sizes is not None
                    run.body_bytes = sum(sizes or ())
                queue.stored_count += run.count
                queue.stored_bytes += run.body_bytes
            queue.ready_bytes += run.body_bytes
        if self._body_sizes.has_failed:
            self._uncounted.append(queue)

    def _count_again(self) -> None:
        """Count what is ready in one of the queues whose index files could not be read for it."""
        if self._uncounted:
            queue = self._uncounted.pop(0)
            if not queue.deleted and not queue.is_sized:
                self.count_ready(queue)

    def read_back(
        self, run: Run, skipped: int, count: int, *, in_parts: bool = False
    ) -> list[Message] | Unread:
        """Read back some, at least one, of the messages of a run that is on disk.

        With `in_parts`, a large message may need some calls: PartlyReadError until then.
        """
        began_s = time.perf_counter()
        found = self._read_back(run, skipped, count, in_parts=in_parts)
        measures = self._log.measures
        measures.read_count += 1
        measures.read_s += time.perf_counter() - began_s
        if isinstance(found, list):
            measures.read_bytes += body_bytes(found)
        return found

    def _read_back(
        self, run: Run, skipped: int, count: int, *, in_parts: bool
    ) -> list[Message] | Unread:
        if run.ids is not None:
            return self._read_spread(run, skipped, count, in_parts=in_parts)
        first_id = run.first_id + skipped
        log = self._transient if first_id >= FIRST_TRANSIENT else self._log
        if in_parts:
            return self._large.read(log, first_id, count)
        return log.read(first_id, count)

    def _read_spread(
        self, run: Run, skipped: int, count: int, *, in_parts: bool
    ) -> list[Message] | Unread:
        """Read back messages whose ids are not contiguous, about as many bytes as of others."""
        messages: list[Message] = []
        size = 0
        while len(messages) < count and size < _READ_BYTES:
            place = skipped + len(messages)
            stretch = run.contiguous_from(place, skipped + count - place)
            first_id = run.id_at(place)
            if in_parts:
                found = self._large.read(self._log, first_id, stretch)
            else:
                found = self._log.read(first_id, stretch)
            if not isinstance(found, list):
                return messages or found
            messages += found
            size += body_bytes(found)
        return messages

    def fill(self, run: Run, messages: list[Message]) -> None:
        """Attach messages that were read to their run."""
        self._log.measures.read_messages += len(messages)
        if run.first_id >= FIRST_TRANSIENT:
            self.release_transient(run)
            run.first_id = 0
        run.bring_back(messages)

    def quarantine(self, queue: Queue, run: Run) -> None:
        """Put messages that cannot be read and are in no run any more in quarantine, to be tried
        again.
        """
        run.let_go()
        if queue.deleted:
            self.release_transient(run)
        else:
            queue.quarantined.insert(run)
            self._rereading.add(queue)

    def _forget_damage(self) -> None:
        """Look again at what could not be read."""
        self._log.forget_damage()
        self._transient.forget_damage()

    def runs_of(self, queue: Queue, file: PagedFile) -> list[Run]:
        """Return what is ready and in an index file only. Raises: DamageError, OSError."""
        state = queue.index[file.number]
        runs = live_runs(self.entries_of(queue, file), state, file.first, file.end)
        queue.check_apart(runs, index_path(self._directory, queue.id, file.number))
        return runs

    def entries_of(self, queue: Queue, file: PagedFile) -> Entries:
        """Return all entries of an index file, also those that are acked. Raises: DamageError,
        OSError.
        """
        return self._index.entries(queue.id, queue.index[file.number])

    def page_in(self, queue: Queue, file: PagedFile) -> Unread | None:
        """Read what is in an index file only into memory."""
        try:
            runs = self.runs_of(queue, file)
        except (DamageError, OSError, MemoryError) as error:
            if is_shortage(error):
                path = index_path(self._directory, queue.id, file.number)
                return ReadLaterError(path, str(error) or "out of memory")
            queue.cannot_read(file)
            self._rereading.add(queue)
            return self.note_file(queue, file, error)
        queue.paged_in(file, runs)
        return None

    def read_index(self, queue: Queue) -> None:
        """Read everything that is ready, except bodies, into memory, to inspect `queue.ready`.

        Raises: ReadLaterError.
        """
        check_queue(queue)
        while queue.paged:
            if isinstance(error := self.page_in(queue, queue.paged[0]), ReadLaterError):
                raise error

    def set_aside(self, queue: Queue, run: Run, error: MessageDamagedError) -> None:
        """Put a run that cannot be read into quarantine, and note it for the log."""
        self.unread_log.note(queue.definition, error)
        self.quarantine(queue, run)

    def note_file(self, queue: Queue, file: PagedFile, error: Exception) -> MessageDamagedError:
        """Note for the log that an index file cannot be read. Returns the messages' error."""
        path = index_path(self._directory, queue.id, file.number)
        found = MessageDamagedError(
            0,
            f"{file.live} messages of its queue: {error}",
            file.body_bytes or 0,
            path=path,
            message_count=file.live,
        )
        self.unread_log.note(queue.definition, found)
        return found

    def _note_skipped(self, definition: Value, found: Unread) -> None:
        """Note for the log that a message is left out. One that can be read later is, too."""
        if isinstance(found, ReadLaterError):
            found = MessageDamagedError(0, str(found))
        self.unread_log.note(definition, found)

    def release_transient(self, run: Run) -> None:
        """Release the messages of a run that are in `transient/`."""
        if run.first_id >= FIRST_TRANSIENT:
            self._transient.release(run.first_id, run.count)


def _copy_of(run: Run) -> Run:
    """Return a run with the same messages, which stays as it is."""
    return Run(
        run.first_sequence, run.count, first_id=run.first_id, ids=run.ids, messages=run.messages
    )
