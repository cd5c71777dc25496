"""A store for many threads: one lock around it, and one `fdatasync` for all that wait for one.

The engine is for one thread at a time, so everything is done under the lock, except the write and
the sync of a batch: what other threads do meanwhile is the next batch. There is no extra thread for
that: one of the waiting threads leads: it seals the batch that they are all in, writes it, tells
the others that it is durable, and wakes one of the next batch.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from amqpstore.errors import (
    DurabilityError,
    ForkedError,
    ReenteredError,
    StoreClosedError,
    StoreError,
)
from amqpstore.store import Store

_log = logging.getLogger(__name__)


class _Ticket:
    """A thread's wait until its commit is durable."""

    __slots__ = ("is_durable", "wake")

    def __init__(self, lock: threading.Lock) -> None:
        self.is_durable = False
        self.wake = threading.Condition(lock)

    def completed(self) -> None:
        """Note that its batch is durable."""
        self.is_durable = True
        self.wake.notify()


class LockedStore:
    """A store and its lock.

    `on_stop` is called, under the lock, when no more can be done: after `close`, a failed disk, or
    an exception during the engine's work.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.lock = threading.Lock()
        self.on_stop: Callable[[], None] | None = None
        self._process = os.getpid()
        # Threads that are in a call. A set's methods are atomic.
        self._inside: set[int] = set()
        self._waiting: deque[_Ticket] = deque()
        self._is_writing = False
        self._written = threading.Condition(self.lock)
        self._stopped: StoreError | None = None

    @property
    def is_forked(self) -> bool:
        """Whether this is not the process that opened the store."""
        return os.getpid() != self._process

    @contextmanager
    def locked(self) -> Iterator[Store]:
        """Hold the lock. Raises: ForkedError, ReenteredError, StoreClosedError."""
        if self.is_forked:
            # Before the lock: it may have been held by a thread that the fork does not have.
            raise ForkedError(self.store.directory, self._process)
        with self._entered(), self.lock:
            self.check_open()
            yield self.store

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """Note that this thread is in a call, as long as it is. Raises: ReenteredError."""
        # A signal handler or a finalizer runs within whatever its thread does. In a call of this
        # store it would wait for the lock that the thread holds, for the batch that it writes, or
        # as the next leader while the thread is the one that was woken: each for ever. So not the
        # lock's holder counts, but who has not returned yet.
        self.check_entry()
        thread = threading.get_ident()
        try:
            self._inside.add(thread)
            yield
        finally:
            self._inside.discard(thread)

    def check_entry(self) -> None:
        """Raises: ReenteredError, if this thread is in a call already."""
        if threading.get_ident() in self._inside:
            raise ReenteredError(self.store.directory)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Work with the engine, under the lock: an unexpected error ends all work.

        KeyboardInterrupt is one. The data on disk is right, the state in memory perhaps not.
        """
        try:
            yield
        except DurabilityError as error:
            self._stop(error)
            raise
        except ReenteredError as error:
            # Not the engine's own: a signal handler raised it, anywhere.
            self._stop(self._interrupted(error))
            raise
        except StoreError:
            raise
        except BaseException as error:
            self._stop(self._interrupted(error))
            raise

    @contextmanager
    def working(self) -> Iterator[Store]:
        """`locked` and `guarded`."""
        with self.locked() as store, self.guarded():
            yield store

    def check_open(self) -> None:
        """Raises: StoreClosedError."""
        if self._stopped is not None:
            raise StoreClosedError(str(self._stopped))

    def wait_durable(self) -> None:
        """Return once everything done so far is durable; with the lock, but not `guarded`.

        Raises: DurabilityError, StoreClosedError; then it is unknown whether it is durable.
        """
        ticket = _Ticket(self.lock)
        self.store.log.when_durable(ticket.completed)
        while not ticket.is_durable:
            # Whoever waited has something that may or may not be on disk, and has to be told so;
            # any other call only hears that the store is closed.
            if isinstance(self._stopped, DurabilityError):
                # One for each thread: it keeps its traceback.
                raise DurabilityError(self._stopped.path, self._stopped.cause)
            self.check_open()
            if self._is_writing:
                self._wait(ticket)
            else:
                self._write()

    def close(self) -> None:
        """Wait for a writing thread, and close the store.

        Raises: ReenteredError, DurabilityError.
        """
        if self.is_forked:
            return  # It belongs to the other process.
        with self._entered(), self.lock:
            # The writing thread is in a system call without the lock, and the files are still its
            # own.
            while self._is_writing:
                self._written.wait()
            if not self._stopped:
                with self.guarded():
                    self.store.close()  # Those who wait are in the batch that this writes.
                self._stop(self._closed("is closed"))
            self.store.abandon()

    def abandon(self) -> None:
        """Close the files and write nothing more: see `Store.abandon`."""
        if self.is_forked:
            return
        with self._entered(), self.lock:
            while self._is_writing:
                self._written.wait()
            self._stop(self._closed("is closed"))
            self.store.abandon()

    def _write(self) -> None:
        """Lead: make the open batch durable."""
        log = self.store.log
        self._is_writing = True
        try:
            with self.guarded():
                batch = log.seal(self.store.clock.wall_ms())
                if batch is None:
                    raise RuntimeError("a caller waits for an empty batch")
                # What other threads commit during the sync is the next batch.
                self.lock.release()
                try:
                    log.write(batch)
                finally:
                    self.lock.acquire()
                log.complete(batch)
                self.store.upkeep.housekeep()
        finally:
            # This happens after a failure as well, or the next thread would wait for ever.
            self._is_writing = False
            self._written.notify_all()
            self._wake_next()

    def _wait(self, ticket: _Ticket) -> None:
        """Wait for the leader, perhaps to lead next."""
        self._waiting.append(ticket)
        try:
            ticket.wake.wait()
        except BaseException:
            # It was interrupted, and may have been the one that should lead.
            self._remove(ticket)
            if not self._is_writing:
                self._wake_next()
            raise
        self._remove(ticket)

    def _remove(self, ticket: _Ticket) -> None:
        if ticket in self._waiting:
            self._waiting.remove(ticket)

    def _wake_next(self) -> None:
        """Wake one of those whose batch is still open, to lead."""
        while self._waiting and self._waiting[0].is_durable:
            self._waiting.popleft()  # It was woken, and has not run yet.
        if self._waiting:
            self._waiting[0].wake.notify()

    def _interrupted(self, error: BaseException) -> StoreClosedError:
        return self._closed(
            f"was interrupted while it changed its state ({error!r}); open it again"
        )

    def _closed(self, why: str) -> StoreClosedError:
        return StoreClosedError(f"the store in {self.store.directory} {why}")

    def _stop(self, reason: StoreError) -> None:
        if self._stopped is not None:
            return
        self._stopped = reason
        # All threads are woken: each finds out in `wait_durable` why its batch is not durable.
        for ticket in self._waiting:
            ticket.wake.notify()
        if self.on_stop:
            self.on_stop()
