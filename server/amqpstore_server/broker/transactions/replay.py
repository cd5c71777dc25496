"""Replays: on a publish to `amq.replay`, copies of a queue's history are put in a queue.

The routing key names the queue whose history is replayed. The copies go to the end of that queue
or, with the header `x-replay-to`, of another queue. They are one transaction.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from amqpstore import Envelope, Message
from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.exchanges.replay import (
    CONSUMED_FROM,
    CONSUMED_TO,
    REPLAY_LIMIT,
    REPLAY_MESSAGE_ID,
    REPLAY_TO,
)
from amqpstore_server.broker.messages.cycles import LANDMARK
from amqpstore_server.broker.messages.envelope import ParsedEnvelope, parse_envelope
from amqpstore_server.broker.queues.kinds import ConsumedQueue
from amqpstore_server.broker.queues.pending_moves import ENVELOPE_COST
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.routing.routing import Route
from amqpstore_server.broker.transactions.history import CONSUMED_AT, Histories
from amqpstore_server.broker.transactions.transaction import Transaction, plan
from amqpstore_server.protocol.content import decode_properties, edit_properties
from amqpstore_server.protocol.field_table import Timestamp

if TYPE_CHECKING:
    from amqpstore_server.broker.work.services import BrokerServices

REPLAYED = "x-replayed"
_MESSAGE_BYTES = 256
"""Approximate size of a message besides its body and properties."""

_MAX_MS = 1 << 52
_TIME = struct.Struct(">q")
_MARK = bytes([len(CONSUMED_AT)]) + CONSUMED_AT.encode() + b"l"
"""The bytes before the time in the properties of every message in a history."""


class ReplayOutcome(enum.Enum):
    """The outcome of a replay."""

    DONE = enum.auto()
    NOWHERE = enum.auto()
    """The queue does not exist or has no history, or the target queue does not exist."""
    REFUSED = enum.auto()
    """The target queue has no room for all copies."""


class ReplayRequest(NamedTuple):
    """The selected messages: those consumed from `from_ms` to before `to_ms`, the first `limit` of
    them; None means no limit.
    """

    source: str
    target: str
    from_ms: int
    to_ms: int
    limit: int | None
    message_id: str | None

    @classmethod
    def of(cls, envelope: Envelope) -> ReplayRequest:
        """Parse the headers of a request. Raises: PreconditionFailedError."""
        headers = decode_properties(envelope.properties).headers or {}
        return cls(
            envelope.routing_key,
            _text(headers, REPLAY_TO) or envelope.routing_key,
            _number(headers, CONSUMED_FROM) or 0,
            _MAX_MS if (to_ms := _number(headers, CONSUMED_TO)) is None else to_ms,
            _number(headers, REPLAY_LIMIT),
            _text(headers, REPLAY_MESSAGE_ID),
        )

    def wants(self, envelope: Envelope) -> bool:
        """Tell whether a message of a history is selected, by its envelope."""
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
        self, services: BrokerServices, queues: Mapping[str, Queue], histories: Histories
    ) -> None:
        self._services = services
        self._queues = queues
        self._histories = histories

    def replay(self, envelope: Envelope) -> Generator[None, None, ReplayOutcome]:
        """Carry out the replay that a publish requests; the publish is to be confirmed once it is
        durable.

        What was acked before the request is waited for, on whichever channel it was. Reading the
        history takes many steps, and others may work on it in between: what leaves it before it is
        read is not copied, and neither is what arrives once reading has begun. Copies are made of
        all of it or, after an error, of none.
        Raises: PreconditionFailedError (an invalid header, or too much to copy),
        ResourceExhaustedError; nothing is copied then.
        """
        request = ReplayRequest.of(envelope)
        if (kept := self._histories.of(request.source)) is not None:
            yield from self._histories.arriving(kept)
        # The queue may have been deleted during the wait.
        target = self._queues.get(request.target)
        if kept is None or kept.is_deleted or target is None or not target.is_listed:
            return ReplayOutcome.NOWHERE
        # Copies whose time is over must not come back.
        kept.backlog.expire()
        if self._services.store.log.pending_bytes >= self._services.limits.max_replay_bytes:
            # Many replays in a row must not fill memory with bytes that wait for the disk.
            self._services.flush()
        transaction = Transaction(self._services)
        try:
            # Nothing is in the target before the commit: half of a replay cannot be told from the
            # whole.
            outcome = yield from self._add_copies(transaction, kept, target, request)
        except BaseException:
            transaction.undo()
            raise
        if outcome is ReplayOutcome.DONE:
            transaction.commit()
        else:
            transaction.undo()
        return outcome

    def _add_copies(
        self,
        transaction: Transaction,
        kept: ConsumedQueue,
        target: Queue,
        request: ReplayRequest,
    ) -> Generator[None, None, ReplayOutcome]:
        """Add the copies to a transaction. Raises: as `replay`."""
        route = Route([target])
        for copy in self._copies(kept, request):
            # Either may have been deleted while others had their turn, before this copy was
            # yielded.
            if kept.is_deleted or target.is_deleted:
                return ReplayOutcome.NOWHERE
            if copy is None:
                self._services.work["replay"] = None
                yield
                continue
            parsed, messages = copy
            planned = plan(route, parsed, messages)
            # All or none, so a target with a limit refuses it as a whole.
            if planned.accepted < len(messages):
                return ReplayOutcome.REFUSED
            transaction.publish(planned)
        if kept.is_deleted or target.is_deleted:
            return ReplayOutcome.NOWHERE
        return ReplayOutcome.DONE

    def _copies(
        self, kept: ConsumedQueue, request: ReplayRequest
    ) -> Iterator[tuple[ParsedEnvelope, list[Message]] | None]:
        """Yield the copies, in groups with one envelope, and None where others may have their turn.

        Raises: PreconditionFailedError, if there are too many.
        """
        left = request.limit
        cost, most_cost = 0, self._services.limits.round_budget
        room = most = self._services.limits.max_replay_bytes
        known: Envelope | None = None
        parsed: ParsedEnvelope | None = None
        group: list[Message] = []
        if left == 0:
            return
        for part in self._services.store.stored.browse(kept.priorities.lowest):
            for message in part:
                envelope = message.envelope
                cost += 1
                if envelope is not known:
                    if parsed is not None and group:
                        yield parsed, group
                    known, group = envelope, []
                    parsed = _copied(envelope) if request.wants(envelope) else None
                    cost += ENVELOPE_COST
                    if cost >= most_cost:
                        cost = 0
                        yield None
                if parsed is None:
                    continue
                room -= len(message.body) + len(envelope.properties) + _MESSAGE_BYTES
                if room < 0:
                    # The messages are in memory until the commit. The error says where to go on.
                    raise _too_much(request, envelope, most)
                group.append(Message(parsed, message.body))
                if left is not None:
                    left -= 1
                    if not left:
                        yield parsed, group
                        return
            if parsed is not None and group:
                yield parsed, group
                group = []
            yield None


def consumed_at(raw: bytes) -> int:
    """Return when a message of a history was consumed, in ms since 1970, from its properties; 0 for
    other messages.
    """
    # A client may have put the same bytes into a header of its own: only where they are there once
    # they are the header's.
    if raw.count(_MARK) == 1:
        # The header is in every history message, so the bytes are it. Decoding all properties takes
        # ten times longer.
        return int(_TIME.unpack_from(raw, raw.index(_MARK) + len(_MARK))[0])
    time = (decode_properties(raw).headers or {}).get(CONSUMED_AT)
    return time if isinstance(time, int) else 0


def _copied(envelope: Envelope) -> ParsedEnvelope:
    # Without its landmark: deaths of before the replay make no cycle.
    raw = edit_properties(
        envelope.properties, headers={REPLAYED: True}, without_headers=(LANDMARK,)
    )
    return parse_envelope(envelope.exchange, envelope.routing_key, raw, decode_properties(raw))


def _too_much(request: ReplayRequest, envelope: Envelope, most: int) -> PreconditionFailedError:
    return PreconditionFailedError(
        f"the replay of queue '{request.source}' copies more than {most >> 20} MiB: end it "
        f"with x-to={consumed_at(envelope.properties)}, or with x-limit, and go on from there"
    )


def _number(headers: Mapping[str, Any], name: str) -> int | None:
    """Return a header's number; for a timestamp, its seconds in ms. Raises:
    PreconditionFailedError.
    """
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
