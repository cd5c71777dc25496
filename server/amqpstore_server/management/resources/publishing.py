"""Publishing a message to an exchange, and getting messages off a queue.

Both are for looking and trying: a request for each message is slow, and a get takes messages out of
their queue, if only to put them back.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
import trio

from amqpstore import Message, Run
from amqpstore_server.administration.tables import shown_properties
from amqpstore_server.broker.channels.channel import Channel
from amqpstore_server.broker.channels.confirms import Flags
from amqpstore_server.broker.channels.outlet import ClosedOutlet, Returned
from amqpstore_server.broker.definitions.accepted import unread_notes
from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.exchanges.replay import REPLAY_EXCHANGE
from amqpstore_server.broker.messages.envelope import parse_envelope, published, visible
from amqpstore_server.broker.queues.message_sums import MessageSums
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.routing.publish_rights import check_user_id
from amqpstore_server.management.answers import Answer
from amqpstore_server.management.call import Call
from amqpstore_server.management.errors import HttpError, bad_request
from amqpstore_server.management.needs import Needs
from amqpstore_server.management.routes import ApiRoute
from amqpstore_server.management.topology import (
    check_queue_exists,
    checked_arguments,
    exchange_in,
    name_in,
    origin_of,
    topology_of,
)
from amqpstore_server.protocol.bounds import MessageRoom
from amqpstore_server.protocol.content import BasicProperties, encode_properties
from amqpstore_server.protocol.errors import AmqpError
from amqpstore_server.protocol.field_table import Timestamp

_MAX_SHORT_BYTES = 255
_HEADER_BYTES = 12
"""The bytes of a content header before flags and properties: class, weight, size of the body."""
_CONFIRM_S = 30.0
_MAX_GOT = 10_000
_MAX_GOT_BYTES = 64 << 20
"""The most messages, and the most bytes of their bodies, that one request gets; that of their
properties is `MessageRoom`'s. With the message that goes beyond it the answer ends.
"""
_SMALL_BYTES = 1 << 20
"""A get from a queue with more takes one of few places, unless what was got is less."""
_NUMBERS = {"delivery_mode": 2, "priority": 255, "timestamp": (1 << 64) - 1}
"""Properties that are numbers, and the highest of each."""
_PROPERTIES = frozenset(BasicProperties.__dataclass_fields__)
_TEXTS = _PROPERTIES - {"headers", *_NUMBERS}


class PublishBody(msgspec.Struct):
    """A message. Properties that AMQP does not have are noted; RabbitMQ ignores them."""

    routing_key: str
    payload: str
    payload_encoding: Literal["string", "base64"]
    properties: dict[str, Any] | list[Any] = {}


class GetBody(msgspec.Struct):
    """The number of messages to get, and what becomes of them. `requeue` is what old clients send
    instead of `ackmode`. Bodies are cut after `truncate` bytes.
    """

    count: int = 1
    encoding: Literal["auto", "base64"] = "auto"
    ackmode: (
        Literal["ack_requeue_true", "ack_requeue_false", "reject_requeue_true"]
        | Literal["reject_requeue_false"]
        | None
    ) = None
    requeue: bool | None = None
    truncate: int | None = None

    @property
    def mode(self) -> str:
        """The way in which messages are settled. Raises: HttpError."""
        if self.ackmode is not None:
            return self.ackmode
        if self.requeue is None:
            raise bad_request("[{key_missing,ackmode}]")
        return "ack_requeue_true" if self.requeue else "ack_requeue_false"


class _Confirmed(ClosedOutlet):
    """The outlet of a channel that publishes one message: notes what becomes of it."""

    def __init__(self) -> None:
        self.is_done = trio.Event()
        self.is_routed = True
        self.is_refused = False

    def returned(self, _messages: Sequence[Message], _reason: Returned) -> None:
        self.is_routed = False

    def confirm(self, _tag: int, *, multiple: bool) -> None:  # noqa: ARG002
        self.is_done.set()

    def refuse(self, _tag: int) -> None:
        self.is_refused = True
        self.is_done.set()

    def failed(self) -> None:
        self.refuse(0)


async def publish(call: Call) -> Answer:
    """Publish a message; the answer comes once it is durable."""
    body = await call.body(PublishBody)
    exchange = exchange_in(call)
    topology = topology_of(call)
    topology.publish_rights.check_exchange(exchange)
    payload = _payload(body)
    _check_may_publish(call, len(payload))
    properties = _properties(body.properties)
    unknown = [name for name in body.properties if name not in _PROPERTIES]
    call.note_fields(unread_notes(unknown, _PROPERTIES, "properties"))
    _check_user_id(call, properties)
    raw = published(_encoded(properties), properties.headers)
    _check_header_fits(call, raw)
    if len(body.routing_key.encode()) > _MAX_SHORT_BYTES:
        raise bad_request(f"the routing key has more than {_MAX_SHORT_BYTES} bytes")
    envelope = parse_envelope(exchange, body.routing_key, raw, properties)
    if exchange == REPLAY_EXCHANGE:
        topology.check_history(body.routing_key)
    topology.publish_rights.check_keys(*envelope.address)
    if exchange and exchange not in call.vhost.exchanges:
        reason = f"no exchange '{exchange}' in vhost '{call.vhost.name}'"
        raise HttpError(404, "not_found", reason)
    outlet = _Confirmed()
    channel = Channel(call.vhost, object(), outlet, origin=origin_of(call))
    try:
        channel.select_confirms()
        call.context.broker.services.statistics.message_sizes.observe(len(payload))
        # With `mandatory`, the channel says whether the message was routed, and so does the
        # answer.
        channel.publish(envelope, [Message(envelope, payload)], Flags(mandatory=True))
        channel.confirm_published()
        call.context.wake()
        with trio.move_on_after(_CONFIRM_S) as waiting:
            await outlet.is_done.wait()
    finally:
        channel.forget_outlet()
        channel.close()
    if waiting.cancelled_caught:
        raise HttpError(503, "service_unavailable", "the message is not on disk yet")
    if outlet.is_refused:
        raise bad_request("a queue has refused the message")
    return await call.json({"routed": outlet.is_routed})


def _check_may_publish(call: Call, size: int) -> None:
    """Raises: HttpError."""
    if call.context.alarms.is_raised:
        raise HttpError(503, "service_unavailable", f"blocked: {call.context.alarms.reason}")
    if size > call.context.config().max_message_bytes:
        raise bad_request(f"the message has {size} bytes, more than max_message_bytes")


def _check_user_id(call: Call, properties: BasicProperties) -> None:
    tags = call.identity.own_tags
    check_user_id(properties.user_id, call.identity.user, lambda: "impersonator" in tags)
    if properties.reply_to is not None and properties.reply_to.startswith("amq.rabbitmq.reply-to"):
        raise bad_request("there is no consumer for direct replies")


def _payload(body: PublishBody) -> bytes:
    if body.payload_encoding == "string":
        return body.payload.encode()
    try:
        return base64.b64decode(body.payload, validate=True)
    except (binascii.Error, ValueError):
        raise bad_request("the payload is not base64") from None


def _properties(given: dict[str, Any] | list[Any]) -> BasicProperties:
    """Raises: HttpError."""
    if isinstance(given, list):
        given = checked_arguments(given)
    converted: dict[str, Any] = {}
    # The headers are a table by themselves, as in what a client sends.
    properties = dict(given)
    headers = properties.pop("headers", {})
    checked_arguments(properties)
    if isinstance(headers, dict):
        checked_arguments(headers, "headers")
    for name, value in given.items():
        if name in _TEXTS:
            if not isinstance(value, str) or len(value.encode()) > _MAX_SHORT_BYTES:
                raise bad_request(f"property {name} must be a text of at most 255 bytes")
            converted[name] = value
        elif name == "headers":
            if not isinstance(value, dict) and value != []:
                raise bad_request("property headers must be an object")
            converted[name] = value or {}
        elif name in _NUMBERS:
            is_number = isinstance(value, int) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= _NUMBERS[name]:
                raise bad_request(f"property {name} must be a number from 0 to {_NUMBERS[name]}")
            converted[name] = Timestamp(value) if name == "timestamp" else value
    return BasicProperties(**converted)


def _encoded(properties: BasicProperties) -> bytes:
    try:
        return encode_properties(properties)
    except (AmqpError, PreconditionFailedError, ValueError, TypeError) as error:
        raise bad_request(f"properties: {error}") from None


def _check_header_fits(call: Call, raw: bytes) -> None:
    """Make sure that a client could have published it, and can get it: a content header is one
    frame. Raises: HttpError.
    """
    size, most = _HEADER_BYTES + len(raw), call.context.config().frame_max
    if size > most:
        raise bad_request(
            f"the properties make a content header of {size} bytes, more than frame_max ({most})"
        )


async def get(call: Call) -> Answer:
    """Get messages off a queue, and settle them."""
    body = await call.body(GetBody)
    mode = body.mode
    if body.count < 0:
        raise bad_request("count must not be negative")
    name = name_in(call, "queue")
    check_queue_exists(call, name)
    queue = topology_of(call).queue(name, "read")
    channel = Channel(call.vhost, object(), ClosedOutlet(), origin=origin_of(call))
    rows: list[dict[str, Any]] = []
    room = MessageRoom(_MAX_GOT_BYTES)
    bodies = MessageSums.of(queue).ready.body_bytes
    if bodies is None or bodies > _SMALL_BYTES:
        await call.large_answer.take()
    try:
        for _ in range(min(body.count, _MAX_GOT)):
            fetched = await _fetched(channel, queue)
            if fetched is None:
                break
            tag, run = fetched
            message = next(iter(run.messages or []))
            rows.append(_row(queue, run, message, body))
            room.take(len(message.body), len(message.envelope.properties))
            if room.bodies_left_bytes < 0 or room.properties_left_bytes < 0:
                break
            await trio.lowlevel.checkpoint()
        if rows and not queue.is_deleted:
            for _ in settling(channel, tag, mode) or ():
                await trio.lowlevel.checkpoint()
        if _MAX_GOT_BYTES - room.bodies_left_bytes <= _SMALL_BYTES:
            await call.large_answer.release()
    finally:
        # What is not settled goes back to its place.
        channel.close()
        queue.touch()
        call.context.wake()
    if mode == "ack_requeue_false" or mode == "reject_requeue_false":
        # Only the client has them now, and that must be so after a crash, too.
        await _durable(call)
    return await call.json(rows)


async def _fetched(channel: Channel, queue: Queue) -> tuple[int, Run] | None:
    while not queue.is_deleted:
        queue.backlog.is_reading = False
        fetched = channel.get(queue, no_ack=False, in_chunks=True)
        if fetched is not None or not queue.backlog.is_reading:
            return fetched
        await trio.lowlevel.checkpoint()  # of a large message a part was read
    return None


def settling(channel: Channel, last: int, mode: str) -> Iterator[None] | None:
    """Settle what was got, in steps."""
    match mode:
        case "ack_requeue_false":
            return channel.settling_until(last, requeue=None)
        case "reject_requeue_false":
            return channel.settling_until(last, requeue=False)
        case _:
            return channel.settling_until(last, requeue=True)


async def _durable(call: Call) -> None:
    done = trio.Event()
    call.context.broker.services.when_durable(done.set)
    call.context.wake()
    with trio.move_on_after(_CONFIRM_S):
        await done.wait()


def _row(queue: Queue, run: Run, message: Message, body: GetBody) -> dict[str, Any]:
    envelope, content = message.envelope, bytes(message.body)
    shown = content if body.truncate is None else content[: max(body.truncate, 0)]
    payload, encoding = _shown_payload(shown, body.encoding)
    return {
        "payload_bytes": len(content),
        "redelivered": bool(run.delivery_count),
        "exchange": envelope.exchange,
        "routing_key": envelope.routing_key,
        "message_count": queue.ready_count,
        "properties": shown_properties(visible(envelope.properties)) or [],
        "payload": payload,
        "payload_encoding": encoding,
    }


def _shown_payload(content: bytes, encoding: str) -> tuple[str, str]:
    if encoding == "auto":
        try:
            return content.decode(), "string"
        except UnicodeDecodeError:
            pass
    return base64.b64encode(content).decode("ascii"), "base64"


ROUTES = (
    ApiRoute(
        "POST",
        "/api/exchanges/{vhost}/{exchange}/publish",
        publish,
        "Publish a message",
        Needs.VHOST,
        PublishBody,
    ),
    ApiRoute(
        "POST",
        "/api/queues/{vhost}/{queue}/get",
        get,
        "Get messages off a queue",
        Needs.VHOST,
        GetBody,
        is_list=True,
    ),
)
