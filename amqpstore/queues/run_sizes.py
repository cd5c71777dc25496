"""Sizes of the bodies of runs: counted, looked up in index files and the log, or read."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator

from amqpstore.errors import DamageError
from amqpstore.format.runs import Run, body_bytes
from amqpstore.log.log import Log
from amqpstore.queues.body_reader import BodyReader
from amqpstore.queues.body_sizes import BodySizes
from amqpstore.queues.paging import Paging
from amqpstore.queues.queue import Queue
from amqpstore.queues.transient import FIRST_TRANSIENT

_BYTES_OF_ONE = 512
"""Reading each of these bytes of bodies costs as much as another message."""


class RunSizes:
    """Finds the sizes of bodies in one store, by the cheapest way that knows them.

    `Run.body_bytes` is a sum, and 0 while it is unknown: a run that is to be split or counted is
    measured before, so that `Queue.ready_bytes` stays the sum of its runs.

    Args: max_cost, in messages, after which `measuring` lets others have their turn.
    """

    def __init__(self, reader: BodyReader, paging: Paging, log: Log, max_cost: int) -> None:
        self._reader = reader
        self._paging = paging
        self._log = log
        self._max_cost = max_cost
        self._indexed = BodySizes(paging.reader)
        self._uncounted: list[Queue] = []

    def run_bytes(self, run: Run) -> int:
        """Return the bytes in the bodies of a run, as far as it can be read."""
        if run.messages is not None or run.body_bytes:
            return run.body_bytes
        total = counted = 0
        while counted < run.count:
            found = self._reader.read_back(run, counted, run.count - counted)
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
        total, unknown = self._indexed.total(queue, on_disk)
        total += sum(run.body_bytes for run in queue.ready) + sum(map(self.run_bytes, unknown))
        for file in queue.paged:
            if file.body_bytes is not None:
                total += file.body_bytes
                continue
            try:
                runs = self._paging.runs_of(queue, file)
            except (DamageError, OSError) as error:
                self._paging.note_file(queue, file, error)
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
            if cost >= self._max_cost:
                cost = 0
                yield

    def _measured(self, queue: Queue) -> Iterator[int]:
        """Do the work of `measuring`. Yields how many messages a part of it cost."""
        for number in [*queue.index]:
            # Meanwhile a file may be merged into another one, or dropped.
            if (state := queue.index.get(number)) and self._indexed.fill(queue, state):
                yield state.end - state.first
        for run in [run for run in queue.ready if run.messages is None and not run.body_bytes]:
            yield from self._measured_run(queue, run)

    def _measured_run(self, queue: Queue, run: Run) -> Iterator[int]:
        """Find the size of the bodies of a run that is in no index file: they are read."""
        first, count = run.first_sequence, run.count
        total = index = 0
        while index < count:
            found = self._reader.read_back(run, index, count - index)
            size = body_bytes(found) if isinstance(found, list) else 0
            read = len(found) if isinstance(found, list) else 1
            index += read
            total += size
            yield read + size // _BYTES_OF_ONE
            # The run was taken, split or joined meanwhile, so this sum is wrong for it.
            if queue.ready.at(first) is not run or run.messages is not None or run.count != count:
                return
        run.body_bytes = total

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
                found = self._reader.read_back(run, len(sizes), run.count - len(sizes))
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
            sizes = self._indexed.of(queue, run.first_sequence, count)
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
        self._indexed.has_failed = False
        for run in queue.ready:
            if run.messages is None:
                if not run.body_bytes and run.first_id < FIRST_TRANSIENT:
                    sizes = self._sizes_of(queue, run)
                    # Unknown sizes are said to be unknown, and not counted as zero.
                    queue.is_sized = queue.is_sized and sizes is not None
                    run.body_bytes = sum(sizes or ())
                queue.stored_count += run.count
                queue.stored_bytes += run.body_bytes
            queue.ready_bytes += run.body_bytes
        if self._indexed.has_failed:
            self._uncounted.append(queue)

    def count_again(self) -> None:
        """Count what is ready in one of the queues whose index files could not be read for it."""
        if self._uncounted:
            queue = self._uncounted.pop(0)
            if not queue.deleted and not queue.is_sized:
                self.count_ready(queue)
