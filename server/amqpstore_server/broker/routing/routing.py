"""Routing: from an exchange and routing keys, over bindings and alternate exchanges, to queues."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from amqpstore import Message
from amqpstore.queues.queue import Placement
from amqpstore_server.broker.errors import (
    AccessRefusedError,
    NotFoundError,
    PreconditionFailedError,
)
from amqpstore_server.broker.exchanges.base import Destination, Exchange
from amqpstore_server.broker.exchanges.delayed import TYPE_ARGUMENT as DELAYED_TYPE
from amqpstore_server.broker.exchanges.topic import TopicExchange
from amqpstore_server.broker.messages.envelope import ParsedEnvelope
from amqpstore_server.broker.monitoring.counters import ExchangeCounters
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.protocol.content import BasicProperties, decode_properties

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqpstore_server.broker.work.services import BrokerServices

DEFAULT_EXCHANGE = ""

_ROUTE_BYTES = 700
_QUEUE_BYTES = 200
_KEY_BYTES = 60
"""Approximate size of a route for each queue, and of a cached routing key besides its text."""

_MAX_ROUTES = 1024

_CACHED_PROPERTIES_BYTES = 1024
"""A route that depends on more bytes of properties than this is not cached."""

_NO_PROPERTIES = BasicProperties()

_LOOKS_AT_ONCE = 8
"""How many routing keys exchanges look up before others have their turn, where that is possible."""

_USUAL_S = 20e-6
"""To find a route takes no longer, unless there are very many patterns or exchanges on the way."""

_Address = tuple[str, tuple[str, ...]]
KeyT = TypeVar("KeyT")
RouteT = TypeVar("RouteT")


class Route:
    """The queues that a message goes to, each once.

    If all of them append what comes, `placements` are where the messages go, and `stored` the same
    as queues of the store; otherwise both are empty and each queue has to be asked. `plain` are the
    plain queues, for `note_arrivals`, and `limited` the others, which have to be told (see
    `Queue.appended`). `counters` are those of the exchange that messages are published
    to; `copies` is the number of queues. `is_routed` tells whether it counts as routed;
    `is_dropped`, whether messages that are not returned are lost; `is_simple`, whether whatever
    comes is taken, and when it is safe depends on the message alone; then `is_durable` is what the
    queues are.
    """

    __slots__ = (
        "copies",
        "counters",
        "is_dropped",
        "is_durable",
        "is_routed",
        "is_simple",
        "limited",
        "placements",
        "plain",
        "queues",
        "stored",
    )

    def __init__(self, queues: list[Queue], counters: ExchangeCounters | None = None) -> None:
        self.queues = queues
        self.copies = len(queues)
        self.counters = counters or ExchangeCounters()
        self.limited = [queue for queue in queues if not queue.is_plain]
        self.plain = [queue for queue in queues if queue.is_plain] if self.limited else queues
        self.is_routed = any(queue.counts_as_route for queue in queues)
        self.is_dropped = not self.is_routed and all(queue.has_copies for queue in queues)
        self.placements: list[Placement] = []
        if all(queue.appends for queue in self.limited):
            self.placements = [Placement(queue.priorities.lowest) for queue in queues]
        self.stored = stored = [placement.queue for placement in self.placements]
        self.is_durable = any(queue.durable for queue in stored)
        self.is_simple = bool(stored) and self.is_routed and not self.limited
        # A message would be safe in one queue earlier than in another.
        for queue in stored:
            if queue.durable != self.is_durable or queue.keeps_transient:
                self.is_simple = False


class RouteStep(NamedTuple):
    """A step of a message's way: what one exchange does with it.

    `found` are the destinations that it returns for each routing key that it looks at; `alternate`
    is the exchange that gets the message because it goes nowhere from here.
    """

    exchange: Exchange
    found: list[tuple[str, list[Destination]]]
    alternate: Exchange | None


class _Walk(NamedTuple):
    """The result of a message's way through exchanges."""

    queues: list[Queue]
    counters: ExchangeCounters | None
    is_shared: bool
    is_repeatable: bool


class _Routes(dict[KeyT, RouteT]):
    """A cache of routes; it is cleared when it is full."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes
        self._byte_count = 0

    def remember(self, key: KeyT, route: RouteT, queue_count: int, address: _Address) -> None:
        """Cache a route. Args: queue_count, of the route; address, which the key is made of."""
        keys = address[1]
        size = _ROUTE_BYTES + _QUEUE_BYTES * queue_count
        size += sum(map(len, keys)) + _KEY_BYTES * len(keys)
        self._byte_count += size
        if self._byte_count > self._max_bytes:
            self.clear()
            self._byte_count = size
        self[key] = route

    def clear(self) -> None:
        """Clear the cache."""
        super().clear()
        self._byte_count = 0


class Router:
    """The routes of one virtual host, through its `exchanges` to its `queues`, by name.

    Routes are cached until `changed` is called. What it takes to find long ones for publishes is
    part of the budget of a round: see `BrokerLimits`.
    """

    def __init__(
        self,
        vhost: str,
        exchanges: Mapping[str, Exchange],
        queues: Mapping[str, Queue],
        services: BrokerServices,
    ) -> None:
        self.vhost = vhost
        self._services = services
        self._agenda = services.agenda
        self._is_slow = False
        """Whether the last route that `shared_route` had to look for took long."""
        max_cached_bytes = services.limits.max_cached_bytes
        self.default_counters = ExchangeCounters()
        """The counters of the default exchange: it is not in `exchanges`."""
        self._exchanges = exchanges
        self._queues = queues
        self._routes: _Routes[_Address, Route | None] = _Routes(max_cached_bytes)
        # A remembered route is open to clients, and the broker's own messages may go further.
        self._own_routes: _Routes[_Address, Route | None] = _Routes(max_cached_bytes)
        self._read_routes: _Routes[tuple[str, tuple[str, ...], bytes], Route] = _Routes(
            max_cached_bytes
        )
        self._searched: tuple[ParsedEnvelope, tuple[Route, bool, bool]] | None = None
        """The last message that `searching` was called for, and its route, as of `_search`."""
        self._by_queues: dict[tuple[ExchangeCounters | Queue | None, ...], Route] = {}
        self.version = object()
        """Another one after each change: what was found out before may not hold any more."""
        self.on_change: Callable[[], None] | None = None
        """Called after each change, while dead letters wait for one."""

    def changed(self) -> None:
        """Clear cached routes: exchanges, queues, bindings or settings have changed."""
        self.version = object()
        self._routes.clear()
        self._own_routes.clear()
        self._by_queues.clear()
        self._read_routes.clear()
        if self.on_change is not None:
            self.on_change()

    def has_exchange(self, name: str) -> bool:
        """Whether there is an exchange of that name."""
        return name == DEFAULT_EXCHANGE or name in self._exchanges

    def is_topic(self, exchange_name: str) -> bool:
        """Tell whether permissions may restrict the routing keys of an exchange: it has topics."""
        exchange = self._exchanges.get(exchange_name)
        return exchange is not None and TopicExchange.type in (
            exchange.type,
            exchange.arguments.get(DELAYED_TYPE),
        )

    def route_of_key(self, exchange_name: str, routing_key: str) -> Route | None:
        """Return the route of all messages of the broker's own with this address; None if it
        depends on more.
        """
        route, is_shared, _ = self._search_address((exchange_name, (routing_key,)), _NO_PROPERTIES)
        return route if is_shared else None

    def check(self, exchange_name: str) -> None:
        """Make sure that a client may publish to an exchange. Raises: NotFoundError,
        AccessRefusedError.
        """
        if exchange_name == DEFAULT_EXCHANGE:
            return
        exchange = self._exchanges.get(exchange_name)
        if exchange is None:
            raise NotFoundError(f"no exchange '{exchange_name}' in vhost '{self.vhost}'")
        if exchange.internal:
            raise AccessRefusedError(
                f"cannot publish to internal exchange '{exchange_name}' in vhost '{self.vhost}'"
            )

    def shared_route(self, exchange_name: str, routing_key: str) -> Route | None:
        """Return the route of all messages that a client publishes to an exchange with a routing
        key; None if it depends on more, is not open to clients, or has to be looked for in a later
        turn.
        """
        address = exchange_name, (routing_key,)
        if address in self._routes:
            return self._routes[address]
        exchange = self._exchanges.get(exchange_name)
        if exchange_name != DEFAULT_EXCHANGE and (exchange is None or exchange.internal):
            return None
        services = self._services
        if self._agenda.spent >= services.limits.round_budget:  # a call less than `is_budget_spent`
            return None
        # What seems to be slow may have been interrupted, and processor time takes longer to read.
        clock_s = services.cpu_s if self._is_slow else services.elapsed_s
        began_s = clock_s()
        route, is_shared, _ = self._search_address(address, _NO_PROPERTIES)
        if (took_s := clock_s() - began_s) > _USUAL_S or self._is_slow:
            if self._is_slow:
                self._took(took_s)
            self._is_slow = took_s > _USUAL_S
        return self._remember(address, route if is_shared else None)

    def _took(self, cpu_s: float) -> None:
        """Subtract a long search for a route from the budget of the round."""
        if cpu_s > _USUAL_S:
            self._agenda.spent += cpu_s * 1e6

    def _remember(self, address: _Address, route: Route | None) -> Route | None:
        """Remember the route of an address, or that it depends on more."""
        self._routes.remember(address, route, len(route.queues) if route else 0, address)
        return route

    def searching(self, envelope: ParsedEnvelope) -> Iterator[None]:
        """Find the route of a message of many routing keys, unless it is remembered, in steps:
        others may have their turn after each, as each key may be compared with thousands of
        bindings. To be called right before `routes`, each time.
        """
        exchange = self._exchanges.get(envelope.exchange)
        if exchange is None or self._routes.get(envelope.address) is not None:
            return
        version = self.version
        properties = decode_properties(envelope.properties)
        walk = yield from self._searching_from([exchange], envelope.address[1], properties)
        queues = [queue for queue in walk.queues if not queue.is_deleted]
        route = self._route_to(queues, walk)
        # A route with bindings of before a change is not to be remembered.
        stays = version is self.version
        self._searched = envelope, (route, walk.is_shared and stays, walk.is_repeatable and stays)

    def routes(
        self, envelope: ParsedEnvelope, messages: list[Message]
    ) -> Iterator[tuple[Route, ParsedEnvelope, list[Message]]]:
        """Yield the routes of messages that are alike, each with the messages that take it.

        Args: envelope, of the first message; the envelopes of all are parsed.
        Raises: NotFoundError, AccessRefusedError, before the first.
        """
        address = envelope.address
        if (route := self._routes.get(address)) is not None:
            yield route, envelope, messages
            return
        self.check(envelope.exchange)
        if address not in self._routes:
            cpu_s = self._services.cpu_s
            began_s = cpu_s()
            route, is_shared, _ = self._search(envelope, _NO_PROPERTIES)
            self._took(cpu_s() - began_s)
            self._remember(address, route if is_shared else None)
            if is_shared:
                yield route, envelope, messages
                return
        yield from self._routes_one_by_one(messages)

    def route(self, envelope: ParsedEnvelope) -> Route:
        """Return the route of one message, which may be the broker's own: internal exchanges are
        allowed.

        A missing exchange leads nowhere.
        """
        address = envelope.address
        known = self._routes.get(address) or self._own_routes.get(address)
        if known is not None:
            return known
        if address not in self._own_routes:
            # Properties may have thousands of headers, and most routes do not depend on them.
            route, is_shared, _ = self._search(envelope, _NO_PROPERTIES)
            remembered = route if is_shared else None
            self._own_routes.remember(address, remembered, len(route.queues), address)
            if is_shared:
                return route
        return self._search(envelope, decode_properties(envelope.properties))[0]

    def route_from(
        self, exchange: Exchange, envelope: ParsedEnvelope, properties: BasicProperties
    ) -> Route:
        """Return the route of a message that starts at an exchange, whatever its envelope says."""
        return self._search_from([exchange], envelope.address[1], properties)[0]

    def own_routes(self, messages: list[Message]) -> Iterator[tuple[Route, list[Message]]]:
        """Yield the routes of the broker's own messages, which are alike and have one address, each
        with the messages that take it. Internal exchanges are allowed, and nothing is remembered: a
        remembered route is open to clients.
        """
        envelope = cast("ParsedEnvelope", messages[0].envelope)
        properties = decode_properties(envelope.properties)
        route, is_shared, _ = self._search(envelope, properties)
        if is_shared:
            yield route, messages
            return
        for message in messages:
            yield self.route(cast("ParsedEnvelope", message.envelope)), [message]

    def traced_route(
        self, envelope: ParsedEnvelope, properties: BasicProperties
    ) -> tuple[Route, list[RouteStep]]:
        """Return the route of one message as `route` finds it, without remembering it, and each
        exchange on the way; the default exchange is not among them.
        """
        steps: list[RouteStep] = []
        return self._search(envelope, properties, steps)[0], steps

    def _routes_one_by_one(
        self, messages: list[Message]
    ) -> Iterator[tuple[Route, ParsedEnvelope, list[Message]]]:
        """Route message by message: the exchanges read more than the routing key. Raises:
        PreconditionFailedError, at a message that its exchange refuses.
        """
        first = 0
        known = cast("ParsedEnvelope", messages[0].envelope)
        route, is_repeatable = self._route_of_message(known)
        for index, message in enumerate(messages):
            if not index or (message.envelope is known and is_repeatable):
                continue
            envelope = cast("ParsedEnvelope", message.envelope)
            try:
                next_route, is_repeatable = self._route_of_message(envelope)
            except PreconditionFailedError:
                # The messages before the refused one were published before it, and are not refused
                # with it.
                yield route, known, messages[first:index]
                raise
            if next_route is not route:
                yield route, known, messages[first:index]
                first = index
                route = next_route
            known = envelope
        yield route, known, messages[first:]

    def _route_of_message(self, envelope: ParsedEnvelope) -> tuple[Route, bool]:
        """Return the route of one message, and whether equal messages have the same."""
        key = (*envelope.address, envelope.properties)
        route = self._read_routes.get(key)
        if route is not None:
            return route, True
        cpu_s = self._services.cpu_s
        began_s = cpu_s()
        properties = decode_properties(envelope.properties)
        if (exchange := self._exchanges.get(envelope.exchange)) is not None:
            exchange.check(properties)
        route, _, is_repeatable = self._search(envelope, properties)
        self._took(cpu_s() - began_s)
        if not is_repeatable:
            self._searched = None  # a draw is for one message
        elif len(envelope.properties) <= _CACHED_PROPERTIES_BYTES:
            self._read_routes.remember(key, route, len(route.queues), envelope.address)
        return route, is_repeatable

    def _search(
        self,
        envelope: ParsedEnvelope,
        properties: BasicProperties,
        steps: list[RouteStep] | None = None,
    ) -> tuple[Route, bool, bool]:
        """Return the route; whether it is the same for all properties; and whether it stays the
        same. Args: steps, as of `_searching_from`.
        """
        if self._searched is not None and self._searched[0] is envelope:
            return self._searched[1]
        return self._search_address(envelope.address, properties, steps)

    def _search_address(
        self,
        address: _Address,
        properties: BasicProperties,
        steps: list[RouteStep] | None = None,
    ) -> tuple[Route, bool, bool]:
        exchange_name, keys = address
        if exchange_name == DEFAULT_EXCHANGE:
            named = [self._queues[key] for key in dict.fromkeys(keys) if key in self._queues]
            # The broker's own queues get messages from their exchanges alone.
            found = [queue for queue in named if not queue.is_internal]
            walk = _Walk(found, self.default_counters, is_shared=True, is_repeatable=True)
            return self._route_to(found, walk), True, True
        exchange = self._exchanges.get(exchange_name)
        return self._search_from([exchange] if exchange else [], keys, properties, steps)

    def _search_from(
        self,
        exchanges: list[Exchange],
        keys: Iterable[str],
        properties: BasicProperties,
        steps: list[RouteStep] | None = None,
    ) -> tuple[Route, bool, bool]:
        walking = self._searching_from(exchanges, keys, properties, steps)
        while True:
            try:
                next(walking)
            except StopIteration as end:
                walk: _Walk = end.value
                return self._route_to(walk.queues, walk), walk.is_shared, walk.is_repeatable

    def _route_to(self, queues: list[Queue], walk: _Walk) -> Route:
        """Return the route to some queues: the same for all addresses that lead there, so that
        their messages can be put in these queues together; unless it depends on more than the
        address, as then what becomes of a message there may do so too.
        """
        counters = walk.counters
        if not walk.is_shared:
            return Route(queues, counters)
        key = counters, *queues
        route = self._by_queues.get(key)
        if route is None:
            if len(self._by_queues) >= _MAX_ROUTES:
                self._by_queues.clear()
            route = self._by_queues[key] = Route(queues, counters)
        return route

    def _searching_from(
        self,
        exchanges: list[Exchange],
        keys: Iterable[str],
        properties: BasicProperties,
        steps: list[RouteStep] | None = None,
    ) -> Generator[None, None, _Walk]:
        """Follow bindings from exchange to exchange, visiting each once.

        Args: steps, each exchange on the way is added to them.
        """
        waiting = list(exchanges)
        counters = waiting[0].counters if waiting else None
        # Exchanges may be bound in a circle.
        seen = {exchange.name for exchange in waiting}
        queues: dict[Queue, None] = {}
        is_shared = is_repeatable = True
        while waiting:
            exchange = waiting.pop()
            if exchange.reads_properties:
                is_shared = False
            if not exchange.is_repeatable:
                is_shared = is_repeatable = False
            goes_anywhere = False
            looked_up = yield from _looking_up(exchange, keys, properties)
            for _, destinations in looked_up:
                for destination in destinations:
                    # The bindings of what is deleted are taken out a few at a time: some may still
                    # lead there.
                    if isinstance(destination, Queue):
                        if not destination.is_deleted:
                            goes_anywhere = goes_anywhere or destination.counts_as_route
                            queues[destination] = None
                    elif isinstance(destination, Exchange) and not destination.is_deleted:
                        goes_anywhere = True
                        if destination.name not in seen:
                            seen.add(destination.name)
                            waiting.append(destination)
            alternate = self._exchanges.get(exchange.alternate) if not goes_anywhere else None
            if steps is not None:
                steps.append(RouteStep(exchange, looked_up, alternate))
            if alternate is not None and alternate.name not in seen:
                seen.add(alternate.name)
                waiting.append(alternate)
        return _Walk(list(queues), counters, is_shared, is_repeatable)


def _looking_up(
    exchange: Exchange, keys: Iterable[str], properties: BasicProperties
) -> Generator[None, None, list[tuple[str, list[Destination]]]]:
    """Return what an exchange returns for each key; for the first, if keys do not matter to it."""
    found = []
    if not exchange.reads_routing_key:
        keys = islice(keys, 1)
    for number, key in enumerate(keys, 1):
        found.append((key, list(exchange.route(key, properties))))
        if not number % _LOOKS_AT_ONCE:
            yield
    return found
