"""A transaction of the broker: publishes, acks and dead letters, all of them or none.

Everything that moves a message from one queue to another is one, so that after a crash it is in
one place, and so is what a client does between tx.select and tx.commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from amqpstore import DiskFullError, Message
from amqpstore.queue import Placement
from server.broker.core import Core
from server.broker.errors import PreconditionFailedError, ResourceExhaustedError
from server.broker.label import Label
from server.broker.queue import Queue, Taken

if TYPE_CHECKING:
    from server.broker.routing import Route


class Plan(NamedTuple):
    """Where messages go: to `queues`, at `placements`.

    The first `delivered` of them go to a queue at least; the first `accepted` of them are refused
    by none for want of room.
    """

    label: Label
    messages: list[Message]
    queues: Sequence[Queue]
    placements: Sequence[Placement]
    delivered: int
    accepted: int

    def expect(self, sign: int = 1) -> None:
        """They are on their way to their queues; with a sign of -1, they are not any more."""
        for queue, placement in zip(self.queues, self.placements, strict=True):
            queue.expect(self.messages, placement, sign)

    def arrived(self) -> None:
        """They are in their queues."""
        for queue, placement in zip(self.queues, self.placements, strict=True):
            if not queue.is_deleted:
                queue.arrived(self.messages, placement)


def plan(route: Route, label: Label, messages: list[Message], *, immediate: bool = False) -> Plan:
    """What becomes of messages whose labels are alike.

    With `immediate` they go only where a consumer can take them at once.
    """
    count = len(messages)
    queues = route.queues
    placements = [queue.placement(label, messages, immediate=immediate) for queue in queues]
    taken = [count if one.most is None else one.most for one in placements]
    most = max(taken, default=0)
    refused_from = count if immediate else min(taken, default=count)
    delivered = most if immediate else (count if queues else 0)
    return Plan(label, messages, queues, placements, delivered, refused_from)


class Transaction:
    """Collects, and changes nothing before `commit`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._store = core.store
        self._left: set[int] = set()
        self._stored = core.store.transaction()
        self._plans: list[Plan] = []

    def add(
        self, queue: Queue, label: Label, messages: list[Message], placement: Placement
    ) -> None:
        """Put messages in one queue, as `placement` says."""
        count = len(messages)
        self.publish(Plan(label, messages, [queue], [placement], count, count))

    def publish(self, plan: Plan) -> None:
        """Put messages in queues."""
        placements = [one for one in plan.placements if one.most is None or one.most]
        if placements:
            self._stored.place(placements, plan.messages, priority=plan.label.priority)
            self._plans.append(plan)
            plan.expect()

    def ack(self, taken: Taken) -> None:
        """A run that was taken off its queue is done with."""
        self._stored.ack(taken.level, taken.run)
        self._left.add(taken.level.id)

    def commit_or_put_back(self, queue: Queue, taken: Sequence[Taken]) -> bool:
        """As `commit`. Returns False where the disk is full: `taken` is in its queue again."""
        try:
            self.commit()
        except ResourceExhaustedError:
            for one in taken:
                queue.put_back(one)
            return False
        return True

    def undo(self) -> None:
        """It will not be committed."""
        for plan in self._plans:
            plan.expect(-1)
        self._plans.clear()

    def commit(self, on_durable: Callable[[], None] | None = None) -> None:
        """Do it all. What is published is ready, and `on_durable` called, once it is durable.

        Raises: ResourceExhaustedError, when the disk is full; nothing is done then.
        """
        try:
            self._stored.commit()
        except DiskFullError as error:
            self.undo()
            raise ResourceExhaustedError(str(error)) from None
        if self._plans:
            self._store.when_durable(self._core.moving(self._left))
        for plan in self._plans:
            self._store.when_durable(partial(_came, plan))
        if on_durable:
            self._store.when_durable(on_durable)


def _came(plan: Plan) -> None:
    plan.expect(-1)
    plan.arrived()


def refuse_if_full(plan: Plan) -> None:
    """Raises: PreconditionFailedError, where a queue has no room for all of the messages."""
    if plan.accepted < len(plan.messages):
        full = next(
            queue
            for queue, placement in zip(plan.queues, plan.placements, strict=True)
            if placement.most is not None and placement.most < len(plan.messages)
        )
        raise PreconditionFailedError(f"queue '{full.name}' is full: the transaction is undone")
