"""A transaction of the broker: publishes, acks and dead letters, all of them or none.

Every move of a message from one queue to another is one, so that after a crash the message is in
exactly one place; so is the work of a client between tx.select and tx.commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from amqpstore import DiskFullError, Message, Placement, Prepared, Publish
from amqpstore.format.runs import body_bytes, overhead_bytes
from amqpstore_server.broker.errors import PreconditionFailedError, ResourceExhaustedError
from amqpstore_server.broker.messages.envelope import ParsedEnvelope
from amqpstore_server.broker.monitoring.faults import Contained
from amqpstore_server.broker.queues.backlog import Taken
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.work.services import BrokerServices

if TYPE_CHECKING:
    from amqpstore_server.broker.routing.routing import Route

_MAX_COLUMN_BYTES = 1 << 20
_MAX_COLUMN = 4096
"""A column has about this many bytes and messages at most: it leaves memory as a whole."""

_ColumnKey = tuple[object, ...]
"""The properties that messages of a column have in common: whether they are persistent, their
priority, and where they go.
"""


class Plan(NamedTuple):
    """A plan for messages: they go to `queues`, at `placements`.

    The first `delivered` of them go to at least one queue; the first `accepted` of them are refused
    by no queue because it is full.
    """

    envelope: ParsedEnvelope
    messages: list[Message]
    queues: Sequence[Queue]
    placements: Sequence[Placement]
    delivered: int
    accepted: int

    def arrived(self, *, drops_later: bool) -> None:
        """Tell the queues that the messages are in them. Args: as of `Queue.arrived`."""
        for queue, placement in zip(self.queues, self.placements, strict=True):
            if not queue.is_deleted:
                queue.arrived(self.messages, placement, drops_later=drops_later)


def plan(
    route: Route, envelope: ParsedEnvelope, messages: list[Message], *, immediate: bool = False
) -> Plan:
    """Find the queues and placements of messages that are alike, after the queues have handed out
    earlier messages.

    With `immediate` they go only where a consumer can take them at once.
    """
    count = len(messages)
    queues = route.queues
    placements = []
    for queue in queues:
        if immediate or queue.settings.rejects:
            queue.pump()  # consumers may take earlier messages, which makes room for these
        placements.append(queue.placement(envelope, messages, immediate=immediate))
    taken = [count if one.most is None else one.most for one in placements]
    most = max(taken, default=0)
    # basic.publish with `immediate`: what no consumer takes at once is returned, and a full queue
    # does not refuse it.
    refused_from = count if immediate else min(taken, default=count)
    delivered = most if immediate else (count if queues else 0)
    return Plan(envelope, messages, queues, placements, delivered, refused_from)


class Column:
    """Messages of a transaction that go to the same places; their properties may differ.

    To the store and its log they are one publish, so that the price of a message does not depend
    on how much it differs from its neighbours.
    """

    __slots__ = ("_body_bytes", "_messages", "_overhead_bytes", "placements", "priority", "queues")

    def __init__(
        self,
        queues: Sequence[Queue],
        placements: Sequence[Placement],
        messages: list[Message],
        priority: int,
    ) -> None:
        self.queues = queues
        self.placements = placements
        self.priority = priority
        self._messages: list[Message] = []
        self._body_bytes = self._overhead_bytes = 0
        self.add(messages)

    def add(self, messages: list[Message]) -> None:
        """Add messages, and count them as expected in their queues."""
        size = body_bytes(messages)
        self._messages += messages
        self._body_bytes += size
        self._overhead_bytes += overhead_bytes(messages)
        for queue, placement in zip(self.queues, self.placements, strict=True):
            # Until the commit is durable they take up room, or two transactions could fill a queue
            # twice.
            _expect(queue, placement, messages, size)

    @property
    def messages(self) -> Sequence[Message]:
        """All of them."""
        return self._messages

    @property
    def is_full(self) -> bool:
        """Whether no more messages should be added."""
        return self._body_bytes >= _MAX_COLUMN_BYTES or len(self._messages) >= _MAX_COLUMN

    def publish(self) -> Publish | None:
        """Return what is to be published, to the queues that still exist; None if that is
        nothing.
        """
        placements = [
            one
            for one in self.placements
            # A queue may be deleted between publish and commit: it gets nothing, and the rest
            # commits.
            if (one.most is None or one.most) and not one.queue.deleted
        ]
        if not placements:
            return None
        return Publish(
            placements, self._messages, self.priority, self._body_bytes, self._overhead_bytes
        )

    def expect_no_more(self) -> None:
        """Take the messages off the counts of what is expected in their queues."""
        for queue, placement in zip(self.queues, self.placements, strict=True):
            _expect(queue, placement, self._messages, self._body_bytes, -1)

    def undone(self) -> None:
        """Note that the messages will not come: a queue that was deleted meanwhile has counted them
        as gone with it.
        """
        for queue, placement in zip(self.queues, self.placements, strict=True):
            if queue.is_deleted:
                count = len(self._messages)
                queue.departures.note_back(
                    count if placement.most is None else min(count, placement.most)
                )

    def moved_in(self) -> None:
        """Tell the queues that the messages are in them and no longer expected; each queue deals
        with the rest in its turn."""
        messages = self._messages
        for queue, placement in zip(self.queues, self.placements, strict=True):
            with Contained(queue):
                _expect(queue, placement, messages, self._body_bytes, -1)
                if not queue.is_deleted:
                    queue.moved_in(messages, placement)


def _expect(
    queue: Queue, placement: Placement, messages: list[Message], size: int, sign: int = 1
) -> None:
    """Count messages as expected in a queue, or with a sign of -1 not any more. Args: size, of all
    their bodies.
    """
    count = len(messages)
    if placement.most is not None and placement.most < count:
        count, size = placement.most, body_bytes(messages[: placement.most])
    queue.expect(sign * count, sign * size)


class Transaction:
    """Collects operations; nothing changes before `commit` or `prepare`."""

    def __init__(self, services: BrokerServices) -> None:
        self._services = services
        self._columns: list[Column] = []
        self._open: dict[_ColumnKey, Column] = {}
        """Columns to which messages may be added: nothing later goes to their queues."""
        self._last_of: dict[Queue, _ColumnKey] = {}
        self._store_transaction = services.store.transaction()
        self._left: set[int] = set()
        self.queues: dict[int, Queue] = {}
        """The queues concerned, by the ids of their queues in the store."""

    @property
    def is_empty(self) -> bool:
        """Whether it has no operations."""
        return not self._columns and not self._left

    def add(
        self, queue: Queue, envelope: ParsedEnvelope, messages: list[Message], placement: Placement
    ) -> None:
        """Put messages in one queue, as `placement` says."""
        count = len(messages)
        self.publish(Plan(envelope, messages, [queue], [placement], count, count))

    def publish(self, plan: Plan) -> None:
        """Put messages in queues."""
        placements = plan.placements
        if not any(one.most is None or one.most for one in placements):
            return
        is_limited = any(one.most is not None for one in placements)
        persistent = plan.messages[0].envelope.persistent
        key = (persistent, plan.envelope.priority, *placements)
        column = self._open.get(key)
        if column is None or column.is_full or is_limited:
            self._begin(key, plan, is_open=not is_limited)
        else:
            column.add(plan.messages)

    def _begin(self, key: _ColumnKey, plan: Plan, *, is_open: bool) -> None:
        """Begin a column."""
        column = Column(plan.queues, plan.placements, plan.messages, plan.envelope.priority)
        self._columns.append(column)
        for queue in plan.queues:
            self.queues[queue.priorities.lowest.id] = queue
            # The order in each queue is that of the calls.
            if earlier := self._last_of.get(queue):
                self._open.pop(earlier, None)
            self._last_of[queue] = key
        if is_open:
            self._open[key] = column

    def ack(self, queue: Queue, taken: Taken) -> None:
        """Ack a run that was taken off a queue."""
        store_queue, run = taken
        self._store_transaction.ack(store_queue, run)
        self._left.add(store_queue.id)
        self.queues[store_queue.id] = queue

    def consume(self, queue: Queue, taken: Taken) -> None:
        """Ack a run as consumed: if its queue keeps a history, it gets a copy.

        Raises: ReadLaterError, MessageDamagedError (a body has to be read back and cannot be).
        """
        self.ack(queue, taken)
        if queue.history is not None and not queue.history.queue.is_set_aside:
            self.keep(queue, self._services.store.stored.read_all(taken.run))

    def keep(self, queue: Queue, consumed: Sequence[Message]) -> None:
        """Copy messages that are acked as consumed to the history of their queue, if it keeps
        one.
        """
        if queue.history is not None:
            for envelope, messages, placement in queue.history.copies(consumed):
                self.add(queue.history.queue, envelope, messages, placement)

    def undo(self) -> None:
        """Undo: the transaction will not be committed."""
        for column in self._columns:
            column.undone()
        self._expect_no_more()

    def _expect_no_more(self) -> None:
        columns, self._columns = self._columns, []
        self._open.clear()
        self._last_of.clear()
        for column in columns:
            column.expect_no_more()

    def commit(
        self,
        on_durable: Callable[[], None] | None = None,
        or_else: Callable[[], None] | None = None,
    ) -> None:
        """Commit. Published messages are ready, and `on_durable` is called, once it is durable.

        Args: or_else, called if `on_durable` raises.
        Raises: ResourceExhaustedError, when the disk is full; nothing is changed then.
        """
        store_transaction = self._store_transaction
        for column in self._columns:
            if publish := column.publish():
                store_transaction.enqueue_sized(publish)
        try:
            store_transaction.commit()
        except DiskFullError as error:
            # Refused before anything was logged: nothing is half done.
            self.undo()
            raise ResourceExhaustedError(str(error)) from None
        when_moved(self._services, self._left, self._columns, on_durable, or_else)

    def merging_acks(self) -> Iterator[None]:
        """Do the part of `prepare` that takes long if there are many acks, in steps."""
        return self._store_transaction.merging_acks()

    def prepare(self, label: dict[str, Any]) -> Prepared:
        """Make it durable and undecided: see `amqpstore.Transaction.prepare`.

        Each message goes to the lowest priority here: its own is determined at the decision.
        Raises: ResourceExhaustedError, when the disk is full; nothing is changed then.
        """
        store_transaction = self._store_transaction
        for column in self._columns:
            if publish := column.publish():
                placements = [
                    Placement(queue.priorities.lowest, most=placement.most)
                    for queue, placement in zip(column.queues, column.placements, strict=True)
                    if placement in publish.placements
                ]
                store_transaction.enqueue_sized(publish._replace(placements=placements))
        self._expect_no_more()
        try:
            return store_transaction.prepare(label)
        except DiskFullError as error:
            raise ResourceExhaustedError(str(error)) from None


def move(
    services: BrokerServices,
    queue: Queue,
    taken: Sequence[Taken],
    add: Callable[[Transaction], None],
) -> bool:
    """Move a run that was taken off a queue, in one transaction that `add` fills.

    Returns False if the disk is full. The run is in its queue again then, and also if `add` raises.
    """
    moves = services.moves
    services.agenda.spent += services.limits.move_cost * moves.ratio
    began_s = services.cpu_s()
    transaction = Transaction(services)
    try:
        add(transaction)
        transaction.commit()
    except Exception as error:
        transaction.undo()
        # This covers errors that were not foreseen: what was taken off a queue has to be
        # somewhere.
        for run in taken:
            queue.backlog.put_back(run)
        if isinstance(error, ResourceExhaustedError):
            return False
        raise
    finally:
        if took_s := services.cpu_s() - began_s:
            moves.took(took_s * 1e6)
    return True


def when_moved(
    services: BrokerServices,
    left: set[int],
    columns: Sequence[Column],
    on_durable: Callable[[], None] | None = None,
    or_else: Callable[[], None] | None = None,
) -> None:
    """Update counts and make messages available after a transaction that moved them from the
    store's queues `left`.
    """
    if columns:
        services.when_durable(services.moves.begin(left))
    for column in columns:
        # Not ready before: until then a crash brings these messages back in the queue that they
        # have left.
        services.when_durable(column.moved_in)
    if on_durable:
        services.when_durable(on_durable, or_else)


def refuse_if_full(plan: Plan) -> None:
    """Make sure that all queues have room for the messages. Raises: PreconditionFailedError."""
    if plan.accepted < len(plan.messages):
        full = next(
            queue
            for queue, placement in zip(plan.queues, plan.placements, strict=True)
            if placement.most is not None and placement.most < len(plan.messages)
        )
        why = "has failed" if full.is_set_aside else "is full"
        raise PreconditionFailedError(f"queue '{full.name}' {why}: the transaction is undone")
