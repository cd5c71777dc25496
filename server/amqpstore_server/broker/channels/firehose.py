"""The firehose: copies of all that clients publish and get in a virtual host, for whoever looks for
the reason of something.

While it is on, each publish is copied to the exchange `amq.rabbitmq.trace` with the routing key
`publish.EXCHANGE`, each delivery with `deliver.QUEUE`; body and headers are as in RabbitMQ. Copies
are transient and are not copied again. What is published in a transaction is copied when it is
committed. It is off after a start, as in RabbitMQ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, Protocol

from amqpstore import Envelope, Message, Run
from amqpstore_server.broker.messages.envelope import ParsedEnvelope, more_keys, visible
from amqpstore_server.protocol.content import (
    BasicProperties,
    as_table,
    decode_properties,
    encode_properties,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqpstore_server.broker.exchanges.base import Exchange
    from amqpstore_server.broker.queues.queue import Queue
    from amqpstore_server.broker.work.services import BrokerServices
    from amqpstore_server.protocol.field_table import FieldValue

TRACE_EXCHANGE = "amq.rabbitmq.trace"

AT_ONCE = 1000
"""Copies that are made in one round, at least."""

_TOGETHER = 250
"""Messages of one publish or delivery that are copied together, and those of a transaction whose
copies are asked for in one round.
"""

_MAX_KEY_BYTES = 255
_MAX_HEADERS_BYTES = 48 << 10
"""A copy has more headers than its message. They have to fit in one frame, whatever those were."""


class Origin(NamedTuple):
    """The client that publishes or gets: the name of the connection, the number of the channel (0:
    none), and the user.
    """

    connection: str = ""
    channel: int = 0
    user: str = ""

    @property
    def name(self) -> str:
        """The name of the channel."""
        return f"{self.connection} ({self.channel})"


NOWHERE = Origin()


class CopyPublishes(Protocol):
    """Publishes the copies."""

    def add(self, count: int, make: Callable[[], list[Message]]) -> None:
        """Publish messages in a later round. Args: count, of the messages that `make` makes."""


class Firehose:
    """The firehose of one virtual host. Nothing is copied unless it `is_on`.

    Args: exchanges, of the virtual host, by name.
    """

    def __init__(
        self,
        vhost: str,
        services: BrokerServices,
        exchanges: Mapping[str, Exchange],
        own: CopyPublishes,
    ) -> None:
        self.is_on = False
        self._vhost = vhost
        self._services = services
        self._node = services.node
        self._exchanges = exchanges
        self._own = own

    def published(
        self, origin: Origin, queues: Iterable[Queue], messages: Sequence[Message]
    ) -> None:
        """Copy messages with one route that were published."""
        # Copies cost as much as the messages: none is made for an exchange to which nothing is
        # bound.
        if not self._is_heard:
            return
        names = [queue.name for queue in queues]
        extra: dict[str, FieldValue] = {**self._about(origin), "routed_queues": [*names]}
        for exchange, group in groupby(messages, lambda message: message.envelope.exchange):
            self._copy(f"publish.{exchange}", {}, extra, group)

    def committed(
        self, origin: Origin, publishes: Iterable[tuple[Sequence[Queue], Sequence[Message]]]
    ) -> None:
        """Copy what was committed, messages by their queues: if there are very many, most of them
        in later rounds.
        """
        if self.is_on:
            steps = self._copying(origin, publishes)
            for _ in steps:
                self._services.agenda.background.append(steps)
                return

    def _copying(
        self, origin: Origin, publishes: Iterable[tuple[Sequence[Queue], Sequence[Message]]]
    ) -> Iterator[None]:
        count = 0
        for queues, messages in publishes:
            for first in range(0, len(messages), _TOGETHER):
                if count >= _TOGETHER:
                    count = 0
                    yield
                some = messages[first : first + _TOGETHER]
                self.published(origin, queues, some)
                count += len(some)

    def delivered(self, origin: Origin, queue: str, run: Run) -> None:
        """Copy messages that a client was sent."""
        if self._is_heard:
            before: dict[str, FieldValue] = {"redelivered": int(run.delivery_count > 0)}
            self._copy(f"deliver.{queue}", before, self._about(origin), run.messages or ())

    @property
    def _is_heard(self) -> bool:
        exchange = self._exchanges.get(TRACE_EXCHANGE)
        return exchange is not None and exchange.is_bound

    def _about(self, origin: Origin) -> dict[str, FieldValue]:
        return {
            "vhost": self._vhost,
            "connection": origin.connection,
            "channel": origin.channel,
            "user": origin.user,
        }

    def _copy(
        self,
        key: str,
        before: Mapping[str, FieldValue],
        extra: Mapping[str, FieldValue],
        messages: Iterable[Message],
    ) -> None:
        about: dict[str, FieldValue] = {"node": self._node, **before, **extra}
        copied = list(messages)
        for first in range(0, len(copied), _TOGETHER):
            some = copied[first : first + _TOGETHER]
            self._own.add(len(some), partial(_copies, _cut(key), about, some))


def _copies(key: str, about: dict[str, FieldValue], messages: list[Message]) -> list[Message]:
    copies = []
    envelope: Envelope | None = None
    copied: ParsedEnvelope | None = None
    for message in messages:
        if message.envelope is not envelope:
            envelope = message.envelope
            copied = _envelope(key, about, envelope)
        if copied is not None:
            copies.append(Message(copied, message.body))
    return copies


def _envelope(key: str, about: dict[str, FieldValue], envelope: Envelope) -> ParsedEnvelope | None:
    """Return the envelope of the copy; None for what is a copy itself, or was one before it became
    a dead letter.
    """
    # A copy of a copy would be copied again, for ever.
    if envelope.exchange == TRACE_EXCHANGE:
        return None
    properties = decode_properties(envelope.properties)
    headers = properties.headers or {}
    if headers.get("x-first-death-exchange") == TRACE_EXCHANGE:
        return None
    keys = [envelope.routing_key, *more_keys(properties.headers, ["CC", "BCC"])]
    shown: dict[str, FieldValue] = {
        "exchange_name": envelope.exchange,
        "routing_keys": [*keys],
        "properties": as_table(visible(envelope.properties)),
        **about,
    }
    of_copy = BasicProperties(headers=shown)
    raw = encode_properties(of_copy)
    if len(raw) > _MAX_HEADERS_BYTES:
        of_copy = BasicProperties(headers=_shortened(shown))
        raw = encode_properties(of_copy)
    return ParsedEnvelope(TRACE_EXCHANGE, key, raw, of_copy)


def _shortened(shown: Mapping[str, FieldValue]) -> dict[str, FieldValue]:
    """Return the headers of a copy without the lists and tables that may be long."""
    small = {**shown, "is_cut": True}
    properties = shown["properties"]
    assert isinstance(properties, dict)
    small["properties"] = {name: one for name, one in properties.items() if name != "headers"}
    for name in ("routing_keys", "routed_queues"):
        names = shown.get(name)
        if isinstance(names, list):
            small[name] = names[:16]
    return small


def _cut(key: str) -> str:
    """Return a routing key that fits: names may be as long as it alone."""
    return key.encode()[:_MAX_KEY_BYTES].decode("utf-8", "ignore")
