"""A queue of a broker as a stream: every message in exactly one micro-batch.

Spark asks for a batch again after a crash, and must then get the same rows, whatever happened to
the queue meanwhile. So messages are *claimed* first: one transaction of the broker acks them in
their queue and publishes them to a queue of the stream's own (see `staged`), each with a number,
which counts all messages that the stream ever took. Offsets are these numbers. A micro-batch is a
range of them, in whole chunks, and is read from the stream's queue, which has no other consumer; it
is acked there when Spark has committed it.

Steps of a micro-batch, and what a crash between them leaves:

1. `latestOffset`: messages are taken from the queue, unacked. After a crash they are ready again.
2. The claim is committed. After a crash they are in the stream's queue; the next `latestOffset`
   finds them there and returns them, before anything new is claimed.
3. Spark writes the end to its checkpoint, and runs the batch. After a crash the same range is read
   again.
4. Spark notes that the batch is done, and `commit` acks the range. After a crash before the ack the
   next `latestOffset` starts after the range, and acks what is before its start.

Two drivers cannot run one stream at a time: see `broker.lock`. A driver that lost its connection
has lost its transaction too.

The rows travel with the partitions, so executors need no connection, and a micro-batch is as large
as the driver can hold.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pika
import pyarrow as pa
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from amqpstore_tools.pika import publish
from amqpstore_tools.spark.reading.options import ConsumeOptions
from amqpstore_tools.spark.reading.schemas import arrow_schema
from amqpstore_tools.spark.streams.broker import lock, queue_name, ready
from amqpstore_tools.spark.streams.staged import (
    Chunk,
    Piece,
    StagedError,
    StagedMessage,
    batches,
    chunks,
    pieces,
)

Offset = dict[str, int]

_FIRST_WAIT_S = 0.05


@dataclass
class ConsumedPartition(InputPartition):
    """A part of a micro-batch."""

    pieces: list[Piece]


class ConsumeReader(DataSourceStreamReader):
    """Takes from the queue that the options name."""

    def __init__(self, options: ConsumeOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._staging = queue_name(options.stream, "staging")
        self._staged: deque[Chunk] = deque()
        self._connection: pika.BlockingConnection | None = None
        self._channel: BlockingChannel | None = None

    # Names that Spark calls.

    def initialOffset(self) -> Offset:  # noqa: N802
        self._open()
        return {"index": self._staged[0].first if self._staged else 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.max_messages)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        self._open()
        self._drop(start["index"])
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_messages
        first = start["index"]
        if (end := self._end(first)) - first < most:
            self._claim(end, most - (end - first))
        end = first
        for one in self._staged:
            # Whole chunks, so that exactly what was committed is acked.
            if end > first and one.end - first > most:
                break
            end = one.end
        return {"index": end}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        if start == end:
            return []
        self._open()
        self._drop(start["index"])
        first, last = start["index"], end["index"]
        if (there := self._end(first)) < last:
            raise StagedError(self._staging, f"messages {there} to {last - 1} are not there")
        most = self._options.task_messages
        return [
            ConsumedPartition(pieces(self._staged, index, min(index + most, last)))
            for index in range(first, last, most)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, ConsumedPartition):
            yield from batches(partition.pieces, arrow_schema(self._schema))

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
            # The connection may have been lost during a long batch.
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
        for one in ready(self._live(), self._staging):
            chunk = Chunk.of(one, self._staging)
            if self._staged and self._staged[-1].end != chunk.first:
                raise StagedError(self._staging, "its messages are out of order")
            self._staged.append(chunk)

    def _end(self, first: int) -> int:
        """Return the number after the last staged message, if `first` is next."""
        return self._staged[-1].end if self._staged else first

    def _drop(self, index: int) -> None:
        """Ack what Spark has committed: everything before a number."""
        tag = 0
        while self._staged and self._staged[0].end <= index:
            tag = self._staged.popleft().tag
        if tag:
            self._live().basic_ack(tag, multiple=True)
        if self._staged and self._staged[0].first > index:
            reason = f"message {index} is not there, and message {self._staged[0].first} is"
            raise StagedError(self._staging, reason)

    def _claim(self, index: int, most: int) -> None:
        """Move messages from the queue to the stream's, as numbers from `index` on, all at once."""
        connection = self._live().connection
        # A channel of its own, so that one ack covers everything it took, and nothing staged.
        channel = connection.channel()
        channel.tx_select()
        delivered = ready(channel, self._options.queue, most, most_bytes=self._options.max_bytes)
        taken = (StagedMessage.of(one, self._options.queue) for one in delivered)
        publish(channel, chunks(taken, index, self._staging, self._options.max_messages))
        if delivered:
            channel.basic_ack(delivered[-1].tag, multiple=True)
            channel.tx_commit()
        # Messages after the last one are requeued with the channel.
        channel.close()
        if delivered:
            self._take_staged()
        elif not self._staged:
            # Spark asks again at once if it has nothing to do.
            connection.process_data_events(_FIRST_WAIT_S)
