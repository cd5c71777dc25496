"""The messages of a producer, encoded in advance: a block of publishes, sent repeatedly.

All messages of a block are equally long on the wire. Those of an `AlikeBlock` differ only in their
route. Those of a `VariedBlock` are like those of applications: each has its own message-id,
timestamp and headers (a traceparent, the number of the attempt). No two messages of a run are
equal, although none is encoded during the run: each contains the number of its place in the block
and the number of the round, in hexadecimal digits, and one assignment to a slice with a step writes
a digit of the round into all messages of the block. A new round costs a few hundredths of a
microsecond per message.
"""

import hashlib
import os
import struct
import time
from collections.abc import Sequence

from amqpstore_tools.bench.settings import BenchSettings
from amqpstore_tools.client import wire
from amqpstore_tools.client.connection import CHANNEL, Connection

Route = tuple[str, str]
"""Exchange and routing key of a publish."""

# 256 KiB is one large send; beyond 1,024 messages the cost of the send per message is negligible.
_BLOCK_BYTES = 256 * 1024
_BLOCK_MESSAGES = 1024

_DIGITS = 8  # of the round, and of the place in the block
_NUMBER_AT = 8  # in a body: after the send time that `latency` writes there
_VARIED_FLAGS = 0x8000 | 0x2000 | wire.DELIVERY_MODE_FLAG | 0x0080 | 0x0040
_u64 = struct.Struct(">Q")


class MessageBlock:
    """Publishes encoded back to back, to be sent from a cursor on, round after round."""

    def __init__(self, messages: Sequence[bytes]) -> None:
        """Raises: ValueError, if the messages are not equally long."""
        lengths = {len(message) for message in messages}
        if len(lengths) != 1:
            raise ValueError(f"the messages of a block must be equally long, not {lengths}")
        (self.message_bytes,) = lengths
        self.messages = len(messages)
        self.octets = bytearray().join(messages)
        self._cursor = 0

    def renew(self) -> None:
        """Begin a new round: everything in `octets` has been sent."""

    def take(self, messages: int) -> bytes:
        """Return the next messages; a round that ends among them is renewed."""
        wanted = messages * self.message_bytes
        end = self._cursor + wanted
        if end < len(self.octets):  # nearly always, and once for each message of a slow run
            start, self._cursor = self._cursor, end
            return bytes(memoryview(self.octets)[start:end])
        octets = bytearray()
        while len(octets) < wanted:
            end = min(len(self.octets), self._cursor + wanted - len(octets))
            octets += memoryview(self.octets)[self._cursor : end]
            self._cursor = end
            if end == len(self.octets):
                self._cursor = 0
                self.renew()
        return bytes(octets)


class AlikeBlock(MessageBlock):
    """Messages with one body and only a delivery mode, each route in turn."""

    def __init__(
        self, routes: Sequence[Route], *, size: int, persistent: bool, frame_max: int
    ) -> None:
        properties = wire.delivery_mode(persistent=persistent)
        body = _body(size)
        messages = [
            wire.publish(CHANNEL, exchange, key, body, properties=properties, frame_max=frame_max)
            for exchange, key in routes
        ]
        super().__init__(messages * _rounds(len(messages[0]), len(messages)))


class VariedBlock(MessageBlock):
    """Messages that all differ, each route in turn; `run` distinguishes producers."""

    def __init__(
        self,
        routes: Sequence[Route],
        *,
        size: int,
        persistent: bool,
        frame_max: int,
        run: str = "",
    ) -> None:
        self._run = run or os.urandom(8).hex()
        self._size = size
        self._persistent = persistent
        self._frame_max = frame_max
        self._time_s = int(time.time())
        self._round = "R" * _DIGITS  # found again in the message-id, the trace id and the body
        first = self._message(0, routes[0])
        self._round_at = _all_of(self._round.encode(), first)
        self._time_at = first.index(_u64.pack(self._time_s))
        self._round = "0" * _DIGITS
        count = _rounds(len(first), len(routes)) * len(routes)
        super().__init__(
            [self._message(index, routes[index % len(routes)]) for index in range(count)]
        )

    def _message(self, index: int, route: Route) -> bytes:
        exchange, key = route
        number = f"{self._round}{index:0{_DIGITS}x}"
        body = bytearray(_body(self._size))
        if self._size >= _NUMBER_AT + len(number):
            body[_NUMBER_AT : _NUMBER_AT + len(number)] = number.encode()
        return wire.publish(
            CHANNEL,
            exchange,
            key,
            bytes(body),
            properties=self._properties(index, number),
            frame_max=self._frame_max,
        )

    def _properties(self, index: int, number: str) -> bytes:
        """Return content type, headers, delivery mode, message-id and timestamp."""
        trace = f"00-{self._run}{number}-{index * 0x9E3779B97F4A7C15 % 2**64:016x}-01"
        return b"".join(
            (
                struct.pack(">H", _VARIED_FLAGS),
                wire.short_string("application/json"),
                wire.table({"traceparent": trace, "attempt": index % 7}),
                b"\2" if self._persistent else b"\1",
                wire.short_string(self._run + number),
                _u64.pack(self._time_s),
            )
        )

    def renew(self) -> None:
        """Write the number of the next round, and the time, into all messages."""
        before, after = self._round, f"{int(self._round, 16) + 1:0{_DIGITS}x}"
        for digit in range(_DIGITS):
            if before[digit] != after[digit]:
                for at in self._round_at:
                    self._write(at + digit, ord(after[digit]))
        self._round = after
        now_s = int(time.time())
        if now_s != self._time_s:
            self._time_s = now_s
            for index, octet in enumerate(_u64.pack(now_s)):
                self._write(self._time_at + index, octet)

    def _write(self, at: int, octet: int) -> None:
        """Write one octet at the same offset of each message."""
        self.octets[at :: self.message_bytes] = bytes((octet,)) * self.messages


def block_for(
    settings: BenchSettings, routes: Sequence[Route], connection: Connection
) -> MessageBlock:
    """Return a block of messages as the settings say, to be sent on a connection."""
    return block_of(
        routes,
        size=settings.size,
        persistent=settings.persistent,
        vary=settings.vary,
        frame_max=connection.frame_max,
    )


def block_of(
    routes: Sequence[Route], *, size: int, persistent: bool, vary: bool, frame_max: int
) -> MessageBlock:
    """Return a block for one producer; the routes must be equally long."""
    kind = VariedBlock if vary else AlikeBlock
    return kind(routes, size=size, persistent=persistent, frame_max=frame_max)


def _body(size: int) -> bytes:
    """Return a body that cannot be compressed."""
    return hashlib.shake_128(b"amqpstore-bench").digest(size)


def _rounds(message_bytes: int, routes: int) -> int:
    """Return how often a block contains each of its routes."""
    wanted = max(1, min(_BLOCK_MESSAGES, _BLOCK_BYTES // message_bytes))
    return -(-wanted // routes)


def _all_of(part: bytes, octets: bytes) -> list[int]:
    """Return the offsets at which `part` occurs."""
    found = []
    at = octets.find(part)
    while at >= 0:
        found.append(at)
        at = octets.find(part, at + 1)
    return found
