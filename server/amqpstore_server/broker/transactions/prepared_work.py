"""The work of a prepared branch: the store keeps it, and the queues place its messages when it is
decided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from amqpstore import DiskFullError, Prepared, Publish, ReadLaterError, UndecidableError
from amqpstore_server.broker.context import BrokerContext
from amqpstore_server.broker.errors import ResourceExhaustedError
from amqpstore_server.broker.messages.envelope import parse_envelope
from amqpstore_server.broker.queues.backlog import Taken
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.transactions.transaction import Column, when_moved
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

    @property
    def publish_count(self) -> int:
        """How many messages it will publish."""
        return self._prepared.publish_count

    @property
    def ack_count(self) -> int:
        """How many messages it will ack."""
        return self._prepared.ack_count

    def commit(
        self, on_durable: Callable[[], None], or_else: Callable[[], None] | None = None
    ) -> list[Column]:
        """Commit; `on_durable` is called once that is durable, and `or_else` if the callback
        raises. Returns where its messages go.

        Messages enter their queues only now: TTLs, delays and priorities count from this time, and
        messages beyond a length limit are dropped at the head.
        Raises: ResourceExhaustedError, when the disk is full or cannot be read; the branch stays
        undecided.
        """
        prepared = self._prepared
        try:
            publishes = prepared.publishes()
        except (ReadLaterError, UndecidableError) as error:
            raise ResourceExhaustedError(str(error)) from None
        columns = [column for publish in publishes if (column := self._column(publish))]
        placed = [placed for column in columns if (placed := column.publish())]
        left = {store_queue.id for store_queue, _ in prepared.locked}
        try:
            prepared.commit(placed)
        except DiskFullError as error:
            for column in columns:
                column.expect_no_more()
            raise ResourceExhaustedError(str(error)) from None
        when_moved(self._context, left, columns, on_durable, or_else)
        return columns

    def rollback(self) -> None:
        """Roll back, durably on return; the messages that it would have acked are ready again, as
        redelivered.
        """
        for store_queue, run in self._prepared.rollback():
            if (queue := self._queues.get(store_queue.id)) and not queue.is_deleted:
                queue.backlog.put_back(Taken(store_queue, run))
                queue.touch()

    def _column(self, publish: Publish) -> Column | None:
        """Return where messages go now; None if they have no route."""
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
                placements.append(queue.unlimited_placement(parsed)._replace(most=prepared.most))
        if not queues:
            return None
        return Column(queues, placements, messages, parsed.priority)
