"""What a prepared branch is to do: the store keeps it, and its queues see to the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from amqpstore import DiskFullError, Prepared, Publish, ReadLaterError, UndecidableError
from amqpstore_server.broker.context import BrokerContext
from amqpstore_server.broker.errors import ResourceExhaustedError
from amqpstore_server.broker.messages.envelope import parse_envelope
from amqpstore_server.broker.queues.backlog import Taken
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.transactions.transaction import Plan, when_moved
from amqpstore_server.protocol.content import decode_properties


class PreparedWork:
    """A prepared transaction of the store, and the broker's queues that it concerns.

    Args: queues, by the ids of their queues in the store.
    """

    def __init__(
        self, context: BrokerContext, prepared: Prepared, queues: Mapping[int, Queue]
    ) -> None:
        self._context = context
        self._prepared = prepared
        self._queues = queues

    def commit(
        self, on_durable: Callable[[], None], or_else: Callable[[], None] | None = None
    ) -> None:
        """Do it; `on_durable` is called once that is durable, and `or_else` where that fails.

        Messages enter their queues only now: TTLs, delays and priorities are those of this time,
        and what goes beyond a length leaves at the head.
        Raises: ResourceExhaustedError, when the disk is full or cannot be read; it is undecided
        then.
        """
        prepared = self._prepared
        try:
            publishes = prepared.publishes()
        except (ReadLaterError, UndecidableError) as error:
            raise ResourceExhaustedError(str(error)) from None
        plans = [plan for publish in publishes if (plan := self._plan(publish))]
        for plan in plans:
            plan.expect()
        placed = [Publish(plan.placements, plan.messages, plan.envelope.priority) for plan in plans]
        try:
            prepared.commit(placed)
        except DiskFullError as error:
            for plan in plans:
                plan.expect(-1)
            raise ResourceExhaustedError(str(error)) from None
        left = {level.id for level, _ in prepared.locked}
        when_moved(self._context, left, plans, on_durable, or_else)

    def rollback(self) -> None:
        """Forget it, which is durable on return: what it was to ack is ready, redelivered."""
        for level, run in self._prepared.rollback():
            if (queue := self._queues.get(level.id)) and not queue.is_deleted:
                queue.backlog.put_back(Taken(level, run))
                queue.touch()

    def _plan(self, publish: Publish) -> Plan | None:
        """Where messages go by now; None where that is nowhere."""
        messages = publish.messages
        envelope = messages[0].envelope
        parsed = parse_envelope(
            envelope.exchange,
            envelope.routing_key,
            envelope.properties,
            decode_properties(envelope.properties),
        )
        queues, placements = [], []
        for prepared in publish.placements:
            queue = self._queues.get(prepared.queue.id)
            if queue and not queue.is_deleted:
                queues.append(queue)
                placements.append(queue.place_for(parsed)._replace(most=prepared.most))
        if not queues:
            return None
        return Plan(parsed, messages, queues, placements, len(messages), len(messages))
