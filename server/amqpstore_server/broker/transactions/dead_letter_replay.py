"""Dead letters that an operator sends back to where they died: to the queue that the newest entry
of x-death names, or once more through the exchange that it names.

Whoever publishes straight into a queue of dead letters may write any x-death, and would decide
where an operator's rights take the message. So only an entry that this broker has written since the
message was published counts, unless the operator trusts those who publish there: as for letters
that came from another broker with their deaths.

A letter goes back as it was before it died. All headers about its deaths are removed: otherwise it
would be dropped as a cycle if it came through the same queues again. In their place
`x-replay-count` counts its replays, and one that was replayed too often stays: it would come back
for ever. So does one that would arrive in the queue that it is in.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from amqpstore import Message
from amqpstore.format.departures import Departure
from amqpstore_server.broker.errors import (
    AccessRefusedError,
    NotFoundError,
    PreconditionFailedError,
    ResourceExhaustedError,
)
from amqpstore_server.broker.messages.cycles import (
    LANDMARK,
    LANDMARK_FIELD,
    deaths_since_publish,
    mark_of,
)
from amqpstore_server.broker.messages.envelope import ParsedEnvelope
from amqpstore_server.broker.routing.routing import Route
from amqpstore_server.broker.transactions.selected import (
    DISK_FULL,
    GONE,
    UNREADABLE,
    Handled,
    Selection,
    commit,
    durable,
    put_back,
    room,
    selected,
    take,
)
from amqpstore_server.broker.transactions.transaction import Plan, Transaction, plan
from amqpstore_server.protocol.content import (
    decode_properties,
    edit_properties,
    split_properties,
)
from amqpstore_server.protocol.field_table import Int64, split_table

if TYPE_CHECKING:
    from amqpstore_server.broker.queues.backlog import Taken
    from amqpstore_server.broker.queues.browsing import SeenMessage
    from amqpstore_server.broker.queues.queue import Queue
    from amqpstore_server.broker.routing.publish_rights import PublishRights
    from amqpstore_server.broker.routing.routing import Router
    from amqpstore_server.broker.work.services import BrokerServices

REPLAY_COUNT = "x-replay-count"
MAX_REPLAYS = 10

_PIECE = 64
"""Letters in one transaction: each has properties of its own, and a route."""

_MAX_KEYS = 64
"""A letter with more routing keys is not routed: each takes time, and clients write x-death, too.
"""

_OF_DEATHS = (
    "x-death",
    LANDMARK,
    *(
        f"x-{when}-death-{what}"
        for when in ("first", "last")
        for what in ("reason", "queue", "exchange")
    ),
)


class _Left(Exception):  # noqa: N818 - it is no error
    """The letter stays where it is; the text says why."""


class Return(NamedTuple):
    """The way back of letters: `through_exchange`, or straight to their queue, as far as the
    operator has `rights` to. A letter that was replayed `max_replays` times stays, and so does one
    whose x-death its publisher wrote, unless the operator `trusts_publishers`.
    """

    through_exchange: bool
    max_replays: int
    rights: PublishRights
    trusts_publishers: bool = False


def replaying_dead_letters(
    services: BrokerServices,
    router: Router,
    queues: Mapping[str, Queue],
    queue: Queue,
    selection: Selection,
    how: Return,
) -> Generator[None, None, Handled]:
    """Send selected dead letters back. What cannot go back stays, and the others go on.

    Durable when it returns. Raises: ReadLaterError.
    """
    handled = Handled()
    letters = _Letters(services, router, queues, queue, how)
    for piece in selected(services, queue, selection, min(_PIECE, services.limits.max_selected)):
        if piece is None:
            yield
            continue
        # Others have their turn before the piece is taken, so nothing is off its queue meanwhile.
        yield from room(services)
        if queue.is_deleted or queue.is_set_aside:
            handled.stopped = GONE
            break
        letters.send_back(piece, handled)
        if handled.stopped:
            break
    yield from durable(services)
    return handled


class _Letters:
    """The dead letters in one queue."""

    def __init__(
        self,
        services: BrokerServices,
        router: Router,
        queues: Mapping[str, Queue],
        queue: Queue,
        how: Return,
    ) -> None:
        self._services = services
        self._router = router
        self._queues = queues
        self._queue = queue
        self._how = how
        self._mark = mark_of(services.store.store_id)

    def send_back(self, piece: Sequence[SeenMessage], handled: Handled) -> None:
        """Send a piece back, in one transaction."""
        readable = [one for one in piece if one.message is not None]
        if len(readable) < len(piece):
            handled.skip(UNREADABLE, len(piece) - len(readable))
        # Messages are replayed one by one, as each may go elsewhere or stay.
        returning = [
            (one, [message])
            for taken, messages in take(self._queue, readable)
            for one, message in _each(taken, messages)
        ]
        going: list[tuple[Taken, list[Message]]] = []
        staying: list[tuple[Taken, list[Message]]] = []
        transaction = Transaction(self._services)
        try:
            for taken, messages in returning:
                try:
                    transaction.publish(self._plan(messages[0]))
                except _Left as reason:
                    handled.skip(str(reason))
                    staying.append((taken, messages))
                else:
                    transaction.ack(self._queue, taken)
                    going.append((taken, messages))
            commit(self._services, transaction)
        except Exception as error:
            transaction.undo()
            # All messages go back, whether they were to go or not: the transaction has taken none.
            put_back(self._queue, returning)
            if not isinstance(error, ResourceExhaustedError):
                raise
            handled.stopped = DISK_FULL
            return
        put_back(self._queue, staying)
        handled.count += len(going)
        self._queue.departures.note(Departure.REPLAYED, len(going))

    def _plan(self, letter: Message) -> Plan:
        """Plan where a letter goes. Raises: _Left."""
        envelope = letter.envelope
        properties = decode_properties(envelope.properties)
        headers = properties.headers or {}
        name, exchange, keys = _origin(headers)
        if not (self._how.trusts_publishers or self._has_died(envelope.properties)):
            raise _Left(
                "its x-death is not this broker's, but was published with it: the operator may say "
                "that publishers are trusted"
            )
        count = headers.get(REPLAY_COUNT)
        # A client may have written anything there. Text would never reach the limit.
        count = count if isinstance(count, int) and not isinstance(count, bool) else 0
        if count >= self._how.max_replays:
            raise _Left(f"replayed {count} times already")
        raw = edit_properties(
            envelope.properties,
            headers={REPLAY_COUNT: Int64(count + 1)},
            without_headers=_OF_DEATHS,
        )
        # Of what an envelope reads nothing is changed.
        try:
            parsed = ParsedEnvelope(exchange, keys[0], raw, properties, tuple(keys[1:]))
        except (ValueError, PreconditionFailedError):  # a client may have written anything there
            raise _Left("no message can be published as its x-death says") from None
        route = self._routed(parsed) if self._how.through_exchange else self._to_queue(name)
        planned = plan(route, parsed, [Message(parsed, letter.body)])
        if not planned.accepted:
            raise _Left("a queue is full")
        return planned

    def _has_died(self, raw: bytes) -> bool:
        """Tell whether the first entry of x-death is this broker's."""
        headers = split_table(split_properties(raw)["headers"])
        return deaths_since_publish(headers.get(LANDMARK_FIELD), self._mark) > 0

    def _to_queue(self, name: str) -> Route:
        target = self._queues.get(name)
        if target is None or not target.is_listed:
            raise _Left(f"no queue '{name}'")
        self._check(target)
        try:
            self._how.rights.check_queue(name)
        # The rights of who replays count, not those of who published: the x-death says where, and
        # may be forged.
        except AccessRefusedError:
            raise _Left(f"no permission to write to queue '{name}'") from None
        return Route([target])

    def _routed(self, parsed: ParsedEnvelope) -> Route:
        exchange, keys = parsed.address
        if len(keys) > _MAX_KEYS:
            raise _Left(f"it has more than {_MAX_KEYS} routing keys")
        rights = self._how.rights
        try:
            rights.check_exchange(exchange)
        except AccessRefusedError:
            raise _Left(f"no permission to write to exchange '{exchange}'") from None
        try:
            rights.check(exchange, keys)
        except (AccessRefusedError, NotFoundError) as error:
            raise _Left(str(error)) from None
        route = self._router.route(parsed)
        if not route.queues:
            raise _Left(f"exchange '{exchange}' routes it nowhere")
        for target in route.queues:
            self._check(target)
        return route

    def _check(self, target: Queue) -> None:
        if target is self._queue:
            raise _Left("it would come back to this queue")
        if target.is_set_aside:
            raise _Left(f"queue '{target.name}' has failed")


def _origin(headers: Mapping[str, Any]) -> tuple[str, str, list[str]]:
    """Return the queue in which a letter died last, and the exchange and the routing keys by which
    it had come there. Raises: _Left.
    """
    deaths = headers.get("x-death")
    death = deaths[0] if isinstance(deaths, list) and deaths else None
    if isinstance(death, Mapping):
        queue, exchange, keys = (death.get(key) for key in ("queue", "exchange", "routing-keys"))
        keys = [key for key in keys if isinstance(key, str)] if isinstance(keys, list) else []
        if isinstance(queue, str) and isinstance(exchange, str) and keys:
            return queue, exchange, keys
    raise _Left("no x-death that says where it was")


def _each(taken: Taken, messages: Sequence[Message]) -> list[tuple[Taken, Message]]:
    """Return the messages of a run one by one, each taken by itself."""
    heads = [(taken._replace(run=taken.run.split(1)), message) for message in messages[:-1]]
    return [*heads, (taken, messages[-1])]
