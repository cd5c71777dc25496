"""The publishes of one round of reads, of all clients, which are put in their queues together.

Where many clients send little each, what has to be done for each publish costs much more than its
bytes. So publishes that need no decision of their own are deferred while sockets are read, and
then flushed together: one look at the disk's space, one run for each queue, one call once all of
them are durable.

Whatever else a client sends in the same round may depend on them, except acks: so it has them
flushed first. Outside a round of reads none is waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from amqpstore import DiskFullError, Message, Placement, Queue, Store
from amqpstore.provenance.client_trails import ClientTrails
from amqpstore_server.broker.errors import ResourceExhaustedError
from amqpstore_server.broker.monitoring.counters import ExchangeCounters
from amqpstore_server.broker.monitoring.faults import FATAL, called
from amqpstore_server.broker.work.agenda import Agenda, Pumped
from amqpstore_server.broker.work.limits import BrokerLimits
from amqpstore_server.broker.work.statistics import BrokerStatistics

_log = logging.getLogger(__name__)


class SimpleRoute(Protocol):
    """A route as deferred publishes need it."""

    plain: list[Any]
    """Queues of the broker, for `note_arrivals`."""

    placements: list[Placement]
    stored: list[Queue]
    counters: ExchangeCounters
    copies: int


class DeferringServices(Protocol):
    """The services of the broker that deferred publishes need."""

    store: Store
    agenda: Agenda
    limits: BrokerLimits
    statistics: BrokerStatistics
    trails: ClientTrails | None


ONE = range(1)
"""The indexes of a message that is alone."""

Routed = Sequence[tuple[SimpleRoute, Sequence[int]]]
"""Simple routes, each with the indexes of its messages, ascending."""

WaitingConfirm = tuple["DeferringPublisher", int, int]
"""A publisher, and the first and the last tag to confirm."""


class DeferringPublisher(Protocol):
    """The publishing half of a channel."""

    @property
    def origin(self) -> tuple[str, int, str]:
        """The publisher: the name of the connection, the number of the channel, and the user."""

    @property
    def is_open(self) -> bool:
        """Whether the channel is open, or its client is still to be told of what was refused."""

    def enqueued(self, routes: Routed, count: int, waiting: list[WaitingConfirm] | None) -> None:
        """Note that its next messages are in the queues of their routes.

        Args: waiting, to which it adds what is to be confirmed once they are durable; None if they
        can be confirmed now.
        """

    def confirm_durable(self, first: int, last: int) -> None:
        """Confirm tags: their messages are durable."""

    def refuse(self, error: ResourceExhaustedError) -> None:
        """Tell the client that its messages cannot be stored."""

    def fail(self) -> None:
        """End the client's connection, after an internal error."""


_Entry = tuple[DeferringPublisher, Routed, list[Message], int]
"""Consecutive messages of one channel, with the bytes of their bodies."""


class DeferredPublishes:
    """The publishes that wait to be flushed, in `entries`: all have simple routes, and are safe at
    the same time.
    """

    def __init__(self, services: DeferringServices) -> None:
        self.entries: list[_Entry] = []
        self.copies = 0
        """How many messages have come since it was set to 0; one for two queues counts as two."""
        self._services = services
        self._agenda = services.agenda
        self._statistics = services.statistics
        self._log = services.store.log
        self._kind: object = None
        self._byte_count = 0

    def defer(
        self,
        publisher: DeferringPublisher,
        kind: object,
        routes: Routed,
        messages: list[Message],
        body_bytes: int,
        copies: int,
    ) -> None:
        """Defer messages of one channel.

        Args: kind, equal for messages that can be enqueued together: delivery mode, priority, and
        whether their queues are durable; body_bytes, of all of them; copies, how many they are in
        all their queues.
        """
        if self._kind != kind:
            self.flush()
            self._kind = kind
        self.entries.append((publisher, routes, messages, body_bytes))
        self.copies += copies
        limits = self._services.limits
        self._byte_count += body_bytes + limits.deferred_copy_bytes * copies
        if self._byte_count >= limits.max_deferred_bytes or copies >= limits.max_deferred_copies:
            self.flush()

    def flush(self) -> None:
        """Put all of them in their queues, and confirm them: now, or once they are durable."""
        entries = self.entries
        if not entries:
            return
        # The entries are taken off first: what follows may come here again, as `_refuse` does.
        self.entries = []
        self._byte_count = 0
        try:
            is_logged = self._enqueue(entries)
        except FATAL:
            raise
        except DiskFullError as error:
            self._refuse(entries, error)
            return
        except Exception:  # noqa: BLE001
            # It costs these clients their connections, and does not affect others.
            _log.exception("publishes cannot be enqueued")
            for entry in entries:
                called(entry[0].fail)
            return
        waiting: list[WaitingConfirm] | None = [] if is_logged else None
        for publisher, routes, messages, _ in entries:
            try:
                publisher.enqueued(routes, len(messages), waiting)
            except FATAL:
                raise
            except Exception:  # noqa: BLE001
                _cannot_confirm(publisher)
        if waiting:
            confirm = partial(self._confirm, waiting, self._agenda.read_s)
            self._log.when_durable(confirm)

    def _enqueue(self, entries: list[_Entry]) -> bool:
        """Put messages in their queues. Returns whether they entered the log.

        Raises: DiskFullError; nothing is done then.
        """
        _, routes, messages, body_bytes = entries[0]
        if len(entries) == len(routes) == 1:
            route = routes[0][0]
            note_arrivals(self._agenda.arrivals, route.plain)
            placements: Sequence[Placement] = route.placements
        else:
            placements, messages, body_bytes = self._joined(entries)
        envelope: Any = messages[0].envelope  # a ParsedEnvelope
        is_logged = self._services.store.enqueue(
            placements, messages, priority=envelope.priority, whole_bytes=body_bytes
        )
        probes = self._statistics.probes
        if probes.is_due:
            probes.begin(placements[0].queue, self._agenda.read_s)
        if is_logged and self._services.trails is not None:
            trails, whole = self._services.trails, len(messages)
            _note(trails, entries, placements, whole, persistent=envelope.persistent)
        return is_logged

    def _joined(self, entries: list[_Entry]) -> tuple[Sequence[Placement], list[Message], int]:
        """Return where the messages of all entries go, these, and the bytes of their bodies."""
        arrivals = self._agenda.arrivals
        messages: list[Message] = []
        body_bytes = 0
        queue_indexes: dict[Queue, list[int]] = {}
        last: SimpleRoute | None = None
        is_mixed = False
        for _, routes, entry_messages, entry_bytes in entries:
            first = len(messages)
            messages += entry_messages
            body_bytes += entry_bytes
            for route, indexes in routes:
                if route is not last:
                    note_arrivals(arrivals, route.plain)
                    last = route
                at: Sequence[int]
                if indexes is ONE:
                    at = (first,)
                else:
                    at = [first + index for index in indexes] if first else indexes
                for queue in route.stored:
                    if queue in queue_indexes:
                        queue_indexes[queue] += at
                    else:
                        queue_indexes[queue] = [*at]
            is_mixed = is_mixed or len(routes) > 1
        if is_mixed:
            # Several routes of one entry may lead to the same queue.
            for of_queue in queue_indexes.values():
                of_queue.sort()
        whole = len(messages)
        placements = [
            Placement(queue, indexes=None if len(at) == whole else at)
            for queue, at in queue_indexes.items()
        ]
        return placements, messages, body_bytes

    def _refuse(self, entries: list[_Entry], error: DiskFullError) -> None:
        """Enqueue what still fits on the disk, client by client."""
        if len(entries) == 1:
            refused = ResourceExhaustedError(str(error))
            called(partial(entries[0][0].refuse, refused))
            return
        for entry in entries:
            # What a client sent after something that was refused is ignored, as it always is.
            if entry[0].is_open:
                self.entries = [entry]
                self.flush()

    def _confirm(self, waiting: list[WaitingConfirm], read_s: float) -> None:
        """Confirm what is durable; one that fails does not prevent the others."""
        count = 0
        for publisher, first, last in waiting:
            count += last - first + 1
            try:
                publisher.confirm_durable(first, last)
            except FATAL:
                raise
            except Exception:  # noqa: BLE001
                _cannot_confirm(publisher)
        self._statistics.confirmed.append((self._log.completed_s - read_s, count))


def note_arrivals(arrivals: dict[Pumped, None], queues: Sequence[Any]) -> None:
    """Have queues that got messages pumped, if any consumer or get waits there. Args: arrivals, of
    the agenda; queues, each a `Queue` that is plain: nothing but a consumer concerns it.
    """
    for queue in queues:
        if queue.consumers.consumers or queue.waiting.gets:
            arrivals[queue] = None


def _note(
    trails: ClientTrails,
    entries: list[_Entry],
    placements: Sequence[Placement],
    whole: int,
    *,
    persistent: bool,
) -> None:
    """Note who published what was just put in queues. Args: whole, how many messages that is."""
    first_origin = entries[0][0].origin
    if len(entries) == 1 or len({id(entry[0].origin) for entry in entries}) == 1:
        for queue, _, _, indexes in placements:
            count = whole if indexes is None else len(indexes)
            first = queue.next_sequence - count
            trails.published(first_origin, queue, first, count, persistent=persistent)
        return
    origins: list[tuple[str, int, str]] = []
    for publisher, _, messages, _ in entries:
        if len(messages) == 1:
            origins.append(publisher.origin)
        else:
            origins += [publisher.origin] * len(messages)
    for queue, _, _, indexes in placements:
        clients = origins if indexes is None else [origins[index] for index in indexes]
        first = queue.next_sequence - len(clients)
        trails.published_by(clients, queue, first, persistent=persistent)


def _cannot_confirm(publisher: DeferringPublisher) -> None:
    """End the connection of a client that would wait for ever, because of the current error."""
    _log.exception("a publish cannot be confirmed")
    called(publisher.fail)
