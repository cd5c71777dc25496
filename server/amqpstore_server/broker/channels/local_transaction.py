"""The uncommitted work of a channel between two commits (AMQP 0-9-1, class tx), or in a branch.

Routes are resolved, and errors raised, when a message is published. At the commit, all publishes,
acks and rejections, with the resulting dead letters, become one transaction of the store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

import amqpstore
from amqpstore import Message, MessageDamagedError, ReadLaterError, Run
from amqpstore.format.departures import Departure
from amqpstore_server.broker.channels.confirms import Flags
from amqpstore_server.broker.channels.firehose import Firehose, Origin
from amqpstore_server.broker.channels.outlet import Outlet, Returned
from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.messages.deaths import Reason
from amqpstore_server.broker.messages.envelope import ParsedEnvelope
from amqpstore_server.broker.queues.delivery import Delivery
from amqpstore_server.broker.queues.pending_moves import affordable
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.routing.routing import Route
from amqpstore_server.broker.transactions.dead_letter import DeadLetters, Fate
from amqpstore_server.broker.transactions.transaction import Plan, Transaction, plan, refuse_if_full
from amqpstore_server.broker.work.services import BrokerServices


class _Sent:
    """Messages with one route, which they got when they were published.

    `envelope` is that of the first; what its queues read in it is the same in all.
    """

    __slots__ = (
        *("byte_count", "envelope", "flags", "has_lost_route", "messages", "route"),
        "undelivered",
    )

    def __init__(
        self, route: Route, envelope: ParsedEnvelope, messages: list[Message], flags: Flags
    ) -> None:
        self.route = route
        self.envelope = envelope
        self.messages = [*messages]
        self.flags = flags
        self.byte_count = 0
        self.undelivered = 0
        self.has_lost_route = False
        """Whether all of its queues were deleted before the commit: one that is deleted later
        counts them itself."""

    def takes(self, envelope: ParsedEnvelope, flags: Flags) -> bool:
        """Tell whether messages that are alike may be added."""
        first = self.envelope
        return (
            self.byte_count < _JOINED_BYTES
            and self.flags == flags
            and first.priority == envelope.priority
            and first.persistent == envelope.persistent
            and first.expiration_ms == envelope.expiration_ms
        )


_MESSAGE_BYTES = 200
_SENT_BYTES = 600
"""Approximate memory of a message, and of what is kept once for messages that are alike, besides
the client's bytes.
"""


_JOINED_BYTES = 1 << 20
"""Messages are added to others up to this size: they leave memory together."""


_MAX_ADDED = 4096
_MAX_SETTLED = 512
"""Publishes, counted for each of their queues, and deliveries that are handled before others have
their turn.
"""


class UncommittedBytes:
    """Counts the memory of the uncommitted publishes of a connection's channels."""

    __slots__ = ("byte_count",)

    def __init__(self) -> None:
        self.byte_count = 0


class TransactedChannel(Protocol):
    """A channel as its transaction needs it."""

    @property
    def uncommitted(self) -> UncommittedBytes: ...

    @property
    def outlet(self) -> Outlet: ...

    @property
    def firehose(self) -> Firehose: ...

    @property
    def origin(self) -> Origin: ...

    def settled(self, delivery: Delivery, *, requeue: bool | None) -> None:
        """Finish a delivery: it was acked, requeued or dropped."""

    def forget(self, delivery: Delivery, *, requeue: bool | None) -> None:
        """Stop counting a delivery as unacked: it was acked, requeued or dropped."""

    def count_published(
        self, route: Route, exchange: str, count: int, flags: Flags, undelivered: int
    ) -> None:
        """Count messages of one route and exchange as published. Args: undelivered, how many of
        them were returned because no consumer could take them at once.
        """


class LocalTransaction:
    """The uncommitted work of a channel. The memory of its publishes is counted in the channel's
    `uncommitted`.
    """

    def __init__(
        self, channel: TransactedChannel, services: BrokerServices, dead_letters: DeadLetters
    ) -> None:
        self._channel = channel
        self._services = services
        self._dead_letters = dead_letters
        self._uncommitted = channel.uncommitted
        self._byte_count = 0
        self._sent: list[_Sent] = []
        self._open: dict[Route, _Sent] = {}
        """Messages to which others of the same route may be added: nothing later is in their
        queues.
        """
        self._last_of: dict[Queue, _Sent] = {}
        self._settled: list[Delivery] = []
        self._requeues: list[bool | None] = []
        """How each of them is settled; None is an ack."""
        self._is_adding = False
        """Whether a commit has begun, which has not ended yet."""
        self._fates: dict[Delivery, Fate] = {}
        """The fates of rejected messages that are dead letters."""
        self._enqueued: list[tuple[amqpstore.Queue, int, bool]] = []
        """The enqueues of the commit, in this order: the queue, how many messages it gets, and
        whether they are persistent.
        """
        self._cost = 0
        """The cost of what the last step of the commit has moved: see `affordable`."""

    def publish(
        self, route: Route, envelope: ParsedEnvelope, messages: list[Message], flags: Flags
    ) -> None:
        """Add published messages."""
        size = _SENT_BYTES
        for message in messages:
            size += len(message.body) + len(message.envelope.properties) + _MESSAGE_BYTES
        self._byte_count += size
        # The transaction is counted as it grows, for all channels of the connection together.
        self._uncommitted.byte_count += size
        sent = self._open.get(route)
        if sent is not None and sent.takes(envelope, flags):
            # Each has properties of its own, but for the queues they are one publish: a commit of
            # 100,000 messages must not take 100,000 of them.
            sent.messages += messages
        else:
            sent = _Sent(route, envelope, messages, flags)
            self._append(sent)
        sent.byte_count += size

    def _append(self, sent: _Sent) -> None:
        self._sent.append(sent)
        for queue in sent.route.queues:
            # The order in each queue is that of the publishes.
            if earlier := self._last_of.get(queue):
                self._open.pop(earlier.route, None)
            self._last_of[queue] = sent
        # Whether a consumer can take an immediate message is looked at for each.
        if sent.route.queues and not sent.flags.immediate:
            self._open[sent.route] = sent

    def settle(self, delivery: Delivery, *, requeue: bool | None) -> None:
        """Add an ack or a rejection; the delivery counts as unacked until the commit."""
        self._settled.append(delivery)
        self._requeues.append(requeue)

    @property
    def settled(self) -> Sequence[Delivery]:
        """The deliveries that it acks or rejects."""
        return self._settled

    @property
    def waiting(self) -> Sequence[Delivery]:
        """The settled deliveries, as long as no commit has begun."""
        return () if self._is_adding else self._settled

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of publishes and of acks that wait for the commit."""
        return (
            sum([len(sent.messages) for sent in self._sent]),
            sum([delivery.count for delivery in self._settled]),
        )

    @property
    def has_settled(self) -> bool:
        """Whether it contains acks or rejections."""
        return bool(self._settled)

    def rollback(self) -> list[Delivery]:
        """Drop everything. Returns the deliveries that were settled: they are unacked again."""
        settled, self._settled = self._settled, []
        self._requeues = []
        self._is_adding = False
        self._fates = {}
        # Messages are freed piece by piece: a rollback of a million would stop the loop.
        self._services.store.disposal.add([sent.messages for sent in self._sent])
        self._forget_sent()
        return settled

    def committing(self) -> Iterator[None]:
        """Commit everything, or nothing, in steps: others may have their turn after each, but its
        channel only after the last.

        It takes many steps to gather what is committed, and one to commit it. If they are not taken
        that far, because the channel has gone, nothing is committed.
        Raises: PreconditionFailedError, ResourceExhaustedError.
        """
        channel = self._channel
        transaction = Transaction(self._services)
        try:
            yield from self.adding_to(transaction)
        except BaseException:
            # The generator may also be closed in the middle, when the client has gone.
            transaction.undo()
            raise
        enqueued, self._enqueued = self._enqueued, []
        sequences = {queue: queue.next_sequence for queue, _, _ in enqueued}
        # In one step and one batch: before it nothing is decided, and after it nothing can be
        # undone.
        transaction.commit(channel.outlet.committed, channel.outlet.failed)
        if (trails := self._services.trails) is not None:
            # They are the first in each queue: what the transaction rejects goes there after them.
            for queue, count, persistent in enqueued:
                first = sequences[queue]
                sequences[queue] = first + count
                trails.published(channel.origin, queue, first, count, persistent=persistent)
        self.trace()
        yield from self.finishing()

    def trace(self) -> None:
        """Copy the publishes for the firehose, if it is on: they are committed."""
        channel = self._channel
        publishes = [(sent.route.queues, sent.messages) for sent in self._sent]
        channel.firehose.committed(channel.origin, publishes)

    def adding_to(self, transaction: Transaction) -> Iterator[None]:
        """Add the work to a store transaction, in steps; unroutable mandatory messages are returned
        in the last.

        Raises: PreconditionFailedError, if a queue refuses a part. The transaction has to be undone
        then, and if not all steps are taken.
        """
        self._services.work["transaction"] = None
        self._is_adding = True
        sent_by_client = self._sent
        plans = []
        count = 0
        self._enqueued = []
        for sent in sent_by_client:
            # The route was found at the publish; queues that were deleted since get nothing.
            planned = self._plan(sent)
            sent.has_lost_route = bool(sent.route.queues) and not planned.queues
            # A transaction is all or nothing: one queue that refuses a message undoes it.
            refuse_if_full(planned)
            transaction.publish(planned)
            plans.append(planned)
            for queue, _, most, _ in planned.placements:
                enqueued = len(sent.messages) if most is None else min(most, len(sent.messages))
                self._enqueued.append((queue, enqueued, planned.envelope.persistent))
            count += len(sent.messages) * len(planned.queues)
            if count > _MAX_ADDED:
                count = 0
                yield
        yield from self._adding_settled(transaction)
        # basic.return comes before tx.commit-ok.
        for sent, planned in zip(sent_by_client, plans, strict=True):
            self._return(sent, planned)

    def _adding_settled(self, transaction: Transaction) -> Iterator[None]:
        """Raises: PreconditionFailedError, if the bodies that have to be read back exceed the
        memory limit.
        """
        room = most = self._services.limits.max_read_back_bytes
        self._fates = {}
        each = zip(self._settled, self._requeues, strict=True)
        for number, (delivery, requeue) in enumerate(each, 1):
            if not number % _MAX_SETTLED:
                yield
            queue, taken = delivery.queue, delivery.taken
            # A requeue needs nothing of the log: it is done after the commit, with the counts.
            if queue.is_deleted or requeue:
                continue
            # The acks are in the same batch as the publishes: after tx.commit-ok no crash brings
            # acked messages back.
            transaction.ack(queue, taken)
            if not (queue.sends_on if requeue is False else queue.history is not None):
                continue
            if taken.run.messages is None:
                room -= taken.run.body_bytes
                if room < 0:
                    raise PreconditionFailedError(
                        f"more than {most >> 20} MiB of messages would be read back "
                        "for this transaction, to be dead letters or kept in a history: it is "
                        "undone; settle fewer of them at a time"
                    )
            try:
                if requeue is None:
                    yield from self._moving(transaction, queue, taken.run)
                else:
                    fate = self._fates[delivery] = Fate()
                    yield from self._moving(transaction, queue, taken.run, fate)
            except (ReadLaterError, MessageDamagedError) as error:
                raise PreconditionFailedError(f"the transaction is undone: {error}") from None

    def _moving(
        self, transaction: Transaction, queue: Queue, run: Run, fate: Fate | None = None
    ) -> Iterator[None]:
        """Have the transaction move messages that were settled to where they go.

        Args: fate, of those that were rejected; None if they were acked.
        Raises: ReadLaterError, MessageDamagedError.
        """
        services = self._services
        left = services.limits.round_budget - self._cost
        for part in services.store.stored.chunks(run):
            index = 0
            while index < len(part):
                if left <= 0:
                    yield
                    left = services.limits.round_budget
                count, cost = affordable(part, left, index)
                left -= cost
                services.agenda.spent += cost
                messages = part[index : index + count]
                index += count
                if fate is None:
                    transaction.keep(queue, messages)
                else:
                    self._dead_letters.add_rejected(transaction, queue, messages, fate)
            if run.messages is None:
                yield
                left = services.limits.round_budget
        self._cost = services.limits.round_budget - left

    def finishing(self) -> Iterator[None]:
        """Finish the settled deliveries, in steps: they are part of the store transaction now.

        If not all steps are taken, because the channel has gone, the rest follows in later rounds.
        """
        channel = self._channel
        # Each is freed with its step, not all of them at the end.
        settled, requeues = deque(self._settled), deque(self._requeues)
        self._settled = []
        self._requeues = []
        self._is_adding = False
        for sent in self._sent:
            route, flags = sent.route, sent.flags
            if sent.has_lost_route:
                route, flags = Route([], route.counters), Flags()
            exchange = sent.messages[0].envelope.exchange
            channel.count_published(route, exchange, len(sent.messages), flags, sent.undelivered)
        self._forget_sent()
        yield from self._finishing(settled, requeues)

    def _finishing(self, settled: deque[Delivery], requeues: deque[bool | None]) -> Iterator[None]:
        try:
            while settled:
                for _ in range(min(len(settled), _MAX_SETTLED)):
                    self._finish(settled.popleft(), requeues.popleft())
                if settled:
                    yield
        finally:
            if settled:
                self._services.agenda.background.append(self._finishing(settled, requeues))

    def _finish(self, delivery: Delivery, requeue: bool | None) -> None:
        if requeue or delivery.queue.is_deleted:
            # For a deleted queue this only releases the message.
            self._channel.settled(delivery, requeue=True)
        else:
            self._channel.forget(delivery, requeue=requeue)
            if requeue is False:
                self._note_rejected(delivery)

    def _note_rejected(self, delivery: Delivery) -> None:
        if fate := self._fates.pop(delivery, None):
            fate.note(delivery.queue, Reason.REJECTED, delivery.count)
        else:
            delivery.queue.departures.note(Departure.REJECTED, delivery.count)

    def _forget_sent(self) -> None:
        self._sent = []
        self._open.clear()
        self._last_of.clear()
        self._uncommitted.byte_count -= self._byte_count
        self._byte_count = 0

    def _plan(self, sent: _Sent) -> Plan:
        queues = [queue for queue in sent.route.queues if not queue.is_deleted]
        return plan(Route(queues), sent.envelope, sent.messages, immediate=sent.flags.immediate)

    def _return(self, sent: _Sent, planned: Plan) -> None:
        outlet = self._channel.outlet
        if sent.flags.mandatory and not sent.route.is_routed:
            outlet.returned(sent.messages, Returned.NO_ROUTE)
        elif sent.flags.immediate and planned.delivered < len(sent.messages):
            outlet.returned(sent.messages[planned.delivered :], Returned.NO_CONSUMERS)
            if planned.queues:
                sent.undelivered = len(sent.messages) - planned.delivered
