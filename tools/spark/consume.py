"""A queue of a broker as a stream: every message in exactly one micro-batch.

Spark asks for a batch again after a crash, and must then get the same rows, whatever happened to
the queue meanwhile. So messages are *claimed* first: one transaction of the broker acks them in
their queue and publishes them to a queue of the stream's own, each with its index, which counts all
that the stream ever took. Offsets are indexes. A micro-batch is a range of them, and is read from
the stream's queue, which nobody else consumes; it is acked there when Spark has committed it.

Steps of a micro-batch, and what a crash between them leaves:

1. `latestOffset`: messages are taken from the queue, unacked. A crash: they are ready again.
2. The claim is committed. A crash: they are in the stream's queue; the next `latestOffset` finds
   them there and gives them out, before anything new is claimed.
3. Spark writes the end to its checkpoint, and runs the batch. A crash: the same range is
   read again.
4. Spark notes that the batch is done, and `commit` acks the range. A crash before the ack: the
   next `latestOffset` starts behind the range, and acks what is before its start.

Two drivers cannot run one stream at a time: see `broker.lock`. One that lost its connection has
lost its transaction too.

The rows travel with the partitions, so executors need no connection, and a micro-batch is as large
as the driver can hold.
"""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pika
import pyarrow as pa
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from tools.spark.broker import lock, queue_name
from tools.spark.envelopes import text_of
from tools.spark.options import ConsumeOptions
from tools.spark.rows import batches_of
from tools.spark.schemas import PROPERTIES, VIEWS, arrow_schema

Offset = dict[str, int]

_HEADER = "x-spark"
_NAMES = [name for name, _ in PROPERTIES]
_FIRST_WAIT_S = 0.05
_MOST_PREFETCH = 65_535

_Delivered = tuple[pika.spec.Basic.Deliver | pika.spec.Basic.GetOk, pika.BasicProperties, bytes]


class StagedError(Exception):
    """The stream's queue is not as this module leaves it."""

    def __init__(self, queue: str, reason: str) -> None:
        super().__init__(
            f"queue {queue} of the stream: {reason}. Somebody else used it, or the checkpoint is "
            "of another stream. Take another name for the stream, with a new checkpoint."
        )


class _Staged(NamedTuple):
    """A message in the stream's queue: its index and delivery tag, and the row that it makes."""

    number: int
    tag: int
    row: tuple[Any, ...]


@dataclass
class ConsumedPartition(InputPartition):
    """Rows of a micro-batch."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)


class ConsumeReader(DataSourceStreamReader):
    """Takes from the queue that the options name."""

    def __init__(self, options: ConsumeOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._staging = queue_name(options.stream, "staging")
        self._staged: deque[_Staged] = deque()
        self._connection: pika.BlockingConnection | None = None
        self._channel: BlockingChannel | None = None

    # Spark's names.

    def initialOffset(self) -> Offset:  # noqa: N802
        self._open()
        return {"index": self._staged[0].number if self._staged else 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.max_messages)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        self._open()
        self._drop(start["index"])
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_messages
        if not self._staged:
            self._claim(start["index"], most)
        return {"index": start["index"] + min(len(self._staged), most)}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        if start == end:
            return []
        self._open()
        self._drop(start["index"])
        count = end["index"] - start["index"]
        rows = [one.row for one in self._staged][:count]
        if len(rows) < count:
            reason = f"messages {start['index'] + len(rows)} to {end['index'] - 1} are not there"
            raise StagedError(self._staging, reason)
        most = self._options.task_messages
        return [ConsumedPartition(rows[place : place + most]) for place in range(0, count, most)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, ConsumedPartition):
            names = [name for name, _ in VIEWS["consume"]]
            yield from batches_of(partition.rows, names, arrow_schema(self._schema))

    def commit(self, end: Offset) -> None:
        self._open()
        self._drop(end["index"])

    def stop(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(AMQPError):
                self._connection.close()

    # The stream's queue.

    def _open(self) -> None:
        """Connect, and read what was claimed before. Raises: StreamLockedError, AMQPError."""
        if self._connection is not None and self._channel is not None:
            # It may have been lost while a batch took its time.
            with contextlib.suppress(AMQPError):
                self._connection.process_data_events(0)
                if self._channel.is_open:
                    return
        self._staged.clear()
        self._connection, self._channel = lock(self._options.url, self._options.stream)
        self._channel.queue_declare(self._staging, durable=True)
        self._take_staged()

    def _live(self) -> BlockingChannel:
        assert self._channel is not None  # `_open` was called
        return self._channel

    def _take_staged(self) -> None:
        for method, properties, body in _ready(self._live(), self._staging):
            self._staged.append(_of(method.delivery_tag or 0, properties, body, self._staging))
        indexes = [one.number for one in self._staged]
        if indexes != list(range(indexes[0], indexes[0] + len(indexes)) if indexes else ()):
            raise StagedError(self._staging, "its messages are not in the order of their indexes")

    def _drop(self, index: int) -> None:
        """Ack what Spark has committed: all before an index."""
        tag = 0
        while self._staged and self._staged[0].number < index:
            tag = self._staged.popleft().tag
        if tag:
            self._live().basic_ack(tag, multiple=True)
        if self._staged and self._staged[0].number > index:
            reason = f"message {index} is not there, and message {self._staged[0].number} is"
            raise StagedError(self._staging, reason)

    def _claim(self, index: int, most: int) -> None:
        """Move messages from the queue to the stream's, as indexes from `index` on, all at once."""
        connection = self._live().connection
        # Of its own, so that one ack is for all that it took, and for nothing that is staged.
        channel = connection.channel()
        channel.tx_select()
        taken = _ready(channel, self._options.queue, most)
        for place, (method, properties, body) in enumerate(taken):
            about = {
                "index": index + place,
                "redelivered": bool(method.redelivered),
                "exchange": method.exchange,
                "routing_key": method.routing_key,
                "delivery_tag": method.delivery_tag,
                "properties": {
                    name: value
                    for name in _NAMES
                    if (value := getattr(properties, name)) is not None
                },
                "queue": self._options.queue,
            }
            # In a header of their own, the publisher's properties cannot expire the message, send
            # copies of it elsewhere, or have it refused.
            staged = pika.BasicProperties(delivery_mode=2, headers={_HEADER: about})
            channel.basic_publish("", self._staging, body, staged)
        if taken:
            channel.basic_ack(taken[-1][0].delivery_tag or 0, multiple=True)
            channel.tx_commit()
        # What came behind the last one is given back with the channel.
        channel.close()
        if taken:
            self._take_staged()
        else:
            # Spark asks again at once where it has nothing to do.
            connection.process_data_events(_FIRST_WAIT_S)


def _ready(channel: BlockingChannel, queue: str, most: int = 0) -> list[_Delivered]:
    """What is ready in a queue, unacked, in its order. Args: most, messages, about; 0: all.

    A consumer brings it, as a get is a round trip for each message; that there is no more is what
    a get says.
    """
    found: list[_Delivered] = []
    channel.basic_qos(prefetch_count=min(most, _MOST_PREFETCH))
    tag = channel.basic_consume(queue, lambda _, *delivered: found.append(delivered))
    while not most or len(found) < most:
        method, properties, body = channel.basic_get(queue)
        channel.connection.process_data_events(0)
        if method is None or properties is None or body is None:
            break
        found.append((method, properties, body))
    channel.basic_cancel(tag)
    found.sort(key=lambda one: one[0].delivery_tag or 0)
    return found


def _of(tag: int, properties: pika.BasicProperties, body: bytes, queue: str) -> _Staged:
    about: Any = (properties.headers or {}).get(_HEADER)
    if not isinstance(about, Mapping) or not isinstance(about.get("index"), int):
        raise StagedError(queue, "it has a message that is none of the stream's")
    given = about["properties"]
    row: dict[str, Any] = {name: _plain(given.get(name)) for name in _NAMES}
    headers = given.get("headers")
    if headers is not None:
        row["headers"] = {key: text_of(_plain_header(value)) for key, value in headers.items()}
    if isinstance(row["timestamp"], int):
        row["timestamp"] *= 1_000_000
    values = (
        about["queue"],
        about["delivery_tag"],
        about["redelivered"],
        about["exchange"],
        about["routing_key"],
        *(row[name] for name in _NAMES),
        b"".join(pika.BasicProperties(**given).encode()),
        body,
    )
    return _Staged(about["index"], tag, values)


def _plain(value: Any) -> Any:
    """A property as Arrow takes it."""
    return int(value.timestamp()) if isinstance(value, datetime) else value


def _plain_header(value: Any) -> Any:
    """A header as JSON has it, as in the other views."""
    if isinstance(value, datetime):
        return int(value.replace(tzinfo=value.tzinfo or UTC).timestamp())
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, Mapping):
        return {key: _plain_header(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain_header(one) for one in value]
    try:
        json.dumps(value)
    except TypeError:
        return str(value)
    return value
