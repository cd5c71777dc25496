"""A transaction of a `SharedStore`, the only way to send and receive messages."""

from __future__ import annotations

import enum
import logging
import operator
import time
from collections.abc import Iterable
from types import TracebackType
from typing import NamedTuple

from amqpstore.errors import (
    ForkedError,
    NotInTransactionError,
    QueueNotFoundError,
    ReenteredError,
    StoreClosedError,
    StoreError,
    TransactionEndedError,
)
from amqpstore.format.message import Envelope, Message
from amqpstore.format.runs import Run
from amqpstore.prepared import Publish
from amqpstore.queues.arguments import (
    MAX_LABEL_BYTES,
    check_many,
    check_names,
    check_real,
    check_span,
    check_str,
    check_text,
    check_whole,
    messages_of,
)
from amqpstore.queues.queue import Placement, Queue
from amqpstore.shared import commit_effects
from amqpstore.shared.locked_store import LockedStore
from amqpstore.shared.prepared import SharedPrepared
from amqpstore.shared.queues import NamedQueue, Queues
from amqpstore.store import Store
from amqpstore.transaction import Transaction

_log = logging.getLogger(__name__)


class Received(NamedTuple):
    """A message that was received, and how often it had been delivered before: from 1 on it is
    redelivered, because a transaction was rolled back, for example by a crash.
    """

    message: Message
    delivery_count: int

    @property
    def body(self) -> bytes:
        """The message's body."""
        return self.message.body


class _Send(NamedTuple):
    """Messages that are sent, and the names of the queues they go to."""

    names: list[str]
    publish: Publish

    def is_of_same(self, other: _Send) -> bool:
        """Tell whether these are the very messages of another one."""
        messages, others = self.publish.messages, other.publish.messages
        return len(messages) == len(others) and all(map(operator.is_, messages, others))


class _State(enum.Enum):
    NEW = enum.auto()
    BEGUN = enum.auto()
    ENDED = enum.auto()


class SharedTransaction:
    """A transaction for one `with` block of one thread. Created by `SharedStore.transaction`.

    At the normal end of the block it commits: durable then. An exception, or a crash, rolls it
    back: sent messages never existed, and received ones are ready again, as redelivered, in their
    old places. Sent messages can be received, also by the same thread, once it is committed.

    All methods also raise: NotInTransactionError before the block, TransactionEndedError after its
    end; StoreClosedError, ForkedError, ReenteredError.
    """

    def __init__(self, locked_store: LockedStore, queues: Queues) -> None:
        self._locked_store = locked_store
        self._queues = queues
        self._state = _State.NEW
        self._sends: list[_Send] = []
        self._received: list[tuple[Queue, Run]] = []

    def send(self, queue: str | Iterable[str], messages: Iterable[Message | bytes]) -> None:
        """Put messages at the end of a queue, or of each of several, if this commits.

        They are written once, however many queues they go to. Bytes are a body without properties,
        and with the name of the queue as routing key if there is one queue.
        Raises: QueueNotFoundError; StoreError, if a message is not persistent.
        """
        names = check_names(queue)
        # Not under the lock: what yields them may use the store.
        given = check_many("messages", messages)
        with self._locked_store.locked():
            self._check()
            placements = [Placement(self._queues.get(name).queue) for name in names]
            whole = messages_of(Envelope("", names[0] if len(names) == 1 else ""), given)
            if not all(message.envelope.persistent for message in whole):
                raise StoreError("messages sent in a transaction must be persistent")
            if whole:
                self._add(_Send(names, Publish.of(placements, whole)))

    def receive(
        self, queue: str, *, limit: int = 1, timeout_s: float | None = None
    ) -> list[Received]:
        """Take messages off the head of a queue: at least one, and up to `limit` of the ready ones.

        Waits until there is one. They are given to this transaction only, and are gone if it
        commits.
        Args: timeout_s, how long it waits; None for ever.
        Raises: TimeoutError, nothing arrived, and the transaction continues; QueueNotFoundError,
        also if the queue is deleted meanwhile; MessageDamagedError, once, if the first cannot be
        read: it is in quarantine then; ReadLaterError, if it cannot be read now. A damaged message
        after others is only logged.
        """
        check_str("a queue name", queue)
        limit = check_whole("a limit", limit, 1)
        deadline = None
        if timeout_s is not None:
            deadline = time.monotonic() + check_real("a timeout in seconds", timeout_s)
        with self._locked_store.locked() as store:
            self._check()
            named = self._queues.get(queue)
            was_woken = False
            try:
                while not (runs := self._try(store, named.queue, limit)):
                    # A woken receiver may find that another was faster: so it checks again.
                    was_woken = self._wait(named, deadline, is_first=was_woken)
            except BaseException:
                # It may have been woken for a message, which is another's now.
                if named.queue.ready_count:
                    named.arrivals.arrived(1)
                raise
            self._received += [(named.queue, run) for run in runs]
            # They are certainly in memory only until another thread has the lock.
            return [
                Received(message, run.delivery_count)
                for run in runs
                for message in run.messages or ()
            ]

    def replay(
        self, queue: str, *, first_ms: int = 0, last_ms: int | None = None, to: str | None = None
    ) -> int:
        """Send copies of a queue's history: see `SharedStore.history`.

        Args: to, the queue that they go to; by default the one that they came from.
        Returns: how many. They are in memory until this commits.
        Raises: QueueNotFoundError.
        """
        to = queue if to is None else to
        check_str("a queue name", queue)
        check_str("a queue name", to)
        check_span(first_ms, last_ms)
        with self._locked_store.locked():
            self._check()
            self._queues.get(to)
            history = self._queues.get(queue).history
        if history is None:
            return 0
        messages = [one.message for one in history.browse(self._locked_store, first_ms, last_ms)]
        self.send(to, messages)
        return len(messages)

    def peek(self, queue: str) -> Message | None:
        """Return the message at the head of a queue, and leave it. None if nothing is ready.

        Raises: QueueNotFoundError.
        """
        check_str("a queue name", queue)
        with self._locked_store.working() as store:
            self._check()
            return store.withdrawals.peek(self._queues.get(queue).queue)

    def commit(self) -> None:
        """Commit and end: durable on return. The end of the block does it automatically.

        Raises: DiskFullError, if it sends something, and QueueNotFoundError, for a queue that it
        sends to (all is rolled back then); DurabilityError (the outcome is unknown then, until the
        store is opened again).
        """
        locked_store = self._locked_store
        with locked_store.locked() as store:
            self._check()
            # The transaction ends before anything can fail: a commit is tried once, and an error
            # leaves nothing to commit again.
            self._state = _State.ENDED
            if not (self._sends or self._received):
                return
            try:
                with locked_store.guarded():
                    self._commit(store)
            except StoreError:
                self._undo(store)
                raise
            # After the commit is in the batch an error means that the outcome is unknown: nothing
            # is undone.
            locked_store.wait_durable()

    def prepare(self, label: str) -> SharedPrepared:
        """End undecided: durable on return, and to be committed or rolled back by anybody.

        Until then sent messages are in no queue, and received ones are locked, through any crash.
        Args: label, text by which its owner knows it, of at most 64 KiB.
        Raises: as `commit`, but DiskFullError in any case.
        """
        check_text("a label", label, MAX_LABEL_BYTES)
        locked_store = self._locked_store
        with locked_store.locked() as store:
            self._check()
            self._state = _State.ENDED
            try:
                with locked_store.guarded():
                    prepared = self._engine_transaction(store).prepare({"name": label})
            except StoreError:
                self._undo(store)
                raise
            locked_store.wait_durable()
        return SharedPrepared(locked_store, self._queues, prepared)

    def rollback(self) -> None:
        """Roll back, and end."""
        with self._locked_store.working() as store:
            self._check()
            self._state = _State.ENDED
            self._undo(store)

    def __enter__(self) -> SharedTransaction:
        if self._state is not _State.NEW:
            raise TransactionEndedError
        self._state = _State.BEGUN
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._state is _State.ENDED:
            return
        if kind is None:
            self.commit()
            return
        try:
            self.rollback()
        except (StoreClosedError, ForkedError, ReenteredError) as ended:
            # The next start does it; the block's own exception says more.
            _log.debug("left for the next start: %s", ended)

    def _add(self, send: _Send) -> None:
        """Add messages to what is sent. Raises: ValueError, if the log cannot hold them."""
        before = self._sends[-1] if self._sends else None
        if before and send.is_of_same(before) and set(before.names).isdisjoint(send.names):
            # The same messages to one queue after the other: written once, as to several queues.
            placements = [*before.publish.placements, *send.publish.placements]
            publish = send.publish._replace(placements=placements)
            publish.needed_bytes()
            self._sends[-1] = _Send([*before.names, *send.names], publish)
        else:
            send.publish.needed_bytes()
            self._sends.append(send)

    def _try(self, store: Store, queue: Queue, limit: int) -> list[Run]:
        with self._locked_store.guarded():
            return _take(store, queue, limit)

    def _wait(self, named: NamedQueue, deadline: float | None, *, is_first: bool) -> bool:
        """Wait for a message, until `time.monotonic()` reaches the deadline. Returns whether there
        may be one.
        """
        left_s = None if deadline is None else deadline - time.monotonic()
        if left_s is not None and left_s <= 0:
            raise TimeoutError(f"no message arrived in queue {named.name!r} in time")
        was_woken = named.arrivals.wait(left_s, is_first=is_first)
        self._locked_store.check_open()
        self._check()
        if named.queue.deleted:
            raise QueueNotFoundError(named.name)
        return was_woken

    def _commit(self, store: Store) -> None:
        now_ms = self._locked_store.store.clock.wall_ms()
        transaction = self._engine_transaction(store)
        for copy in commit_effects.copies(store, self._queues, self._received, now_ms):
            transaction.enqueue_sized(copy)
        transaction.commit()
        publishes = [send.publish for send in self._sends]
        commit_effects.when_durable(store, self._queues, publishes, self._received, now_ms)

    def _engine_transaction(self, store: Store) -> Transaction:
        transaction = store.transaction()
        for names, publish in self._sends:
            for name, placement in zip(names, publish.placements, strict=True):
                if placement.queue.deleted:
                    raise QueueNotFoundError(name)
            transaction.enqueue_sized(publish)
        for queue, run in self._received:
            transaction.ack(queue, run)
        return transaction

    def _undo(self, store: Store) -> None:
        for queue, run in self._received:
            store.requeue(queue, run)
            if named := self._queues.of_id(queue.id):
                named.arrivals.arrived(run.count)

    def _check(self) -> None:
        if self._state is _State.NEW:
            raise NotInTransactionError
        if self._state is _State.ENDED:
            raise TransactionEndedError


def _take(store: Store, queue: Queue, limit: int) -> list[Run]:
    """Take what is ready, up to a limit.

    Raises: MessageDamagedError, ReadLaterError, if it is the first.
    """
    runs: list[Run] = []
    while limit and (found := store.take(queue, limit)):
        if not isinstance(found, Run):
            if not runs:
                raise found
            _log.error("%s", found)
            break
        runs.append(found)
        limit -= found.count
    return runs
