"""Puts the messages that one channel publishes into queues or returns them, and confirms them."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from amqpstore import DiskFullError, Message, Placement
from amqpstore.format.departures import Departure
from amqpstore.format.runs import body_bytes
from amqpstore_server.broker.channels.firehose import NOWHERE, Origin
from amqpstore_server.broker.channels.outlet import CLOSED, Outlet, Returned
from amqpstore_server.broker.errors import ResourceExhaustedError
from amqpstore_server.broker.messages.envelope import ParsedEnvelope
from amqpstore_server.broker.monitoring.counters import ChannelCounters
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.rights.permissions import DEFAULT_EXCHANGE_RESOURCE
from amqpstore_server.broker.routing.routing import Route
from amqpstore_server.broker.transactions.dead_letter import DeadLetters
from amqpstore_server.broker.transactions.replay import ReplayOutcome, Replays
from amqpstore_server.broker.transactions.transaction import plan
from amqpstore_server.broker.work.deferred_publishes import (
    Routed,
    WaitingConfirm,
    note_arrivals,
)
from amqpstore_server.broker.work.services import BrokerServices

MAX_NOTED = 8
"""In how many of its queues it is noted who published a message: the log knows the others as long
as it has the message.
"""


class Flags(NamedTuple):
    """The conditions on which the publisher wants messages back: `mandatory` and `immediate`."""

    mandatory: bool = False
    immediate: bool = False


class _Promise(enum.Enum):
    """The outcome of a publish: when it is confirmed, or that it is refused."""

    NOW = enum.auto()
    WHEN_DURABLE = enum.auto()
    REFUSED = enum.auto()


class _Published(NamedTuple):
    """Publishes with contiguous tags."""

    first: int
    last: int
    promise: _Promise


class Publisher:
    """The publishing half of a channel. With `confirms`, it reports the outcome of each publish to
    its `outlet`.

    Args: counters, of the channel, in which messages are counted; origin, who publishes; vhost,
    whose log is told of unroutable messages, if it has a name.
    """

    def __init__(
        self,
        services: BrokerServices,
        dead_letters: DeadLetters,
        replays: Replays,
        outlet: Outlet,
        counters: ChannelCounters,
        origin: Origin = NOWHERE,
        vhost: str = "",
    ) -> None:
        self.confirms = False
        self.origin = origin
        self.outlet = outlet
        self._vhost = vhost
        self._services = services
        self._log = services.store.log
        self._agenda = services.agenda
        self._statistics = services.statistics
        self._probes = services.statistics.probes
        self._trails = services.trails
        self._dead_letters = dead_letters
        self._replays = replays
        self.counters = counters
        self._next_tag = 1
        self._published: list[_Published] = []
        self._waiting_confirms = 0
        self._was_wide = False

    def publish(
        self, route: Route, envelope: ParsedEnvelope, messages: list[Message], flags: Flags
    ) -> None:
        """Put messages that are alike into the queues of their route. Raises:
        ResourceExhaustedError.
        """
        count = len(messages)
        self.count(route, messages[0].envelope.exchange, count, flags, 0)
        self._agenda.spent += route.copies * self._services.limits.copy_cost
        if flags.mandatory and not route.is_routed:
            # Before the confirm, as in RabbitMQ: a publisher that has its confirm does not look for
            # a return any more.
            self.outlet.returned(messages, Returned.NO_ROUTE)
        if route.placements and envelope.expiration_ms is None and not flags.immediate:
            note_arrivals(self._agenda.arrivals, route.plain)
            self._note(count, self._enqueue(route.placements, envelope, messages))
            if self._probes.is_due:
                self._probes.begin(route.placements[0].queue, self._agenda.read_s)
            if route.limited:
                self._appended(route.limited, messages)
            return
        if not route.queues:
            # An unroutable message is confirmed at once, behind its basic.return if it is
            # mandatory: the broker has done all that it will do with it.
            self._note(count, _Promise.NOW)
            return
        planned = plan(route, envelope, messages, immediate=flags.immediate)
        promise = self._enqueue(planned.placements, envelope, messages)
        planned.arrived(drops_later=self._is_wide(route.limited))
        if planned.delivered < count and flags.immediate:
            self.counters.return_undelivered += count - planned.delivered
            self.outlet.returned(messages[planned.delivered :], Returned.NO_CONSUMERS)
        # The first ones that fit are accepted and the rest is refused: in this order, so tags and
        # messages match.
        self._note(planned.accepted, promise)
        if planned.accepted < count:
            # basic.nack, as for RabbitMQ's overflow `reject-publish`.
            self._note(count - planned.accepted, _Promise.REFUSED)
            for queue, placement in zip(planned.queues, planned.placements, strict=True):
                if placement.most is None:
                    continue
                refused = messages[placement.most :]
                arrived = 0
                if queue.dead_letters_refused:
                    arrived = self._dead_letters.dead_letter_refused(queue, refused)
                queue.departures.note(Departure.PUBLISH_REJECTED, len(refused), arrived)

    def _appended(self, queues: Sequence[Queue], messages: list[Message]) -> None:
        """Tell queues with limits that messages were appended."""
        size = body_bytes(messages)
        drops_later = self._is_wide(queues)
        for queue in queues:
            queue.appended(messages, size, drops_later=drops_later)

    def _is_wide(self, queues: Sequence[Queue]) -> bool:
        """Whether the queues of a publish are too many to drop messages in this round."""
        is_wide = len(queues) > self._services.limits.max_dropping
        self._was_wide = self._was_wide or is_wide
        return is_wide

    @property
    def must_wait(self) -> bool:
        """Whether its next publishes have to wait until the queues of earlier ones have dropped
        what is too much: nothing else slows them down.
        """
        self._was_wide = self._was_wide and bool(self._agenda.late_drops)
        return self._was_wide

    # Calls from `DeferredPublishes`, to which its messages were left.

    @property
    def is_open(self) -> bool:
        return self.outlet is not CLOSED

    def enqueued(self, routes: Routed, count: int, waiting: list[WaitingConfirm] | None) -> None:
        for route, indexes in routes:
            message_count, exchange = len(indexes), route.counters
            exchange.publish_in += message_count
            exchange.publish_out += message_count * route.copies
        self.counters.publish += count
        if not self.confirms:
            return
        if self._published:
            # Something before it has no answer yet: both go through `confirm_published`, in the
            # order of the tags.
            self._note(count, _Promise.NOW if waiting is None else _Promise.WHEN_DURABLE)
            self.confirm_published()
            return
        first = self._take_tags(count)
        if waiting is None:
            self._confirm_now(first, first + count - 1)
        else:
            self._waiting_confirms += 1
            waiting.append((self, first, first + count - 1))

    def confirm_durable(self, first: int, last: int) -> None:
        # Batches become durable in order, and everything before was already answered: `multiple` is
        # safe.
        self._waiting_confirms -= 1
        count = last - first + 1
        self.counters.confirm += count
        self.outlet.confirm(last, multiple=last > first)

    def refuse(self, error: ResourceExhaustedError) -> None:
        self.outlet.publish_refused(error)

    def fail(self) -> None:
        # The outlet may have changed meanwhile: the channel may be closed.
        self.outlet.failed()

    def count(
        self, route: Route, exchange: str, count: int, flags: Flags, undelivered: int
    ) -> None:
        """Count messages of one route and exchange as published. Args: undelivered, how many of
        them were returned because no consumer could take them at once.
        """
        self.counters.return_undelivered += undelivered
        route.counters.publish_in += count
        route.counters.publish_out += count * route.copies
        self.counters.publish += count
        if not route.is_routed:
            self._count_unroutable(route, exchange, count, flags)

    def _count_unroutable(self, route: Route, exchange: str, count: int, flags: Flags) -> None:
        if not (flags.mandatory or route.is_dropped):
            return  # direct replies
        if flags.mandatory:
            self.counters.return_unroutable += count
        else:
            self.counters.drop_unroutable += count
        if self._vhost and not flags.mandatory:
            name = exchange or DEFAULT_EXCHANGE_RESOURCE
            self._statistics.departures.unroutable(self._vhost, name, count)

    def replay(self, message: Message, flags: Flags) -> Iterator[None]:
        """Carry out the replay that a message requests, in steps. Raises: PreconditionFailedError,
        ResourceExhaustedError.
        """
        self.counters.publish += 1
        outcome = yield from self._replays.replay(message.envelope)
        if outcome is ReplayOutcome.NOWHERE and flags.mandatory:
            self.outlet.returned([message], Returned.NO_ROUTE)
        self._note(
            1, _Promise.REFUSED if outcome is ReplayOutcome.REFUSED else _Promise.WHEN_DURABLE
        )

    def _enqueue(
        self, placements: Sequence[Placement], envelope: ParsedEnvelope, messages: list[Message]
    ) -> _Promise:
        """Raises: ResourceExhaustedError."""
        store = self._services.store
        try:
            logged = store.enqueue(placements, messages, priority=envelope.priority)
        except DiskFullError as error:
            raise ResourceExhaustedError(str(error)) from None
        if logged and self._trails is not None:
            persistent = envelope.persistent
            for queue, _, most, _ in placements[:MAX_NOTED]:
                count = len(messages) if most is None else min(most, len(messages))
                first = queue.next_sequence - count
                self._trails.published(self.origin, queue, first, count, persistent=persistent)
        return _Promise.WHEN_DURABLE if logged else _Promise.NOW

    def confirm_published(self) -> None:
        """Confirm everything published since the last call: at once, or when it is durable."""
        published, self._published = self._published, []
        first = last = 0
        for index, (run_first, run_last, promise) in enumerate(published):
            first = first or run_first
            last = run_last
            if index + 1 < len(published) and published[index + 1].promise == promise:
                continue
            if promise is _Promise.WHEN_DURABLE:
                self._waiting_confirms += 1
                confirm = partial(self._confirm_logged, first, last, self._agenda.read_s)
                self._services.when_durable(confirm, self.fail)
            elif promise is _Promise.NOW:
                self._confirm_now(first, last)
            else:
                self.counters.refuse += last - first + 1
                # Each message is refused by itself: `multiple` would refuse earlier ones that are
                # not answered yet.
                for tag in range(first, last + 1):
                    self.outlet.refuse(tag)
            first = 0

    def _note(self, count: int, promise: _Promise) -> None:
        if self.confirms and count:
            first = self._take_tags(count)
            self._published.append(_Published(first, first + count - 1, promise))

    def _take_tags(self, count: int) -> int:
        """Return the first of the tags of the next messages, which are to be confirmed."""
        first = self._next_tag
        self._next_tag += count
        self.counters.confirmable += count
        return first

    def _confirm_logged(self, first: int, last: int, read_s: float) -> None:
        self._statistics.confirmed.append((self._log.completed_s - read_s, last - first + 1))
        self.confirm_durable(first, last)

    def _confirm_now(self, first: int, last: int) -> None:
        count = last - first + 1
        self.counters.confirm += count
        if not self._waiting_confirms:
            self.outlet.confirm(last, multiple=last > first)
            return
        # `multiple` would confirm earlier ones, too, that the disk does not have yet.
        for tag in range(first, last + 1):
            self.outlet.confirm(tag, multiple=False)
