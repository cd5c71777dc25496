"""A transaction of the broker: publishes, acks and dead letters, all of them or none.

Every move of a message from one queue to another is one, so that after a crash the message is in
exactly one place; so is the work of a client between tx.select and tx.commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from amqpstore import DiskFullError, Message, Placement, Prepared
from amqpstore_server.broker.context import BrokerContext
from amqpstore_server.broker.errors import PreconditionFailedError, ResourceExhaustedError
from amqpstore_server.broker.faults import Contained
from amqpstore_server.broker.messages.envelope import ParsedEnvelope
from amqpstore_server.broker.queues.backlog import Taken
from amqpstore_server.broker.queues.queue import Queue

if TYPE_CHECKING:
    from amqpstore_server.broker.routing import Route


class Plan(NamedTuple):
    """Where messages go: to `queues`, at `placements`.

    The first `delivered` of them go to at least one queue; the first `accepted` of them are refused
    by no queue because it is full.
    """

    envelope: ParsedEnvelope
    messages: list[Message]
    queues: Sequence[Queue]
    placements: Sequence[Placement]
    delivered: int
    accepted: int

    def expect(self, sign: int = 1) -> None:
        """Add the messages to the counts of their queues before the commit; a sign of -1 subtracts
        them."""
        for queue, placement in zip(self.queues, self.placements, strict=True):
            queue.expect(self.messages, placement, sign)

    def arrived(self) -> None:
        """Tell the queues that the messages are in them."""
        for queue, placement in zip(self.queues, self.placements, strict=True):
            if not queue.is_deleted:
                queue.arrived(self.messages, placement)

    def moved_in(self) -> None:
        """Tell the queues that the messages are in them and no longer expected; each queue deals
        with the rest in its turn."""
        for queue, placement in zip(self.queues, self.placements, strict=True):
            with Contained(queue):
                queue.expect(self.messages, placement, -1)
                if not queue.is_deleted:
                    queue.moved_in(self.messages, placement)


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
    refused_from = count if immediate else min(taken, default=count)
    delivered = most if immediate else (count if queues else 0)
    return Plan(envelope, messages, queues, placements, delivered, refused_from)


class Transaction:
    """Collects operations; nothing changes before `commit` or `prepare`."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._plans: list[Plan] = []
        self._taken: list[Taken] = []
        self.queues: dict[int, Queue] = {}
        """The queues concerned, by the ids of their queues in the store."""

    @property
    def is_empty(self) -> bool:
        """Whether it has no operations."""
        return not self._plans and not self._taken

    def add(
        self, queue: Queue, envelope: ParsedEnvelope, messages: list[Message], placement: Placement
    ) -> None:
        """Put messages in one queue, as `placement` says."""
        count = len(messages)
        self.publish(Plan(envelope, messages, [queue], [placement], count, count))

    def publish(self, plan: Plan) -> None:
        """Put messages in queues."""
        if any(one.most is None or one.most for one in plan.placements):
            self._plans.append(plan)
            self.queues.update((queue.priorities.lowest.id, queue) for queue in plan.queues)
            plan.expect()

    def ack(self, queue: Queue, taken: Taken) -> None:
        """Ack a run that was taken off a queue."""
        self._taken.append(taken)
        self.queues[taken.store_queue.id] = queue

    def consume(self, queue: Queue, taken: Taken) -> None:
        """Ack a run as consumed: if its queue keeps a history, it gets a copy."""
        self.ack(queue, taken)
        if queue.history is not None:
            for envelope, messages, placement in queue.history.copies(taken):
                self.add(queue.history.queue, envelope, messages, placement)

    def undo(self) -> None:
        """Undo: the transaction will not be committed."""
        for plan in self._plans:
            plan.expect(-1)
        self._plans.clear()

    def commit(
        self,
        on_durable: Callable[[], None] | None = None,
        or_else: Callable[[], None] | None = None,
    ) -> None:
        """Commit. Published messages are ready, and `on_durable` is called, once it is durable.

        Args: or_else, called if `on_durable` raises.
        Raises: ResourceExhaustedError, when the disk is full; nothing is changed then.
        """
        store_transaction = self._context.store.transaction()
        for plan in self._plans:
            placements = [one for one in plan.placements if one.most is None or one.most]
            store_transaction.enqueue(placements, plan.messages, priority=plan.envelope.priority)
        for store_queue, run in self._taken:
            store_transaction.ack(store_queue, run)
        try:
            store_transaction.commit()
        except DiskFullError as error:
            self.undo()
            raise ResourceExhaustedError(str(error)) from None
        left = {store_queue.id for store_queue, _ in self._taken}
        when_moved(self._context, left, self._plans, on_durable, or_else)

    def prepare(self, label: dict[str, Any]) -> Prepared:
        """Make it durable and undecided: see `amqpstore.Transaction.prepare`.

        Each message goes to the lowest priority here: its own is determined at the decision.
        Raises: ResourceExhaustedError, when the disk is full; nothing is changed then.
        """
        store_transaction = self._context.store.transaction()
        for plan in self._plans:
            placements = [
                Placement(queue.priorities.lowest, most=placement.most)
                for queue, placement in zip(plan.queues, plan.placements, strict=True)
                if placement.most is None or placement.most
            ]
            store_transaction.enqueue(placements, plan.messages, priority=plan.envelope.priority)
        for store_queue, run in self._taken:
            store_transaction.ack(store_queue, run)
        self.undo()
        try:
            return store_transaction.prepare(label)
        except DiskFullError as error:
            raise ResourceExhaustedError(str(error)) from None


def move(
    context: BrokerContext, queue: Queue, taken: Sequence[Taken], add: Callable[[Transaction], None]
) -> bool:
    """Move a run that was taken off a queue, in one transaction that `add` fills.

    Returns False if the disk is full. The run is in its queue again then, and also if `add` raises.
    """
    context.moves += 1
    transaction = Transaction(context)
    try:
        add(transaction)
        transaction.commit()
    except Exception as error:
        transaction.undo()
        for one in taken:
            queue.backlog.put_back(one)
        if isinstance(error, ResourceExhaustedError):
            return False
        raise
    return True


def when_moved(
    context: BrokerContext,
    left: set[int],
    plans: Sequence[Plan],
    on_durable: Callable[[], None] | None = None,
    or_else: Callable[[], None] | None = None,
) -> None:
    """After a transaction that moved messages from the store's queues `left`: update counts and
    make the messages available.
    """
    if plans:
        context.when_durable(context.moving(left))
    for plan in plans:
        context.when_durable(plan.moved_in)
    if on_durable:
        context.when_durable(on_durable, or_else)


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
