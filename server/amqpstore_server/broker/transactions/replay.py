"""Replays: on a publish to `amq.replay`, copies of a queue's history are put in a queue.

The routing key names the queue whose history it is. The copies go to its end or, with the header
`x-replay-to`, to that of another queue. They are one transaction.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from amqpstore import Envelope, Message
from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.messages.envelope import ParsedEnvelope, parse_envelope
from amqpstore_server.broker.queues.kinds import ConsumedQueue
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.routing import Route
from amqpstore_server.broker.transactions.history import CONSUMED_AT, Histories
from amqpstore_server.broker.transactions.transaction import Transaction, plan
from amqpstore_server.protocol.content import decode_properties, edit_properties
from amqpstore_server.protocol.field_table import Timestamp

if TYPE_CHECKING:
    from amqpstore_server.broker.context import BrokerContext

REPLAYED = "x-replayed"
MAX_BYTES = 64 << 20
"""What one replay may have in memory, as `_weight` counts it: it is one batch of the log."""

_MESSAGE_BYTES = 256
"""About what a message takes beside its body and its properties."""

_MAX_MS = 1 << 52
_TIME = struct.Struct(">q")
_MARK = bytes([len(CONSUMED_AT)]) + CONSUMED_AT.encode() + b"l"
"""What stands in front of the time in the properties of whatever is in a history."""


class Outcome(enum.Enum):
    """What became of a replay."""

    DONE = enum.auto()
    NOWHERE = enum.auto()
    """The queue does not exist or has no history, or the queue for the copies does not exist."""
    REFUSED = enum.auto()
    """The queue for the copies has no room for all of them."""


class Request(NamedTuple):
    """What is asked for: those consumed from `from_ms` to before `to_ms`, of these the first
    `limit`; None means no limit."""

    source: str
    target: str
    from_ms: int
    to_ms: int
    limit: int | None
    message_id: str | None

    @classmethod
    def of(cls, envelope: Envelope) -> Request:
        """As headers say it. Raises: PreconditionFailedError."""
        headers = decode_properties(envelope.properties).headers or {}
        return cls(
            envelope.routing_key,
            _text(headers, "x-replay-to") or envelope.routing_key,
            _number(headers, "x-from") or 0,
            _MAX_MS if (to_ms := _number(headers, "x-to")) is None else to_ms,
            _number(headers, "x-limit"),
            _text(headers, "x-message-id"),
        )

    def wants(self, envelope: Envelope) -> bool:
        """Whether messages with this envelope, of a history, are asked for."""
        if not self.from_ms <= consumed_at(envelope.properties) < self.to_ms:
            return False
        wanted = self.message_id
        return wanted is None or (
            wanted.encode() in envelope.properties
            and decode_properties(envelope.properties).message_id == wanted
        )


class Replays:
    """The replays of one virtual host."""

    def __init__(
        self, context: BrokerContext, queues: Mapping[str, Queue], histories: Histories
    ) -> None:
        self._context = context
        self._queues = queues
        self._histories = histories

    def replay(self, envelope: Envelope) -> Outcome:
        """Do what a publish with this envelope asks for; it is to be confirmed once durable.

        Raises: PreconditionFailedError (a header that it cannot be, or more than it may copy),
        ResourceExhaustedError; nothing is copied then.
        """
        request = Request.of(envelope)
        kept = self._histories.of(request.source)
        target = self._queues.get(request.target)
        if kept is None or target is None or target.is_internal:
            return Outcome.NOWHERE
        kept.backlog.expire()
        if self._context.store.log.pending_bytes >= MAX_BYTES:
            # Many in a row are not to fill memory with what waits for the disk.
            self._context.flush()
        copies = list(self._copies(kept, request))
        transaction = Transaction(self._context)
        route = Route([target])
        for parsed, messages in copies:
            planned = plan(route, parsed, messages)
            if planned.accepted < len(messages):
                transaction.undo()
                return Outcome.REFUSED
            transaction.publish(planned)
        transaction.commit()
        return Outcome.DONE

    def _copies(
        self, kept: ConsumedQueue, request: Request
    ) -> Iterator[tuple[ParsedEnvelope, list[Message]]]:
        """Copies, in groups with one envelope. Raises: PreconditionFailedError, for too many."""
        left = request.limit
        room = MAX_BYTES
        known: Envelope | None = None
        parsed: ParsedEnvelope | None = None
        group: list[Message] = []
        if left == 0:
            return
        for part in self._context.store.browse(kept.priorities.lowest):
            for message in part:
                envelope = message.envelope
                if envelope is not known:
                    if parsed is not None and group:
                        yield parsed, group
                    known, group = envelope, []
                    parsed = _copied(envelope) if request.wants(envelope) else None
                if parsed is None:
                    continue
                room -= len(message.body) + len(envelope.properties) + _MESSAGE_BYTES
                if room < 0:
                    raise _too_much(request, envelope)
                group.append(Message(parsed, message.body))
                if left is not None:
                    left -= 1
                    if not left:
                        yield parsed, group
                        return
        if parsed is not None and group:
            yield parsed, group


def consumed_at(raw: bytes) -> int:
    """When a message of a history was consumed, ms since 1970, by its properties; 0 for others."""
    if raw.count(_MARK) == 1:
        # The header is there: so it is this. To decode all of them for it takes ten times longer.
        return int(_TIME.unpack_from(raw, raw.index(_MARK) + len(_MARK))[0])
    time = (decode_properties(raw).headers or {}).get(CONSUMED_AT)
    return time if isinstance(time, int) else 0


def _copied(envelope: Envelope) -> ParsedEnvelope:
    raw = edit_properties(envelope.properties, headers={REPLAYED: True})
    return parse_envelope(envelope.exchange, envelope.routing_key, raw, decode_properties(raw))


def _too_much(request: Request, envelope: Envelope) -> PreconditionFailedError:
    return PreconditionFailedError(
        f"the replay of queue '{request.source}' copies more than {MAX_BYTES >> 20} MiB: end it "
        f"with x-to={consumed_at(envelope.properties)}, or with x-limit, and go on from there"
    )


def _number(headers: Mapping[str, Any], name: str) -> int | None:
    """A header's number; a timestamp's seconds as ms. Raises: PreconditionFailedError."""
    value = headers.get(name)
    if isinstance(value, Timestamp):
        value = int(value) * 1000
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_MS:
        raise PreconditionFailedError(
            f"invalid header '{name}' of a replay: {value!r} is not a number from 0 to 2^52"
        )
    return value


def _text(headers: Mapping[str, Any], name: str) -> str | None:
    """Raises: PreconditionFailedError."""
    value = headers.get(name)
    if value is not None and not isinstance(value, str):
        raise PreconditionFailedError(
            f"invalid header '{name}' of a replay: {value!r} is not a string"
        )
    return value
