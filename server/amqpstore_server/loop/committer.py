"""The committer: has batches written and synced, and completes them once they are durable.

Batches are sealed and completed on trio's thread, which owns the store. A small batch is appended
there as well, and the kernel syncs it in the background, as long as that is faster: so a publish
that is alone waits for no other thread. All other batches go to a thread, which only runs
`Log.write`. Either way, what arrives during one sync becomes the next batch.

No thread waits for a leader's followers: whichever hears that they have a batch wakes trio's.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import trio

from amqpstore import DurabilityError, Store
from amqpstore.log.batch import Batch
from amqpstore.system.datasyncs import Datasyncs
from amqpstore.system.durability import reason_of

_TRY_OTHER_EVERY = 64
_WEIGHT = 1 / 16
"""How much the last batch counts in the mean time of a way to sync."""

_log = logging.getLogger(__name__)


class _Written(NamedTuple):
    """A batch that the thread has finished, and the error if it is not durable."""

    batch: Batch
    failure: BaseException | None


class Ways:
    """The choice between two ways to sync a small batch, by which has been faster lately: the
    kernel or the thread.

    On a machine with time to spare it is the kernel, which waits for no thread of this process. On
    one that is busy the kernel's own workers may wait for a processor much longer than a thread
    does. So each is measured: now and then the slower one is used as well.
    """

    def __init__(self) -> None:
        self._mean_s: dict[bool, float] = {}
        self._count = 0

    def next_in_kernel(self) -> bool:
        """Return whether the next batch is the kernel's."""
        self._count += 1
        mean_s = self._mean_s
        faster = mean_s.get(True, 0.0) <= mean_s.get(False, math.inf)
        return faster if self._count % _TRY_OTHER_EVERY else not faster

    def took(self, seconds: float, *, in_kernel: bool) -> None:
        """Note how long a batch took."""
        mean_s = self._mean_s.get(in_kernel, seconds)
        self._mean_s[in_kernel] = mean_s + (seconds - mean_s) * _WEIGHT


class Committer:
    """Makes batches durable, back to back.

    Args: on_written, called by its thread when a batch was written, or, if followers have it later,
    by the thread that hears of that: it has `complete_written` called soon, in the thread that owns
    the store; on_completed, called there after each batch; max_pending_bytes, the bytes that wait
    for the disk from which on publishers have to wait; datasyncs, for small batches: the signal of
    their end has `complete_written` called as well; housekeep_s, the least time between two rounds
    of housekeeping: under load batches are written more often than that, and each check of the disk
    would delay them; watch_s, how often the thread is checked.
    """

    def __init__(
        self,
        store: Store,
        on_written: Callable[[], None],
        on_completed: Callable[[], None],
        *,
        max_pending_bytes: int,
        datasyncs: Datasyncs | None = None,
        housekeep_s: float = 0.02,
        watch_s: float = 1.0,
    ) -> None:
        self._max_pending_bytes = max_pending_bytes
        self._housekeep_s = housekeep_s
        self._watch_s = watch_s
        self._store = store
        self._log = store.log
        self._on_written = on_written
        self._on_completed = on_completed
        self._datasyncs = datasyncs
        self._syncing: Batch | None = None
        """The batch that the kernel syncs, until it is durable wherever it has to be."""
        self._written_here: Batch | None = None
        """The batch that the thread has written, and followers have still to take."""
        self._ways = Ways()
        self._in_kernel: bool | None = None
        """Whether the kernel syncs the small batch that is being written; None if it is not a small
        one.
        """
        self._began_s = 0.0
        self._batches: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._written: queue.SimpleQueue[_Written] = queue.SimpleQueue()
        self._failure: DurabilityError | None = None
        self._is_stopping = False
        self.has_room = True
        """Whether publishers may continue, as far as bytes that wait for the disk are concerned; as
        of the last `commit`, which is at the end of each round of reads."""
        self._housekeep_at = 0.0
        self._failed = trio.Event()
        store.log.on_committed(on_written)
        self._thread = threading.Thread(target=self._write_batches, name="committer", daemon=True)
        self._thread.start()

    def commit(self, *, promised_only: bool = False) -> None:
        """Hand over the open batch, unless it is empty or another one is being written.

        With `promised_only`, only if it holds messages or somebody waits for it: acks alone promise
        nothing, and may wait to be written together with others.
        """
        log = self._log
        if log.under_way:
            self.has_room = log.pending_bytes < self._max_pending_bytes
            return
        self.has_room = True
        if self._failure or (promised_only and not log.is_promised):
            return
        if batch := log.seal(self._store.clock.wall_ms()):
            self.has_room = batch.byte_count < self._max_pending_bytes
            self._write(batch)

    def _write(self, batch: Batch) -> None:
        """Start writing a batch: here if that does not take long, else in the thread."""
        if self._datasyncs is None or not batch.is_small:
            self._in_kernel = None
            self._batches.put(batch)
            return
        self._in_kernel = self._ways.next_in_kernel()
        self._began_s = time.perf_counter()
        try:
            if self._in_kernel and self._log.start_write(batch, self._datasyncs):
                self._syncing = batch
            else:
                self._batches.put(batch)
        except DurabilityError as failure:
            self._written.put(_Written(batch, failure))
            self._on_written()

    def _complete_synced(self, datasyncs: Datasyncs, batch: Batch, *, wait: bool = False) -> None:
        """Complete the batch that the kernel syncs, if it has."""
        failure: BaseException | None = None
        try:
            if not self._log.finish_write(batch, datasyncs, wait=wait):
                return
        except DurabilityError as error:
            failure = error
        self._syncing = None
        self._complete(batch, failure)

    def flush(self) -> None:
        """Make everything done so far durable, before this returns.

        It blocks everything else: use it only for changes that a crash must not undo once a
        following step is durable by other means.
        Raises: DurabilityError.
        """
        while not self._failure and not (self._log.is_idle and self._log.is_empty):
            if self._is_stopping:
                self._fail(RuntimeError("the committer was closed"))
                break
            self.commit()
            if self._datasyncs and self._syncing:
                self._complete_synced(self._datasyncs, self._syncing, wait=True)
                continue
            if self._written_here:
                self._complete_written_here(self._written_here, wait=True)
                continue
            try:
                written = self._written.get(timeout=self._watch_s)
            except queue.Empty:
                self._check_thread()
            else:
                self._take_written(*written)
        if self._failure:
            raise self._failure

    async def watch(self) -> None:
        """Run until the disk fails. Raises: DurabilityError."""
        while not self._failure:
            with trio.move_on_after(self._watch_s):
                await self._failed.wait()
            self._check_thread()
        raise self._failure

    def stop(self) -> None:
        """Make everything durable and end the thread. Raises: DurabilityError."""
        try:
            self.flush()
        finally:
            self.close()
            self._thread.join()  # it has nothing left to write

    def close(self) -> None:
        """Have the thread end, without waiting for it: nothing more is to be made durable."""
        self._is_stopping = True
        self._batches.put(None)

    def housekeep(self) -> None:
        """Let the store start background work and take over its results. To be called now and
        then.
        """
        try:
            if not self._failure:
                self._store.upkeep.housekeep()
        except OSError as error:
            _log.error("background work is postponed: %s", reason_of(error))
        except Exception as error:  # noqa: BLE001 (it ends the broker)
            self._fail(error)

    def complete_written(self) -> None:
        """Complete the batches that were written, if `flush` has not done so already."""
        if self._datasyncs and self._syncing:
            self._complete_synced(self._datasyncs, self._syncing)
        while not self._written.empty():
            self._take_written(*self._written.get())
        if self._written_here:
            self._complete_written_here(self._written_here)

    def _take_written(self, batch: Batch, failure: BaseException | None) -> None:
        if failure:
            self._complete(batch, failure)
        else:
            self._written_here = batch

    def _complete_written_here(self, batch: Batch, *, wait: bool = False) -> None:
        """Complete a batch that the thread has written, if it is committed."""
        failure: BaseException | None = None
        try:
            if not self._log.is_committed(batch, wait=wait):
                return
        except DurabilityError as error:
            failure = error
        self._written_here = None
        self._complete(batch, failure)

    def _complete(self, batch: Batch, failure: BaseException | None) -> None:
        if failure:
            self._fail(failure)
        else:
            if self._in_kernel is not None:
                spent_s = time.perf_counter() - self._began_s
                self._ways.took(spent_s, in_kernel=self._in_kernel)
            self._complete_durable(batch)
        self._on_completed()

    def _complete_durable(self, batch: Batch) -> None:
        try:
            self._log.complete(batch)
            self.commit(promised_only=True)
        except DurabilityError as error:
            self._fail(error)
            return
        except Exception:  # noqa: BLE001
            # A callback raised; the others have been called.
            _log.exception("a task that waited for a batch failed")
            self.commit(promised_only=True)
        if (now := time.monotonic()) >= self._housekeep_at:
            self._housekeep_at = now + self._housekeep_s
            self.housekeep()

    def _fail(self, error: BaseException) -> None:
        """Make `watch` end the broker: nothing can be made durable any more."""
        if self._failure is None:
            failure = error if isinstance(error, DurabilityError) else self._store.failure
            self._failure = failure or DurabilityError(self._store.directory, error)
        self._failed.set()

    def _check_thread(self) -> None:
        """Fail if the thread has died: nothing else would notice, and no confirm would ever be
        sent.
        """
        if not self._thread.is_alive() and not self._is_stopping and self._written.empty():
            self._fail(RuntimeError("the committer's thread has ended"))

    def _write_batches(self) -> None:
        """Run the thread: write and sync batches."""
        try:
            self._write_each()
        finally:
            if self._datasyncs:
                self._datasyncs.close()

    def _write_each(self) -> None:
        while (batch := self._batches.get()) is not None:
            failure: BaseException | None = None
            try:
                self._log.write(batch)
            except BaseException as error:  # noqa: BLE001 (raised by `watch`, in trio's thread)
                failure = error
            # Before it is asked for: whoever commits the batch right behind the answer wakes the
            # owner, who has to find it.
            self._written.put(_Written(batch, failure))
            if failure or self._is_committed(batch):
                self._on_written()
            # No batch is written behind one that is not durable: see `Log._fail`.
            if failure:
                return

    def _is_committed(self, batch: Batch) -> bool:
        """Return whether the owner can complete a batch; if not, whoever commits it wakes the owner
        then, and nothing does before: see `Log.on_committed`.
        """
        try:
            return self._log.is_committed(batch)
        except DurabilityError:
            return True  # it never will be, which the owner finds out itself
