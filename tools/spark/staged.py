"""A message on its way through the queue of a stream: see `consume`.

All that is not its body is in one header, so that nothing the publisher said can expire the message
there, send copies of it elsewhere, or have it refused. Tasks look into it, not the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import msgpack
import pika
import pyarrow as pa

from amqpstore.message import encode_head
from tools.spark.broker import Delivered
from tools.spark.envelopes import EnvelopeColumns, array_of

_HEADER = "x-spark"
_ROWS = 16_384


class StagedError(Exception):
    """The stream's queue is not as the stream leaves it."""

    def __init__(self, queue: str, reason: str) -> None:
        super().__init__(
            f"queue {queue} of the stream: {reason}. Somebody else used it, or the checkpoint is "
            "of another stream. Take another name for the stream, with a new checkpoint."
        )


class Taken(NamedTuple):
    """A message as it was delivered; `head` as `amqpstore.message.encode_head` makes it."""

    queue: str
    delivery_tag: int
    redelivered: bool
    head: bytes
    body: bytes

    @classmethod
    def of(cls, delivered: Delivered, queue: str) -> Taken:
        method = delivered.method
        raw = delivered.properties.raw
        head = encode_head(method.exchange or "", method.routing_key or "", raw)
        return cls(queue, delivered.tag, bool(method.redelivered), head, delivered.body)


class Staged(NamedTuple):
    """A message in the stream's queue, delivered from there by `tag`; its number is its offset."""

    number: int
    tag: int
    taken: Taken

    @classmethod
    def of(cls, delivered: Delivered, queue: str) -> Staged:
        """Raises: StagedError."""
        header: Any = (delivered.properties.headers or {}).get(_HEADER)
        try:
            number, *fields = msgpack.unpackb(header)
            taken = Taken._make([*fields, delivered.body])
        except (TypeError, ValueError) as error:
            raise StagedError(queue, "it has a message that is none of the stream's") from error
        return cls(number, delivered.tag, taken)

    @staticmethod
    def properties(number: int, taken: Taken) -> pika.BasicProperties:
        """Those of a message that is to be staged."""
        header = msgpack.packb([number, *taken[:-1]])
        return pika.BasicProperties(delivery_mode=2, headers={_HEADER: header})


def batches(messages: Sequence[Taken], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows of view `consume`."""
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
