"""Any bytes as a list of what clients do: for fuzzers that change bytes.

Each octet chooses among things that mean something to a broker (a method, a name that exists, an
argument of a queue), so that a change of one octet is a change of one decision; one octet in twenty
or so leads to bytes as they are. Where the bytes end, all further choices are the first.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from amqpstore_server.protocol import methods
from amqpstore_server.protocol.content import BasicProperties
from amqpstore_server.protocol.field_table import FieldValue
from amqpstore_server.protocol.layout import Argument, WireType
from amqpstore_server.protocol.methods import METHODS, Method
from tests.fuzz.test_codec import frame
from tests.fuzz.test_connection import (
    NAMES,
    SENT_BY_CLIENTS,
    Action,
    Again,
    Send,
    Settle,
    Swap,
    Wait,
    content,
    encoded,
)

T = TypeVar("T")

SENT = [cls for cls in METHODS.values() if cls.name in SENT_BY_CLIENTS]
NUMBERS = [0, 1, 2, 3, 5, 10, 127, 128, 255, 1000, 65_535, 1 << 31, (1 << 32) - 1, (1 << 64) - 1]
CHANNELS = [1, 1, 1, 2, 2, 3, 4, 0, 2047, 2048, 65_535]
TEXTS = ["q1", "q2", "q3", "", "a.b", "c1", "e1", "*", "#", "x" * 255, "amq.gen", "\0", "é", "1"]
VALUES: list[FieldValue] = [
    *[0, 1, 2, 10, 1000, -1, 255, 1 << 31, (1 << 63) - 1, -(1 << 63), True, False, None, 1.5, b"b"],
    *["", "q1", "q2", "e1", "e2", "a.b", "text", "10", "topic", "direct"],
    *["drop-head", "reject-publish", "reject-publish-dlx", "lazy", "all", "any", "any-with-x"],
    *["quorum", "classic", "stream", "rejected", "expired"],
    [],
    ["q1", "q2"],
    ["q3", 1],
    {},
    {"a": 1},
    [{"queue": "q1", "reason": "expired", "count": 1}],
]
KEYS = [
    *["x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-max-priority"],
    *["x-delivery-limit", "x-overflow", "x-dead-letter-exchange", "x-dead-letter-routing-key"],
    *["x-single-active-consumer", "x-queue-mode", "x-queue-type", "x-dead-letter-strategy"],
    *["x-history-length", "x-history-ttl", "x-history", "x-consumer-timeout", "x-wait"],
    *["alternate-exchange", "x-delayed-type", "x-recent-history-length", "hash-header"],
    *["hash-property", "x-match", "x-priority", "x-cancel-on-ha-failover", "CC", "BCC", "x-delay"],
    *["x-death", "x-first-death-queue", "x-delivery-count", "a", "b", ""],
]
BODIES = [b"", b"1", b"body", bytes(20), bytes(5000), bytes(99_999), bytes(100_001)]
OFF = [0, 0, 0, 0, 0, 0, 1, -1, 200_000, 1 << 40]
TIMES_MS = [1, 10, 1000, 40_000, 700_000, 2_000_000]
FRAME_TYPES = [1, 2, 3, 8, 4, 0, 255]
SETTLEMENTS: list[type[Method]] = [methods.BasicAck, methods.BasicNack, methods.BasicReject]
PROPERTIES = BasicProperties.__slots__
PROPERTY_TEXTS = ["", "0", "5", "1000", "soon", "guest", "root", "q1", "amq.rabbitmq.reply-to"]


class Choices:
    """Takes what is to be done from bytes, in their order."""

    def __init__(self, octets: bytes) -> None:
        self._octets = octets
        self._at = 0

    @property
    def is_over(self) -> bool:
        return self._at >= len(self._octets)

    def octet(self) -> int:
        """Return the next octet; 0 behind the end."""
        if self.is_over:
            return 0
        self._at += 1
        return self._octets[self._at - 1]

    def one_of(self, options: Sequence[T]) -> T:
        return options[self.octet() % len(options)]

    def octets(self) -> bytes:
        """Return some of the bytes as they are: the first one says how many."""
        count = self.octet()
        start, self._at = self._at, min(self._at + count, len(self._octets))
        return self._octets[start : self._at]

    # What is in a method.

    def text(self, name: str) -> str:
        if (chosen := self.octet()) >= 0xF0:
            return self.octets()[:120].decode("latin-1")
        options = NAMES.get(name, TEXTS)
        return str(options[chosen % len(options)])

    def number(self, octets: int) -> int:
        return self.one_of(NUMBERS) & ((1 << 8 * octets) - 1)

    def value(self, depth: int = 0) -> FieldValue:
        chosen = self.octet()
        if chosen < 0xF0 or depth > 3:
            return VALUES[chosen % len(VALUES)]
        if chosen < 0xF6:
            return self.table(depth + 1)
        if chosen < 0xFB:
            return [self.value(depth + 1) for _ in range(self.octet() % 4)]
        return self.octets()

    def table(self, depth: int = 0) -> dict[str, FieldValue]:
        return {self.one_of(KEYS): self.value(depth) for _ in range(self.octet() % 5)}

    def argument(self, argument: Argument) -> Any:
        readers: dict[WireType, Callable[[], Any]] = {
            WireType.BIT: lambda: self.octet() % 4 == 3,
            WireType.OCTET: lambda: self.number(1),
            WireType.SHORT: lambda: self.number(2),
            WireType.LONG: lambda: self.number(4),
            WireType.LONGLONG: lambda: self.number(8),
            WireType.SHORTSTR: lambda: self.text(argument.name),
            WireType.OCTETS: lambda: self.octets()[:255],
            WireType.LONGSTR: self.octets,
            WireType.TABLE: self.table,
            WireType.TRAILING_TABLE: self.table,
        }
        return readers[argument.wire_type]()

    def method(self, cls: type[Method]) -> Method:
        arguments = [each for each in cls.layout.arguments if not each.is_reserved]
        return cls(**{each.name: self.argument(each) for each in arguments})

    def properties(self) -> BasicProperties:
        found: dict[str, Any] = {}
        for _ in range(self.octet() % 5):
            name = self.one_of(PROPERTIES)
            if name == "headers":
                found[name] = self.table()
            elif name in ("delivery_mode", "priority"):
                found[name] = self.octet()
            elif name == "timestamp":
                found[name] = self.number(8)
            else:
                found[name] = self.one_of(PROPERTY_TEXTS)
        return BasicProperties(**found)

    # What clients do.

    def sent(self) -> bytes:
        """Return frames, whole or damaged, or other bytes."""
        kind = self.octet()
        channel = self.one_of(CHANNELS)
        if kind < 0x90:
            return encoded(channel, self.method(SENT[kind % len(SENT)]))
        if kind < 0xE0:
            publish = self.method(methods.BasicPublish)
            body, off = self.one_of(BODIES), self.one_of(OFF)
            return content(channel, publish, body, self.properties(), off, 1 + self.octet() % 3)
        if kind < 0xE8:
            return frame(self.one_of(FRAME_TYPES), channel, self.octets())
        if kind < 0xF4:
            damaged = bytearray(self.sent()) or bytearray(1)
            damaged[(self.octet() << 8 | self.octet()) % len(damaged)] = self.octet()
            return bytes(damaged)
        if kind < 0xFA:
            ids = METHODS[self.one_of(list(METHODS))]
            return frame(1, channel, bytes([0, ids.class_id, 0, ids.method_id]) + self.octets())
        return self.octets()

    def action(self) -> Action:
        kind = self.octet()
        if kind < 0xA0:
            return Send(self.sent(), (self.octet(),) if kind >= 0x90 else ())
        if kind < 0xB0:  # several in one read
            return Send(b"".join(self.sent() for _ in range(2 + kind % 4)))
        if kind < 0xE0:
            return Settle(self.one_of(SETTLEMENTS), self.octet() % 4, self.octet() % 2 == 1)
        if kind < 0xF0:
            return Wait(self.one_of(TIMES_MS))
        return Swap() if kind < 0xFA else Again(vanishes=kind % 2 == 1)


def actions_of(octets: bytes, most: int = 60) -> list[Action]:
    """Return what the bytes say is to be done."""
    choices = Choices(octets)
    chosen: list[Action] = []
    while not choices.is_over and len(chosen) < most:
        chosen.append(choices.action())
    return chosen


def seeds() -> Iterator[bytes]:
    """Yield bytes to begin with: each method, on its own and before a publish, a get and an ack."""
    publish = bytes([0, 0x90, 0, 0, 1, 0, 0, 2])
    settle = bytes([0xB0, 0, 0, 0])
    for index, cls in enumerate(SENT):
        for channel in (0, 7):
            for choice in range(0, 240, 60):
                arguments = bytes([choice] * 2 * len(cls.layout.arguments))
                one = bytes([0, index, channel]) + arguments
                yield one
                if channel == 0:
                    yield one + publish + settle
                    yield publish + one + settle + bytes([0xE0, 3])
