"""A transaction of the broker: publishes, acks and dead letters, all of them or none.

Everything that moves a message from one queue to another is one, so that after a crash it is in
one place, and so is what a client does between tx.select and tx.commit.
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

    The first `delivered` of them go to a queue at least; the first `accepted` of them are refused
    by none because there is no room.
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
    """Find what becomes of messages that are alike, when queues have handed out what came
    before.

    With `immediate` they go only where a consumer can take them at once.
    """
    count = len(messages)
    queues = route.queues
    placements = []
    for queue in queues:
        if immediate or queue.settings.rejects:
            queue.pump()  # what consumers take of what came before leaves room for these
        placements.append(queue.placement(envelope, messages, immediate=immediate))
    taken = [count if one.most is None else one.most for one in placements]
    most = max(taken, default=0)
    refused_from = count if immediate else min(taken, default=count)
    delivered = most if immediate else (count if queues else 0)
    return Plan(envelope, messages, queues, placements, delivered, refused_from)


class Transaction:
    """Collects, and changes nothing before `commit` or `prepare`."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._plans: list[Plan] = []
        self._taken: list[Taken] = []
        self.queues: dict[int, Queue] = {}
        """Those that it concerns, by the ids of their queues in the store."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
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
        """A run that was taken off a queue is done with."""
        self._taken.append(taken)
        self.queues[taken.level.id] = queue

    def consume(self, queue: Queue, taken: Taken) -> None:
        """As `ack`, by a consumer of its queue: where that keeps a history, it is there then."""
        self.ack(queue, taken)
        if queue.history is not None:
            for envelope, messages, placement in queue.history.copies(taken):
                self.add(queue.history.queue, envelope, messages, placement)

    def undo(self) -> None:
        """It will not be committed."""
        for plan in self._plans:
            plan.expect(-1)
        self._plans.clear()

    def commit(
        self,
        on_durable: Callable[[], None] | None = None,
        or_else: Callable[[], None] | None = None,
    ) -> None:
        """Do it all. What is published is ready, and `on_durable` called, once it is durable.

        Args: or_else, what is called where `on_durable` fails.
        Raises: ResourceExhaustedError, when the disk is full; nothing is done then.
        """
        stored = self._context.store.transaction()
        for plan in self._plans:
            placements = [one for one in plan.placements if one.most is None or one.most]
            stored.enqueue(placements, plan.messages, priority=plan.envelope.priority)
        for level, run in self._taken:
            stored.ack(level, run)
        try:
            stored.commit()
        except DiskFullError as error:
            self.undo()
            raise ResourceExhaustedError(str(error)) from None
        left = {level.id for level, _ in self._taken}
        when_moved(self._context, left, self._plans, on_durable, or_else)

    def prepare(self, label: dict[str, Any]) -> Prepared:
        """Have it durable and undecided: see `amqpstore.Transaction.prepare`.

        Where in a queue messages go is found when it is decided: here each goes to level 0.
        Raises: ResourceExhaustedError, when the disk is full; nothing is done then.
        """
        stored = self._context.store.transaction()
        for plan in self._plans:
            placements = [
                Placement(queue.priorities.lowest, most=placement.most)
                for queue, placement in zip(plan.queues, plan.placements, strict=True)
                if placement.most is None or placement.most
            ]
            stored.enqueue(placements, plan.messages, priority=plan.envelope.priority)
        for level, run in self._taken:
            stored.ack(level, run)
        self.undo()
        try:
            return stored.prepare(label)
        except DiskFullError as error:
            raise ResourceExhaustedError(str(error)) from None


def move(
    context: BrokerContext, queue: Queue, taken: Sequence[Taken], add: Callable[[Transaction], None]
) -> bool:
    """Have what was taken off a queue leave it, in one transaction that `add` fills.

    Returns False where the disk is full. `taken` is in its queue again then, and where `add` fails.
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
    """Messages moved in a transaction, from the store's queues `left`: see to what follows."""
    if plans:
        context.when_durable(context.moving(left))
    for plan in plans:
        context.when_durable(plan.moved_in)
    if on_durable:
        context.when_durable(on_durable, or_else)


def refuse_if_full(plan: Plan) -> None:
    """Raises: PreconditionFailedError, where a queue has no room for all of the messages."""
    if plan.accepted < len(plan.messages):
        full = next(
            queue
            for queue, placement in zip(plan.queues, plan.placements, strict=True)
            if placement.most is not None and placement.most < len(plan.messages)
        )
        why = "has failed" if full.is_set_aside else "is full"
        raise PreconditionFailedError(f"queue '{full.name}' {why}: the transaction is undone")
