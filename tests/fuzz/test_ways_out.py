"""Any message that a client can publish can leave its queue in every way, and the broker goes on.

Properties are of all that a publish may carry: values of every type at their limits, under the
names that the broker reads or writes itself.
"""

import struct
from typing import Any

import hypothesis
from hypothesis import strategies as st

from amqpstore import Message
from amqpstore_server.broker.channels.channel import Channel
from amqpstore_server.broker.channels.confirms import Flags
from amqpstore_server.broker.definitions.predeclared import DEFAULT_VHOST
from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.messages.envelope import parse_envelope
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.content import (
    decode_content_header,
    decode_properties,
)
from amqpstore_server.protocol.errors import MalformedError
from amqpstore_server.protocol.field_table import FieldValue
from amqpstore_server.protocol.frames import header_frame
from amqpstore_server.protocol.primitives import write_longstr, write_short, write_shortstr
from tests.content_header import encode_content_header
from tests.fuzz.simulated import SimulatedClient, SimulatedServer

_HEADERS_FLAG, _DELIVERY_MODE_FLAG, _PRIORITY_FLAG, _EXPIRATION_FLAG = (
    1 << 13,
    1 << 12,
    1 << 11,
    256,
)

_NAMES = (
    *("x-death", "x-first-death-queue", "x-last-death-reason", "CC", "BCC", "x-delay"),
    *("x-delivery-count", "x-consumed-at", "x-replayed", "x-recent-history-no-store", "own"),
)
_DEATH_NAMES = ("count", "queue", "reason", "time", "exchange", "routing-keys", "own")


def _number(tag: str, layout: str, *values: Any) -> st.SearchStrategy[bytes]:
    return st.sampled_from([tag.encode() + struct.pack(f">{layout}", value) for value in values])


_ENDS = st.one_of(
    _number("t", "B", 0, 1, 255),
    _number("b", "b", -128, 127),
    _number("B", "B", 0, 255),
    _number("s", "h", -(1 << 15), (1 << 15) - 1),
    _number("u", "H", 0, (1 << 16) - 1),
    _number("I", "i", -(1 << 31), -1, (1 << 31) - 1),
    _number("i", "I", 0, (1 << 32) - 1),
    _number("l", "q", -(1 << 63), -1, 0, (1 << 63) - 1),
    _number("L", "q", -(1 << 63), (1 << 63) - 1),
    _number("f", "f", 0.0, -0.0, 1e38, float("inf"), float("nan")),
    _number("d", "d", 1e308, -1.5, float("-inf"), float("nan")),
    _number("T", "Q", 0, 1 << 63, (1 << 64) - 1),
    st.sampled_from(
        [
            b"D" + struct.pack(">Bi", scale, digits)
            for scale in (0, 255)
            for digits in (-(1 << 31), 7)
        ]
    ),
    st.sampled_from([b"q", b"rejected", b"expired", b"\xff", b"", b"k" * 256]).map(
        lambda text: b"S" + write_longstr(text)
    ),
    st.just(b"x" + write_longstr(b"q")),
    st.just(b"V"),
)


def _table(names: tuple[str, ...], values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    entries = st.lists(st.tuples(st.sampled_from(names), values), max_size=5)
    return entries.map(
        lambda pairs: write_longstr(b"".join(write_shortstr(name) + value for name, value in pairs))
    )


def _array(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.lists(values, max_size=4).map(lambda items: b"A" + write_longstr(b"".join(items)))


_VALUES = st.recursive(
    _ENDS,
    lambda inner: _array(inner) | _table(_DEATH_NAMES, inner).map(lambda table: b"F" + table),
    max_leaves=12,
)
_DEATHS = _array(_table(_DEATH_NAMES, _VALUES).map(lambda table: b"F" + table))
_TABLES = _table(_NAMES, _VALUES | _DEATHS)


@st.composite
def properties(draw: st.DrawFn) -> bytes:
    """Raw properties of a persistent message that the codec takes."""
    flags = _HEADERS_FLAG | _DELIVERY_MODE_FLAG | _PRIORITY_FLAG
    raw = draw(_TABLES) + b"\x02" + bytes([draw(st.sampled_from([0, 9, 255]))])
    if draw(st.booleans()):
        flags |= _EXPIRATION_FLAG
        raw += write_shortstr(draw(st.sampled_from(["0", "50", str(1 << 52)])))
    return write_short(flags) + raw


_QUEUES: dict[str, dict[str, Any]] = {
    "expires": {"x-message-ttl": 50},
    "short": {"x-max-length": 0},
    "small": {"x-max-length-bytes": 1, "x-max-priority": 9},
    "full": {"x-max-length": 0, "x-overflow": "reject-publish-dlx"},
    "limited": {"x-delivery-limit": 0},
    "rejected": {},
    "remembered": {"x-history-length": 10},
}


def _prepare(client: SimulatedClient) -> None:
    client.ask(1, methods.QueueDeclare(queue="dead", durable=True))
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    for name, arguments in _QUEUES.items():
        declare = methods.QueueDeclare(queue=name, durable=True, arguments={**arguments, **dead})
        client.ask(1, declare)
    exchanges: tuple[tuple[str, str, dict[str, FieldValue]], ...] = (
        ("later", "x-delayed-message", {"x-delayed-type": "headers"}),
        ("recent", "x-recent-history", {}),
        ("hash", "x-consistent-hash", {"hash-header": "own"}),
    )
    for name, kind, its_arguments in exchanges:
        client.ask(
            1,
            methods.ExchangeDeclare(
                exchange=name, type=kind, durable=True, arguments=its_arguments
            ),
        )
        client.ask(1, methods.QueueBind(queue="dead", exchange=name, routing_key="1"))


def _publish(server: SimulatedServer, raw: bytes) -> bool:
    """Publish a message to every queue and exchange. Returns whether it may be published."""
    try:
        header = decode_content_header(encode_content_header(60, 1, raw))
        decoded = decode_properties(header.properties)
        channel = Channel(server.broker.vhost(DEFAULT_VHOST), None, _Deaf())
        for exchange, key in [("", name) for name in _QUEUES] + [
            (name, "1") for name in ("later", "recent", "hash")
        ]:
            parsed = parse_envelope(exchange, key, raw, decoded)
            channel.publish(parsed, [Message(parsed, b"m")], Flags())
    except (MalformedError, PreconditionFailedError):
        return False
    server.settle()
    return True


class _Deaf:
    """An outlet that drops what it is given."""

    is_writable = True

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_named: None


def _end(client: SimulatedClient) -> None:
    """Have what is left in the queues leave them, each in its way."""
    for name in ("limited", "rejected", "remembered"):
        for got in client.ask(1, methods.BasicGet(queue=name)):
            if isinstance(got.method, methods.BasicGetOk):
                tag = got.method.delivery_tag
                done: methods.Method = methods.BasicAck(delivery_tag=tag)
                if name != "remembered":
                    done = methods.BasicReject(delivery_tag=tag, requeue=name == "limited")
                client.ask(1, done)
    client.server.pass_time(100)
    replay = methods.BasicPublish(exchange="amq.replay", routing_key="remembered")
    client.ask(1, replay)
    client.send(header_frame(1, encode_content_header(60, 0, b"\0\0")))


@hypothesis.given(raw=properties())
@hypothesis.settings(max_examples=60)
def test_every_way_out(raw: bytes) -> None:
    with SimulatedServer() as server:
        client = SimulatedClient.opened(server, channels=1)
        _prepare(client)
        if not _publish(server, raw):
            return
        _end(client)
        client.server.pass_time(1 << 33)
        assert server.broker.set_aside == []
        # And what is there now can be read, and rejected, after a restart.
        client.lose()
        server.restart()
        client = SimulatedClient.opened(server, channels=1)
        _end(client)
        assert server.broker.set_aside == []
        drained = client.ask(1, methods.BasicConsume(queue="dead", consumer_tag="", no_ack=True))
        assert not [one for one in drained if isinstance(one.method, methods.ChannelClose)]
        assert any(isinstance(one.method, methods.BasicDeliver) for one in drained)
