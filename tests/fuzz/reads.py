"""Streams of frames that are likely to be cut where it matters: many publishes in columns, empty
messages, acks, closes and errors on few channels.

Plain random choices, as a hundred times more of them fit into the time that hypothesis takes; what
they find is made small by hand, and becomes a fixed example in `unit/protocol/test_reads.py` or
`conformance/test_one_read.py`.
"""

import random
import struct
from collections.abc import Callable, Container, Iterator

from amqpstore_server.protocol import methods
from amqpstore_server.protocol.content import (
    BasicProperties,
    encode_properties,
)
from amqpstore_server.protocol.field_table import FieldValue
from amqpstore_server.protocol.methods import Method
from amqpstore_server.protocol.spec import FRAME_BODY, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD
from tests.content_header import encode_content_header

QUEUES = ["q1", "q2", "b"]
KEYS = ["q1", "q2", "", "missing"]
CLOSES: list[Method] = [
    methods.ChannelClose(reply_code=200, reply_text="", failing_class_id=0, failing_method_id=0),
    methods.ChannelCloseOk(),
]
WHOLE_METHODS: list[Method] = [
    *CLOSES,
    methods.ChannelOpen(),
    methods.ChannelFlow(active=True),
    methods.BasicQos(prefetch_size=0, prefetch_count=3),
    methods.BasicReject(delivery_tag=2, requeue=True),
    methods.BasicNack(delivery_tag=3, multiple=True, requeue=True),
    methods.BasicGet(queue="q1"),
    methods.BasicAck(delivery_tag=1, multiple=True),
    methods.BasicRecover(requeue=True),
]


def frame(kind: int, channel: int, payload: bytes, end: int = 0xCE) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes([end])


class Streams:
    """Draws streams from one source of random numbers, `without` some methods."""

    def __init__(self, rng: random.Random, without: Container[Method] = ()) -> None:
        self._rng = rng
        self._methods = [method for method in WHOLE_METHODS if method not in without]
        self._number = 0
        self._pieces: list[tuple[Callable[[], bytes], int]] = [
            (self._column, 8),
            (self._acks, 4),
            (self._content, 6),
            (self._method, 4),
            (self._stray, 2),
            (self._garbage, 1),
        ]

    def stream(self) -> bytes:
        """Return some pieces, one time in three with damage."""
        rng = self._rng
        pieces, weights = zip(*self._pieces, strict=True)
        octets = b"".join(piece() for piece in rng.choices(pieces, weights, k=rng.randint(1, 8)))
        return octets if rng.randrange(3) else self._damaged(octets)

    def cuts(self, size: int) -> Iterator[list[int]]:
        """Yield ways to cut a stream into reads, by the octet among them."""
        rng = self._rng
        yield list(range(size))
        for count in (1, 2, 4, 12):
            yield sorted(rng.randrange(size + 1) for _ in range(count))

    def _channel(self) -> int:
        return self._rng.choice([1, 1, 1, 1, 1, 2, 2, 0, 3])

    def _properties(self) -> bytes:
        """Return properties of one of a few shapes, with values of their own."""
        self._number += 1
        number = self._number
        headers: dict[str, FieldValue] | None = {"number": number} if number % 2 else None
        match self._rng.randrange(4):
            case 0:
                return b"\0\0"
            case 1:
                return encode_properties(BasicProperties(delivery_mode=2, message_id=f"{number:6}"))
            case 2:
                return encode_properties(BasicProperties(headers=headers, priority=number % 10))
            case _:
                return b"\x10\0\x02"

    def _publish(self) -> bytes:
        rng = self._rng
        exchange, key = rng.choice(["", "", "", "amq.topic"]), rng.choice(KEYS)
        return methods.BasicPublish(
            exchange=exchange, routing_key=key, mandatory=not rng.randrange(8)
        ).encode()

    def _column(self) -> bytes:
        """Publishes that follow each other, each in three frames; some of them alike."""
        rng = self._rng
        channel, method, properties = self._channel(), self._publish(), self._properties()
        found = []
        for _ in range(rng.randint(1, 7)):
            if not rng.randrange(3):
                method = self._publish()
            if rng.randrange(3):
                properties = self._properties()
            body = b"x" * rng.choice([0, 1, 1, 4, 4, 4, 40])
            header = encode_content_header(60, len(body), properties)
            found += [frame(FRAME_METHOD, channel, method), frame(FRAME_HEADER, channel, header)]
            if body or not rng.randrange(30):
                found.append(frame(FRAME_BODY, channel, body))
        return b"".join(found)

    def _content(self) -> bytes:
        """A publish whose body has several frames, or not the size that was announced."""
        rng = self._rng
        channel = self._channel()
        bodies = [b"y" * rng.choice([0, 0, 1, 5]) for _ in range(rng.randrange(4))]
        size = max(0, sum(map(len, bodies)) + rng.choice([0, 0, 0, 0, 0, 1, -1]))
        if not rng.randrange(12):
            size = 1 << 20
        class_id = 60 if rng.randrange(12) else 50
        header = encode_content_header(class_id, size, self._properties())
        frames = [
            frame(FRAME_METHOD, channel, self._publish()),
            frame(FRAME_HEADER, channel, header),
            *(frame(FRAME_BODY, channel, body) for body in bodies),
        ]
        if not rng.randrange(
            4
        ):  # what comes between them is of another channel, or does not belong
            frames.insert(rng.randrange(len(frames) + 1), self._method())
        return b"".join(frames)

    def _acks(self) -> bytes:
        rng = self._rng
        channel, tag = self._channel(), rng.randint(0, 4)
        found = []
        for _ in range(rng.randint(1, 6)):
            arguments = struct.pack(">HHQB", 60, 80, tag, rng.choice([0, 0, 0, 0, 0, 1, 2]))
            found.append(frame(FRAME_METHOD, channel, arguments))
            tag += rng.choice([1, 1, 1, 1, 0, 2])
        return b"".join(found)

    def _method(self) -> bytes:
        return frame(FRAME_METHOD, self._channel(), self._rng.choice(self._methods).encode())

    def _stray(self) -> bytes:
        """A frame that may belong to nothing."""
        rng = self._rng
        header = encode_content_header(60, rng.choice([0, 3]), b"\0\0")
        kind, payload = rng.choice(
            [
                (FRAME_HEADER, header),
                (FRAME_BODY, b""),
                (FRAME_BODY, b"z"),
                (FRAME_METHOD, self._publish()),
                (FRAME_HEARTBEAT, b""),
            ]
        )
        channel = 0 if kind == FRAME_HEARTBEAT and rng.randrange(3) else self._channel()
        return frame(kind, channel, payload)

    def _garbage(self) -> bytes:
        rng = self._rng
        kind, end = rng.choice([1, 2, 3, 8, 0, 4]), rng.choice([0xCE] * 9 + [0])
        return frame(kind, self._channel(), rng.randbytes(rng.randrange(20)), end)

    def _damaged(self, octets: bytes) -> bytes:
        rng = self._rng
        found = bytearray(octets)
        for _ in range(rng.randint(1, 2)):
            at = rng.randrange(len(found) + 1)
            match rng.randrange(4):
                case 0 if at < len(found):
                    found[at] ^= 1 << rng.randrange(8)
                case 1:
                    del found[at : at + rng.randint(1, 8)]
                case 2:
                    found[at:at] = rng.randbytes(rng.randint(1, 4))
                case _:
                    found[at:at] = found[max(0, at - 16) : at]
        return bytes(found)
