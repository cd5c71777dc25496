"""A transaction: publishes to some queues and acks in others, all of them or none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from amqpstore.catalog.catalog import Value
from amqpstore.errors import TransactionEndedError
from amqpstore.format.message import Message
from amqpstore.format.runs import Run
from amqpstore.prepared import Prepared, Publish, prepare, put_all
from amqpstore.queues.acks import GatheredAcks
from amqpstore.queues.arguments import check_many, check_messages, check_own, check_taken
from amqpstore.queues.queue import Placement, Queue

if TYPE_CHECKING:
    from amqpstore.store import Store


class Transaction:
    """Collects operations; nothing changes before `commit`. Created by `Store.transaction`.

    `commit` puts all of it into the log's open batch: a crash leaves all or nothing. The messages
    are in their queues, and may be taken, once that batch is durable; the acks take effect at once.
    As a context manager it commits, or rolls back when its block raises.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._publishes: list[Publish] = []
        self._acks = GatheredAcks()
        self._needed_bytes = 0
        self._has_ended = False

    def publish(
        self,
        queues: Sequence[Queue],
        messages: Sequence[Message],
        *,
        priority: int = 0,
        expires_ms: int = 0,
    ) -> None:
        """Publish as `Store.publish` does. Raises: TransactionEndedError, TypeError, ValueError."""
        messages = check_many("messages", messages)
        check_messages(messages)
        own = check_own(queues, self._store.queues)
        placements = [Placement(queue, expires_ms) for queue in own]
        self.enqueue(placements, messages, priority=priority)

    def enqueue(
        self, placements: Sequence[Placement], messages: list[Message], *, priority: int = 0
    ) -> None:
        """Enqueue as `Store.enqueue` does. Raises: TransactionEndedError, ValueError."""
        self.enqueue_sized(Publish.of(placements, messages, priority))

    def enqueue_sized(self, publish: Publish) -> None:
        """Do as `enqueue`, in little time however many messages there are."""
        self._check()
        self._needed_bytes += publish.needed_bytes()
        self._publishes.append(publish)

    def ack(self, queue: Queue, run: Run) -> None:
        """Ack a run that was taken, if the transaction commits.

        Raises: TransactionEndedError, TypeError.
        """
        self._check()
        if queue.__class__ is not Queue or run.__class__ is not Run:
            check_taken(queue, run)
        self._acks.add(queue, run)

    def commit(self) -> None:
        """Commit. Promise it only once it is durable: see `Log.when_durable`.

        Raises: TransactionEndedError, StoreClosedError, DiskFullError (nothing is done then).
        """
        self._check()
        self._store.check_writable(
            publishing=bool(self._publishes), needed_bytes=self._needed_bytes
        )
        # The transaction ends only now: one that a full disk refuses may be committed later.
        self._has_ended = True
        withheld = put_all(self._store, self._publishes)
        self._store.ack_all(self._acks)
        # Only now: messages that are not in the log wait for those that are.
        for queue, run in withheld:
            self._store.log.when_durable(partial(self._store.withdrawals.make_ready, queue, run))

    def merging_acks(self) -> Iterator[None]:
        """Do the part of `prepare` that takes long if there are many acks, in steps."""
        return self._acks.merging()

    def prepare(self, label: Value) -> Prepared:
        """Make it durable and undecided: a crash leaves it so, or nothing of it.

        The messages that it publishes are in no queue before it is committed, and those that it
        acks are locked until it is decided. Promise it only once it is durable: see
        `Log.when_durable`.
        Args: label, which is stored with it.
        Raises: TransactionEndedError, StoreClosedError, DiskFullError (nothing is done then),
        DurabilityError.
        """
        self._check()
        self._store.check_writable(publishing=True, needed_bytes=self._needed_bytes)
        prepared = prepare(self._store, label, self._publishes, self._acks)
        self._has_ended = True
        return prepared

    def rollback(self) -> list[tuple[Queue, Run]]:
        """Drop everything. Returns what would have been acked: it stays with whoever took it.

        Raises: TransactionEndedError.
        """
        self._check()
        self._has_ended = True
        return self._acks.runs

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._has_ended:
            return
        if kind is None:
            self.commit()
        else:
            self.rollback()

    def _check(self) -> None:
        if self._has_ended:
            raise TransactionEndedError
