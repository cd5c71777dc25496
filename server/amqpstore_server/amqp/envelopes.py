"""From published frames to messages: the content properties are checked here, once.

`SimpleTargets` knows the targets whose messages need no decision of their own; the messages of all
others are checked by `Envelopes`, and routed, group by group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from amqpstore import Message
from amqpstore_server.broker.errors import BrokerError
from amqpstore_server.broker.messages.envelope import ParsedEnvelope, parse_envelope, published
from amqpstore_server.broker.routing.publish_rights import check_user_id
from amqpstore_server.broker.work.deferred_publishes import ONE
from amqpstore_server.protocol.content import (
    REPLY_TO,
    BasicProperties,
    decode_properties,
    edit_properties,
)
from amqpstore_server.protocol.errors import AmqpError, PreconditionFailed
from amqpstore_server.protocol.events import ContentHeader, Publishes, Target

if TYPE_CHECKING:
    from amqpstore_server.broker.channels.channel import Channel
    from amqpstore_server.broker.rights.permissions import Access
    from amqpstore_server.broker.routing.routing import Route, Router
    from amqpstore_server.broker.work.deferred_publishes import DeferredPublishes

_MAX_CACHED = 1024
_CACHED_BYTES = 256 << 10
"""The total size of properties for which envelopes are cached, and of simple targets."""

_MAX_KINDS = 16
"""Delivery modes and priorities for which simple targets are known."""

_TARGET_BYTES = 256
"""About what a simple target takes, besides the properties of its envelope."""


class PublishSlice:
    """Messages of one read and channel with one target, as columns."""

    __slots__ = ("bodies", "headers", "target")

    def __init__(self, target: Target) -> None:
        self.target = target
        self.headers: list[ContentHeader] = []
        self.bodies: list[bytes] = []


def _by_route(
    targets: list[Target], known: dict[Target, tuple[Route, ParsedEnvelope]]
) -> dict[Route, list[int]]:
    """Return the indexes of the messages of each route."""
    indexes: dict[Route, list[int]] = {}
    for index, target in enumerate(targets):
        route = known[target][0]
        if route in indexes:
            indexes[route].append(index)
        else:
            indexes[route] = [index]
    return indexes


def in_order(publishes: Publishes) -> list[PublishSlice]:
    """Return the messages in their order: a slice is what follows each other with one target."""
    slices: list[PublishSlice] = []
    last: Target | None = None
    for target, header, body in zip(
        publishes.targets, publishes.headers, publishes.bodies, strict=True
    ):
        if target is not last:
            last = target
            piece = PublishSlice(target)
            slices.append(piece)
        piece.headers.append(header)
        piece.bodies.append(body)
    return slices


class Envelopes:
    """The envelopes of one connection's publishes, cached by exchange, routing key and properties.

    Args: user, who is logged in: a message may name no other user-id, unless the user
    `may_impersonate` others.
    """

    def __init__(self, user: str, may_impersonate: Callable[[str], bool]) -> None:
        self._user = user
        self._may_impersonate = may_impersonate
        self._envelopes: dict[tuple[str, str, bytes, str], ParsedEnvelope] = {}
        self._cached_bytes = 0
        self._plain: dict[tuple[Target, tuple[int, int]], ParsedEnvelope] = {}
        """For each target one envelope for each delivery-mode and priority of plain headers."""

    def free_caches(self) -> None:
        """Forget what only saves time."""
        self._envelopes = {}
        self._plain = {}
        self._cached_bytes = 0

    def messages(
        self, published: PublishSlice | Publishes, target: Target, reply_to: str
    ) -> Iterator[tuple[ParsedEnvelope, list[Message]]]:
        """Yield the messages in order, in groups that are alike, each with the envelope of its
        first message.

        Args: published, messages of one target; reply_to, the address of the channel's direct
        replies, empty if there is none.
        Raises: PreconditionFailed, PreconditionFailedError, at the first message that claims
        something it may not; the groups before it have been yielded.
        """
        known_plain = published.headers[0].plain
        # Headers of the usual shape differ in values that the broker does not read, so nothing is
        # decoded for them.
        known = self._plain.get((target, known_plain)) if known_plain else None
        group: list[Message] = []
        header = None
        first: ParsedEnvelope | None = None
        current: ParsedEnvelope | None = None
        for next_header, body in zip(published.headers, published.bodies, strict=True):
            if next_header is not header:
                header = next_header
                if known is not None and header.plain == known_plain:
                    envelope: ParsedEnvelope = known.with_values(header.properties)
                else:
                    try:
                        envelope = self.envelope(target, header, reply_to)
                    except (AmqpError, BrokerError):
                        if first is not None:
                            # What came before the wrong message was right, and is published: it is
                            # the client's order.
                            yield first, group
                        raise
                    if header.plain is not None:
                        known, known_plain = envelope, header.plain
                if first is None:
                    first = envelope
                elif envelope.alike is not first.alike and envelope.alike != first.alike:
                    yield first, group
                    group = []
                    first = envelope
                current = envelope
            assert current is not None  # set by the first header
            group.append(Message(current, body))
        assert first is not None  # there is no event without a message
        yield first, group

    def envelope(self, target: Target, header: ContentHeader, reply_to: str) -> ParsedEnvelope:
        """Raises: PreconditionFailed, PreconditionFailedError."""
        publish, plain = target.publish, header.plain
        if plain is None:
            key = publish.exchange, publish.routing_key, header.properties, reply_to
            return self._envelopes.get(key) or self._new(*key)
        if (target, plain) in self._plain:
            return self._plain[target, plain].with_values(header.properties)
        # Nothing else of what is plain concerns the broker, so nothing else is decoded.
        read = BasicProperties(delivery_mode=plain[0], priority=plain[1])
        known = ParsedEnvelope(publish.exchange, publish.routing_key, header.properties, read)
        if len(self._plain) >= _MAX_CACHED:
            self._plain.clear()
        self._plain[target, plain] = known
        return known

    def _new(self, exchange: str, routing_key: str, raw: bytes, reply_to: str) -> ParsedEnvelope:
        """Raises: PreconditionFailedError (wrong user-id), PreconditionFailed (wrong reply-to)."""
        properties = decode_properties(raw)
        is_foreign = check_user_id(
            properties.user_id, self._user, lambda: self._may_impersonate(self._user)
        )
        kept = published(raw, properties.headers)
        if properties.reply_to == REPLY_TO:
            # As RabbitMQ has it: without a consumer for replies, a reply could never arrive.
            if not reply_to:
                raise PreconditionFailed("fast reply consumer does not exist")
            kept = edit_properties(kept, reply_to=reply_to)
        made = parse_envelope(exchange, routing_key, kept, properties)
        if is_foreign:
            return made  # not cached: the permission may be withdrawn before the next one
        self._cached_bytes += len(raw)
        if len(self._envelopes) >= _MAX_CACHED or self._cached_bytes > _CACHED_BYTES:
            self._envelopes.clear()
            self._cached_bytes = len(raw)
        self._envelopes[exchange, routing_key, raw, reply_to] = made
        return made


class SimpleTargets:
    """The targets of one connection whose messages can be put in their queues without a decision of
    their own, each with its route and an envelope.
    """

    def __init__(
        self, router: Router, envelopes: Envelopes, access: Access, deferred: DeferredPublishes
    ) -> None:
        self._deferred = deferred
        self._router = router
        self._envelopes = envelopes
        self._access = access
        self._version = router.version
        self._byte_count = 0
        self._known: dict[tuple[int, int], dict[Target, tuple[Route, ParsedEnvelope]]] = {}
        """By delivery mode and priority."""

    def forget(self) -> None:
        """Forget them: permissions have changed, or memory is short."""
        self._known = {}
        self._byte_count = 0

    def defer(self, publishes: Publishes, channel: Channel) -> bool:
        """Defer messages of a channel to the end of this round of reads, if none of them needs a
        decision. Returns False, and has done nothing, if one does.

        Tags of confirms go by the order of the publishes, so all must be confirmed at the same
        time, and nothing may be refused or returned.
        """
        plain = publishes.headers[0].plain
        if (
            plain is None
            or channel.transaction is not None
            or channel.reply_to
            or channel.firehose.is_on
        ):
            return False
        # Bindings, queues or exchanges have changed: a route that is remembered may lead to a
        # queue that is gone.
        if self._version is not self._router.version or self._byte_count > _CACHED_BYTES:
            self._version = self._router.version
            self.forget()
        known = self._known.get(plain)
        if known is None:
            known = self._begin_kind(plain)
        if len(publishes.bodies) > 1:
            return self._defer_many(publishes, plain, known, channel)
        target, header = publishes.targets[0], publishes.headers[0]
        route_and_envelope = known.get(target)
        if route_and_envelope is None:
            if (route_and_envelope := self._find(target, header)) is None:
                return False
            known[target] = route_and_envelope
        route, alike = route_and_envelope
        message = Message(alike.with_values(header.properties), publishes.bodies[0])
        kind, routes = (plain, route.is_durable), ((route, ONE),)
        self._deferred.defer(
            channel.publisher, kind, routes, [message], header.body_size, route.copies
        )
        return True

    def _defer_many(
        self,
        publishes: Publishes,
        plain: tuple[int, int],
        known: dict[Target, tuple[Route, ParsedEnvelope]],
        channel: Channel,
    ) -> bool:
        """Do as `defer` for a read that brings several messages.

        Args: plain, their delivery mode and priority; known, its targets.
        """
        messages: list[Message] = []
        append = messages.append
        body_bytes = 0
        last: ContentHeader | None = None
        last_target: Target | None = None
        is_durable: bool | None = None
        for target, header, body in zip(
            publishes.targets, publishes.headers, publishes.bodies, strict=True
        ):
            if target is not last_target:
                last_target, last = target, None
                route_and_envelope = known.get(target) or self._find(target, header)
                if route_and_envelope is None:
                    # Nothing is deferred then, not even the ones before it: tags of confirms go by
                    # the order of publishes.
                    return False
                known[target] = route, alike = route_and_envelope
                if route.is_durable is not is_durable:
                    if is_durable is not None:
                        return False
                    is_durable = route.is_durable
            if header is not last:
                if header.plain != plain:
                    return False
                last = header
                envelope = alike.with_values(header.properties)
            append(Message(envelope, body))
            body_bytes += header.body_size
        routes: list[tuple[Route, Sequence[int]]]
        if not publishes.is_mixed:
            routes = [(route, range(len(messages)))]
            copies = route.copies * len(messages)
        else:
            routes = list(_by_route(publishes.targets, known).items())
            copies = 0
            for route, indexes in routes:
                copies += route.copies * len(indexes)
        kind = plain, is_durable
        self._deferred.defer(channel.publisher, kind, routes, messages, body_bytes, copies)
        return True

    def _begin_kind(self, plain: tuple[int, int]) -> dict[Target, tuple[Route, ParsedEnvelope]]:
        """Return a dictionary for the targets of another delivery mode and priority."""
        if len(self._known) >= _MAX_KINDS:
            self.forget()
        known = self._known[plain] = {}
        return known

    def _find(self, target: Target, header: ContentHeader) -> tuple[Route, ParsedEnvelope] | None:
        """Return a target's route and envelope; None if its messages need a decision."""
        publish, access = target.publish, self._access
        route = self._router.shared_route(publish.exchange, publish.routing_key)
        if (
            route is None
            or not route.is_simple
            # Each of these properties takes a decision about one message.
            or publish.immediate
            or access.has_topics
            or not access.has_granted("write", "exchange", publish.exchange)
        ):
            return None
        self._byte_count += _TARGET_BYTES + len(header.properties)
        return route, self._envelopes.envelope(target, header, "")
