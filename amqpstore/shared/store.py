"""`SharedStore`: the engine for programs that use it as a library, from many threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from amqpstore.catalog.catalog import LmdbCatalog, OpenCatalog
from amqpstore.format.message import MAX_NAME_BYTES
from amqpstore.options import DEFAULTS, Options
from amqpstore.queues.arguments import check_span, check_str, check_text, check_whole
from amqpstore.recovery.recovered import RecoveryReport
from amqpstore.shared.history import Consumed, HistoryLimits
from amqpstore.shared.housekeeping import Housekeeping
from amqpstore.shared.locked_store import LockedStore
from amqpstore.shared.prepared import SharedPrepared
from amqpstore.shared.queues import NamedQueue, Queues
from amqpstore.shared.transaction import SharedTransaction
from amqpstore.store import Store
from amqpstore.system.clock import SYSTEM_CLOCK, Clock
from amqpstore.system.files import Files
from amqpstore.upkeep.worker import Worker


class QueueState(NamedTuple):
    """The current state of a queue: how many messages of it and of its history are ready."""

    name: str
    ready_count: int
    history_count: int
    history_length: int | None
    history_ttl_ms: int | None


class SharedStore:
    """A store of queues by name, for all threads of one process. Created by `SharedStore.open`.

    Messages are sent and received in transactions: see `SharedTransaction`. Transactions of many
    threads that commit at the same time share one `fdatasync`. As a context manager it closes.

    All methods except `close` also raise: StoreClosedError, after `close`, after a DurabilityError,
    and after an exception such as KeyboardInterrupt during the engine's work; ForkedError in a fork
    of the process that opened it; ReenteredError, in a signal handler or a finalizer that runs
    during a call of the same thread. Whatever stopped it, committed transactions are there when it
    is opened again. A wrong argument is a TypeError or a ValueError, before anything is changed.
    """

    def __init__(self, store: Store) -> None:
        self._locked_store = LockedStore(store)
        with self._locked_store.lock:
            self._queues = Queues(self._locked_store)
        self._locked_store.on_stop = self._wake_all
        self._housekeeping: Housekeeping | None = None

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        *,
        files: Files | None = None,
        open_catalog: OpenCatalog = LmdbCatalog,
        options: Options = DEFAULTS,
        worker: Worker | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> SharedStore:
        """Open the store in `directory`, or create one in an empty directory; recover what it
        holds.

        Args: as `Store.open`; histories use `clock` as well. Without a `worker` a thread of its own
        checks about once a second whether background work is due; a caller that passes one calls
        `housekeep`.
        Raises: as `Store.open`; OtherOwnerError, if another program created the store, such as a
        broker: its queues are left as they are.
        """
        store = Store.open(
            directory,
            files=files,
            open_catalog=open_catalog,
            options=options,
            worker=worker,
            clock=clock,
        )
        try:
            shared = cls(store)
        except BaseException:
            # The store was opened and then refused: a close would write a checkpoint into somebody
            # else's store.
            store.abandon()
            raise
        if worker is None:
            shared._housekeeping = Housekeeping(shared, options.limits.housekeep_s)
        return shared

    @property
    def directory(self) -> str:
        """The data directory of the store."""
        return self._locked_store.store.directory

    @property
    def recovery_report(self) -> RecoveryReport:
        """The result of recovery at the start."""
        return self._locked_store.store.recovery_report

    def declare(
        self, name: str, *, history_length: int | None = None, history_ttl_ms: int | None = None
    ) -> None:
        """Create a queue of that name, unless it exists. Durable on return.

        With a history it keeps copies of received messages: the last `history_length`, each for
        `history_ttl_ms`; None means no limit, and both None mean no history.
        Raises: QueueDiffersError, if it exists with another history; DurabilityError.
        """
        check_text("a queue name", name, MAX_NAME_BYTES)
        limits = HistoryLimits(
            *(
                None if limit is None else check_whole("a history limit", limit, 1)
                for limit in (history_length, history_ttl_ms)
            )
        )
        with self._locked_store.working():
            self._queues.declare(name, limits)

    def find(self, name: str) -> QueueState | None:
        """Return the queue of that name, if it exists."""
        check_str("a queue name", name)
        return next((queue for queue in self.queues() if queue.name == name), None)

    def queues(self) -> list[QueueState]:
        """Return all queues."""
        with self._locked_store.working():
            return [_state(named) for named in self._queues]

    def delete(self, name: str) -> None:
        """Delete a queue with its messages and its history. Durable on return.

        Receivers that wait for a message of it get a QueueNotFoundError.
        Raises: QueueNotFoundError, DurabilityError.
        """
        check_str("a queue name", name)
        with self._locked_store.working():
            self._queues.delete(name)

    def transaction(self) -> SharedTransaction:
        """Return a transaction, to be used in a `with` statement."""
        return SharedTransaction(self._locked_store, self._queues)

    def prepared(self) -> list[SharedPrepared]:
        """Return all transactions that wait for a decision, oldest first."""
        with self._locked_store.working() as store:
            found = [store.prepared[key] for key in sorted(store.prepared)]
        return [SharedPrepared(self._locked_store, self._queues, prepared) for prepared in found]

    def history(
        self, name: str, *, first_ms: int = 0, last_ms: int | None = None
    ) -> Iterator[Consumed]:
        """Yield what was received from a queue between two times, ms since 1970, both included.

        Oldest first, and read as it is requested: later additions and removals may be seen or not.
        Raises: QueueNotFoundError.
        """
        check_str("a queue name", name)
        check_span(first_ms, last_ms)
        with self._locked_store.working():
            history = self._queues.get(name).history
        return history.browse(self._locked_store, first_ms, last_ms) if history else iter(())

    def housekeep(self) -> None:
        """Start background work that is due, and finish what is done, without waiting for either.

        Each commit does so too.
        Raises: DurabilityError.
        """
        with self._locked_store.working() as store:
            store.upkeep.housekeep()
            for queue, count in store.read_again().items():
                if named := self._queues.of_id(queue.id):
                    named.arrivals.arrived(count)

    def close(self) -> None:
        """Close the store. In a fork it does nothing, as the store belongs to the other process.

        Open transactions are rolled back; waiting receivers get a StoreClosedError.
        Raises: DurabilityError, ReenteredError.
        """
        # Upkeep ends before the close: its thread must not call a closed store.
        self._stop_housekeeping()
        self._locked_store.close()

    def abandon(self) -> None:
        """Close the files and write nothing more: this leaves what a crash would leave."""
        self._stop_housekeeping()
        self._locked_store.abandon()

    def _stop_housekeeping(self) -> None:
        self._locked_store.check_entry()
        # The thread does not exist in a fork, and may have held a lock of its own at that moment.
        if self._housekeeping and not self._locked_store.is_forked:
            self._housekeeping.stop()

    def __enter__(self) -> SharedStore:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _wake_all(self) -> None:
        for named in self._queues:
            named.arrivals.wake_all()


def _state(named: NamedQueue) -> QueueState:
    copies = named.history.queue.ready_count if named.history else 0
    return QueueState(named.name, named.queue.ready_count, copies, *named.limits)
