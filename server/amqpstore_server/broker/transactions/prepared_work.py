"""The work of a prepared branch: the store keeps it, and the queues place its messages when it is
decided.

A decision is made in steps, as there may be very many messages: see `Branches`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from itertools import chain

import amqpstore
from amqpstore import DiskFullError, Prepared, Publish, ReadLaterError, Run, UndecidableError
from amqpstore_server.broker.errors import ResourceExhaustedError
from amqpstore_server.broker.messages.envelope import parse_envelope
from amqpstore_server.broker.queues.backlog import Taken
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.transactions.transaction import Column, when_moved
from amqpstore_server.broker.work.services import BrokerServices
from amqpstore_server.broker.work.steps import in_order
from amqpstore_server.protocol.content import decode_properties

_MAX_MESSAGES = 4096
_MAX_PUT_BACK = 512
"""Messages that are placed, and runs that are put back, before others have their turn."""

_Locked = tuple[amqpstore.Queue, Run]


class PreparedWork:
    """A prepared transaction of the store, and the broker's queues that it concerns.

    `without_queue`, by the name of the queue, are messages that a commit put nowhere, as their
    queue was deleted before; its name is not known if that was before the last start. A queue that
    is deleted after they were placed counts them itself: it expects them.
    Args: queues, by the ids of their queues in the store.
    """

    def __init__(
        self, services: BrokerServices, prepared: Prepared, queues: Mapping[int, Queue]
    ) -> None:
        self._services = services
        self._prepared = prepared
        self._queues = queues
        self.without_queue: Counter[str] = Counter()

    @property
    def publish_count(self) -> int:
        """The number of messages that a commit will publish."""
        return self._prepared.publish_count

    @property
    def ack_count(self) -> int:
        """The number of messages that a commit will ack."""
        return self._prepared.ack_count

    def committing(
        self, on_durable: Callable[[], None], or_else: Callable[[], None] | None = None
    ) -> Generator[None, None, list[Column]]:
        """Commit, in the last of some steps; `on_durable` is called once that is durable, and
        `or_else` if the callback raises. Returns where its messages go.

        Messages enter their queues only now: TTLs, delays and priorities count from this time, and
        messages beyond a length limit are dropped at the head.
        Raises: ResourceExhaustedError, when the disk is full or cannot be read. The branch stays
        undecided then, and if not all steps are taken.
        """
        prepared = self._prepared
        columns: list[Column] = []
        try:
            yield from self._adding_messages(columns)
            # A queue may have been deleted since its messages were placed.
            placed = [placed for column in columns if (placed := column.publish())]
            prepared.commit(placed)
        except BaseException as error:
            # Expected messages count as room that is taken: a branch that stays undecided must not
            # fill its queues.
            for column in columns:
                column.expect_no_more()
            if isinstance(error, ReadLaterError | UndecidableError | DiskFullError):
                raise ResourceExhaustedError(str(error)) from None
            raise
        for queue_id, count in prepared.without_queue.items():
            deleted = self._queues.get(queue_id)
            self.without_queue[deleted.name if deleted else ""] += count
        when_moved(self._services, prepared.acked_queue_ids, columns, on_durable, or_else)
        return columns

    def _adding_messages(self, columns: list[Column]) -> Iterator[None]:
        """Add where its messages go to the columns. Raises: ReadLaterError, UndecidableError."""
        count = 0
        for publish in self._prepared.reading():
            self._services.work["branch"] = None
            if publish is None:
                yield
                continue
            if column := self._column(publish):
                columns.append(column)
            count += len(publish.messages)
            if count >= _MAX_MESSAGES:
                count = 0
                yield

    def rolling_back(self) -> Iterator[None]:
        """Roll back, durably on return; the messages that it would have acked are ready again, as
        redelivered, once all steps are taken. If they are not, the rest follows in later rounds.

        They go back in the order of their queues, as consumers may be given some of them before the
        others are back.
        """
        # Durable before anything goes back: a message that a consumer has must not be locked again
        # by a restart.
        locked = self._prepared.rollback()
        left = len(locked)
        return self._putting_back(in_order(locked, _first_sequence, _MAX_PUT_BACK), left)

    def _putting_back(self, batches: Iterator[list[_Locked]], left: int) -> Iterator[None]:
        """Put the runs of the batches back. Args: left, the number of messages in them."""
        batch: list[_Locked] = []
        try:
            while left:
                self._services.work["branch"] = None
                batch = next(batches)
                while batch:
                    left -= 1
                    self._put_back(*batch.pop())
                if left:
                    yield
        finally:
            if left:
                # The client has gone in the middle: the rollback is durable, and its messages must
                # not stay locked until the next start.
                rest = chain([batch], batches) if batch else batches
                self._services.agenda.background.append(self._putting_back(rest, left))

    def _put_back(self, store_queue: amqpstore.Queue, run: Run) -> None:
        queue = self._queues.get(store_queue.id)
        if queue is None:
            return
        if queue.is_deleted:
            self._services.store.ack(store_queue, run)
            return
        queue.departures.note_back(run.count)
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


def _first_sequence(locked: _Locked) -> int:
    return locked[1].first_sequence
