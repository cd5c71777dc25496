"""The store: queues of messages in a directory, and the one face of everything in this package.

Synchronous and single-threaded, but for `Log.write`, which may run in a thread of its own.
Changes take effect in memory at once and enter the open batch of the log; they are durable once
that batch is. A caller that has promised something registers with `when_durable` and then either
calls `sync`, or drives the batches itself: `seal`, `write`, `settle` (see `log`).
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Sequence

from amqpstore import marker
from amqpstore.catalog import Catalog, Change, LmdbCatalog, Value
from amqpstore.errors import DamageError, MessageDamagedError, StoreClosedError, StoreLockedError
from amqpstore.filenames import CATALOG, LOCK, SEGMENTS
from amqpstore.files import Files, Lock, OsFiles
from amqpstore.log import Batch, Log
from amqpstore.message import Message
from amqpstore.queue import Queue
from amqpstore.records import Operation, OperationKind
from amqpstore.recovery import RecoveryReport, recover
from amqpstore.runs import Run

SEGMENT_BYTES = 16 << 20

_NEXT_QUEUE_ID = "next_queue_id"
_STORE_ID = "store_id"


class Store:
    """An open store. Made by `Store.open`."""

    def __init__(
        self,
        directory: str,
        lock: Lock,
        catalog: Catalog,
        log: Log,
        queues: dict[int, Queue],
        report: RecoveryReport,
    ) -> None:
        self.directory = directory
        self.queues = queues
        self.recovery_report = report
        self._lock = lock
        self._catalog = catalog
        self._log = log
        self._next_queue_id = int(catalog.rows("store").get(_NEXT_QUEUE_ID, 1))
        self._is_closed = False

    @classmethod
    def open(
        cls,
        directory: str,
        *,
        files: Files | None = None,
        open_catalog: Callable[[str], Catalog] = LmdbCatalog,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> Store:
        """Open the store in `directory`, or make one where there is nothing; recover what it holds.

        Args: segment_bytes, the size from which on a segment gets no further batch.
        Raises: NotAStoreError, FormatVersionError, StoreLockedError, DamageError (the catalog
        cannot be read), OSError. Nothing is changed then.
        """
        files = files or OsFiles()
        marker.check_directory(files, directory)
        files.make_directory(directory)
        try:
            lock = files.lock(os.path.join(directory, LOCK), f"process {os.getpid()}")
        except BlockingIOError as error:
            raise StoreLockedError(directory, str(error.strerror)) from None
        try:
            return cls._open_locked(directory, lock, files, open_catalog, segment_bytes)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _open_locked(
        cls,
        directory: str,
        lock: Lock,
        files: Files,
        open_catalog: Callable[[str], Catalog],
        segment_bytes: int,
    ) -> Store:
        found = marker.read(files, directory)
        if found is None:
            found = marker.write(files, directory, uuid.uuid4())
        files.make_directory(os.path.join(directory, SEGMENTS))
        catalog_path = os.path.join(directory, CATALOG)
        catalog = open_catalog(catalog_path)
        try:
            # LMDB syncs its file, but not the directory entries of what it created.
            files.sync_directory(directory)
            if files.exists(catalog_path):
                files.sync_directory(catalog_path)
            _check_catalog(files, directory, catalog, found)
            rows = catalog.rows("queues")
            queues = {int(key): Queue(int(key), rows[key], durable=True) for key in rows}
            recovered = recover(files, directory, found.bytes, catalog.rows("segments"), queues)
            if recovered.changes:
                catalog.commit(recovered.changes)
        except BaseException:
            catalog.close()
            raise
        log = Log(
            files,
            directory,
            store_id=found.bytes,
            segment_bytes=segment_bytes,
            segments=recovered.segments,
            next_segment=recovered.next_segment,
            next_message_id=recovered.next_message_id,
            next_lsn=recovered.next_lsn,
        )
        return cls(directory, lock, catalog, log, queues, recovered.report)

    # Definitions: durable on return.

    def definitions(self, table: str) -> dict[str, Value]:
        """All rows of one of the catalog's tables of definitions, by key."""
        return self._catalog.rows(table)

    def define(self, changes: Sequence[Change]) -> None:
        """Change definitions, all at once. Raises: DurabilityError."""
        self._check_open()
        self._catalog.commit(changes)

    def create_queue(
        self, definition: Value, *, durable: bool = True, changes: Sequence[Change] = ()
    ) -> Queue:
        """A new, empty queue; `changes` of definitions go with it. Raises: DurabilityError."""
        self._check_open()
        queue = Queue(self._next_queue_id, definition, durable=durable)
        self._next_queue_id += 1
        if durable:
            counter = Change("store", _NEXT_QUEUE_ID, self._next_queue_id)
            row = Change("queues", _queue_key(queue), definition)
            self._catalog.commit([counter, row, *changes])
        elif changes:
            self._catalog.commit(changes)
        self.queues[queue.id] = queue
        return queue

    def delete_queue(self, queue: Queue, *, changes: Sequence[Change] = ()) -> None:
        """Delete a queue with its messages; `changes` go with it. Raises: DurabilityError."""
        self._check_open()
        if queue.durable:
            self._catalog.commit([Change("queues", _queue_key(queue), None), *changes])
        elif changes:
            self._catalog.commit(changes)
        queue.deleted = True
        queue.ready.clear()
        del self.queues[queue.id]

    # Messages: in memory at once, durable with the open batch.

    def publish(self, queues: Iterable[Queue], messages: list[Message]) -> bool:
        """Put messages, all of them persistent or none, at the end of each of the queues.

        One publish is in all of its durable queues or, when a crash comes first, in none.
        Returns whether they entered the log: whether a promise about them has to wait for it.
        """
        first_id = 0
        count = len(messages)
        persistent = messages[0].envelope.persistent
        for queue in queues:
            if persistent and queue.durable:
                if not first_id:
                    first_id = self._log.append_messages(messages)
                self._log.append_operation(
                    Operation(OperationKind.ENQUEUE, count, queue.id, queue.next_sequence, first_id)
                )
            queue.ready.append(Run(queue.next_sequence, count, messages=messages))
            queue.next_sequence += count
        return first_id != 0

    def take(self, queue: Queue, limit: int, *, acked: bool = False) -> Run | MessageDamagedError:
        """Take up to `limit` messages, at least one, off the head of a queue that has some.

        With `acked` they are done with at once. A run holds what came together, and of what is
        on disk about 1 MiB. A message that cannot be read is returned as the error that says
        why, once; it leaves its queue in the log as well.
        """
        run = queue.ready.take_first(limit)
        if run.messages is None:
            found = self._log.read(run.first_id, run.count)
            got = 1 if isinstance(found, MessageDamagedError) else len(found)
            if got < run.count:
                rest = run
                run = rest.split(got)
                queue.ready.insert(rest)
            if isinstance(found, MessageDamagedError):
                self._log_run(OperationKind.PURGE, queue, run)
                return found
            run.messages = found
        self._log_run(OperationKind.ACK if acked else OperationKind.DELIVERED, queue, run)
        return run

    def ack(self, queue: Queue, run: Run) -> None:
        """A run that was taken is done with."""
        self._log_run(OperationKind.ACK, queue, run)

    def requeue(self, queue: Queue, run: Run) -> None:
        """A run that was taken goes back to its place; it says that it was delivered."""
        run.delivery_count += 1
        if not queue.deleted:
            queue.ready.insert(run)

    def purge(self, queue: Queue) -> int:
        """Remove all that is ready. Returns how many messages that were."""
        count = queue.ready.count
        for run in queue.ready.clear():
            self._log_run(OperationKind.PURGE, queue, run)
        return count

    # Durability.

    @property
    def log(self) -> Log:
        """The log, for those who drive its batches themselves."""
        return self._log

    def when_durable(self, callback: Callable[[], None]) -> None:
        """Call back, from `sync` or `Log.settle`, once everything done so far is durable."""
        self._log.when_durable(callback)

    def sync(self) -> None:
        """Make everything done so far durable. Raises: DurabilityError."""
        self._check_open()
        if batch := self._log.seal(_now_ms()):
            self._write(batch)

    def close(self) -> None:
        """Sync, note in the catalog where the log ends, and close. Raises: DurabilityError."""
        if self._is_closed:
            return
        try:
            self.sync()
            if (segment := self._log.current) is not None:
                row = {"end": segment.size}
                self._catalog.commit([Change("segments", f"{segment.number:010}", row)])
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the files and write nothing more: what is left is what a crash would leave."""
        self._is_closed = True
        self._log.close()
        self._catalog.close()
        self._lock.release()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _write(self, batch: Batch) -> None:
        try:
            self._log.write(batch)
        except BaseException:
            self._is_closed = True
            raise
        self._log.settle(batch)

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreClosedError(f"the store in {self.directory} is closed")

    def _log_run(self, kind: OperationKind, queue: Queue, run: Run) -> None:
        """Log what happened to those messages of the run that are in the log."""
        if not queue.durable or queue.deleted:
            return
        log = self._log
        messages = run.messages
        if messages is None or messages[0].id:
            # Persistent and transient messages share no run: see `publish`.
            log.append_operation(Operation(kind, run.count, queue.id, run.first_sequence))


def _check_catalog(files: Files, directory: str, catalog: Catalog, store_id: uuid.UUID) -> None:
    """Make sure that catalog and segments are of one store. Raises: DamageError.

    With an empty catalog in the place of the lost one every message in the segments would count
    as one of a deleted queue.
    """
    written = catalog.rows("store").get(_STORE_ID)
    path = os.path.join(directory, CATALOG)
    if written is None:
        if files.list_directory(os.path.join(directory, SEGMENTS)):
            raise DamageError(path, 0, "the catalog is missing or empty, and segments need it")
        catalog.commit([Change("store", _STORE_ID, store_id.bytes)])
    elif written != store_id.bytes:
        raise DamageError(path, 0, f"the catalog is of another store ({written.hex()})")


def _queue_key(queue: Queue) -> str:
    return f"{queue.id:020}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
