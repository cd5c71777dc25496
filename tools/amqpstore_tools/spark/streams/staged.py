"""Messages in the queue of a stream: see `consume`.

Many are in one message there, a *chunk*, with everything that they were delivered with: so the
broker and its client handle one message instead of a thousand, and nothing that a publisher set can
expire a message there, send copies of it elsewhere, or have it refused. Tasks take chunks apart,
not the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count
from typing import Any, NamedTuple

import msgpack
import pika
import pyarrow as pa

from amqpstore.errors import PicklableError
from amqpstore.format.message import encode_head
from amqpstore_tools.pika import Outgoing
from amqpstore_tools.spark.reading.envelopes import EnvelopeColumns, array_of
from amqpstore_tools.spark.streams.broker import Delivered

_FIRST, _COUNT = "x-spark-first", "x-spark-count"
_MAX_MESSAGES = 1000
_MAX_BYTES = 1 << 20
_ROWS = 16_384


class StagedError(PicklableError):
    """The stream's queue is not as the stream leaves it."""

    def __init__(self, queue: str, reason: str) -> None:
        super().__init__(
            f"queue {queue} of the stream: {reason}. Another program used it, or the checkpoint "
            f"belongs to another stream. Use another name for the stream, with a new checkpoint."
        )


class StagedMessage(NamedTuple):
    """A message as it was delivered; `head` as `amqpstore.format.message.encode_head` makes it."""

    queue: str
    delivery_tag: int
    redelivered: bool
    head: bytes
    body: bytes

    @classmethod
    def of(cls, delivered: Delivered, queue: str) -> StagedMessage:
        method = delivered.method
        raw = delivered.properties.raw
        head = encode_head(method.exchange or "", method.routing_key or "", raw)
        return cls(queue, delivered.tag, bool(method.redelivered), head, delivered.body)


class Chunk(NamedTuple):
    """`size` messages of the stream, from number `first` on, delivered with `tag`."""

    first: int
    size: int
    tag: int
    packed: bytes

    @property
    def end(self) -> int:
        """The number after its last message."""
        return self.first + self.size

    @classmethod
    def of(cls, delivered: Delivered, queue: str) -> Chunk:
        """Raises: StagedError."""
        headers = delivered.properties.headers or {}
        first, size = headers.get(_FIRST), headers.get(_COUNT)
        if not isinstance(first, int) or not isinstance(size, int):
            raise StagedError(queue, "it has a message that does not belong to the stream")
        return cls(first, size, delivered.tag, delivered.body)


class Piece(NamedTuple):
    """Messages of a chunk: those from place `start` to before `stop`."""

    packed: bytes
    start: int
    stop: int


def chunks(
    messages: Iterable[StagedMessage], first: int, queue: str, most: int
) -> Iterator[Outgoing]:
    """Yield the messages to be staged in a queue, from number `first` on.

    Args: most, messages of a chunk.
    """
    most = min(most, _MAX_MESSAGES)
    packer = msgpack.Packer()
    parts: list[bytes] = []
    size = 0

    def chunk() -> Outgoing:
        headers = {_FIRST: first, _COUNT: len(parts)}
        body = b"".join((packer.pack_array_header(len(parts)), *parts))
        return Outgoing("", queue, pika.BasicProperties(delivery_mode=2, headers=headers), body)

    for message in messages:
        parts.append(packer.pack(message))
        size += len(parts[-1])
        if size >= _MAX_BYTES or len(parts) == most:
            yield chunk()
            first += len(parts)
            parts, size = [], 0
    if parts:
        yield chunk()


def pieces(staged: Iterable[Chunk], start: int, end: int) -> list[Piece]:
    """Return the messages from number `start` to before `end`."""
    return [
        Piece(one.packed, max(start - one.first, 0), min(end, one.end) - one.first)
        for one in staged
        if one.first < end and start < one.end
    ]


def batches(of: Sequence[Piece], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of view `consume`."""
    messages = [*chain.from_iterable(_unpacked(piece) for piece in of)]
    envelopes = EnvelopeColumns(schema)
    for start in range(0, len(messages), _ROWS):
        some = messages[start : start + _ROWS]
        fresh = count()
        numbers: dict[bytes, int] = {}
        places = [numbers.setdefault(one.head, next(fresh)) for one in some]
        heads = {number: head for head, number in numbers.items()}
        found = envelopes.columns(heads.__getitem__, places)
        for field in schema:
            if field.name not in found:
                values = [getattr(one, field.name) for one in some]
                found[field.name] = array_of(values, field.type)
        yield pa.RecordBatch.from_arrays([found[field.name] for field in schema], schema=schema)


def _unpacked(piece: Piece) -> Iterator[StagedMessage]:
    rows: list[list[Any]] = msgpack.unpackb(piece.packed)
    return map(StagedMessage._make, rows[piece.start : piece.stop])
