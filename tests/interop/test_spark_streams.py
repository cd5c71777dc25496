"""Streams between two queues whose driver loses the broker, at every word that the broker says.

Spark itself is left out, so that it can be every word: `Driver` asks reader and writer for what
Spark asks them for, in its order, and its checkpoint has what Spark's has. tests/spark kills real
drivers.
"""

import contextlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

import msgpack
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError
from pyspark.sql import Row
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows

from amqpstore_server.protocol.content import BasicProperties as Properties
from amqpstore_server.protocol.content import encode_properties
from amqpstore_tools.pika import KeptProperties, RawProperties, XaResource, keep_properties
from amqpstore_tools.spark.reading.options import ConsumeOptions, PublishOptions
from amqpstore_tools.spark.reading.schemas import spark_schema
from amqpstore_tools.spark.streams.consume import ConsumeReader, Offset
from amqpstore_tools.spark.streams.publish import PublishStreamWriter
from amqpstore_tools.spark.streams.staged import StagedError
from tests.broker_process import BrokerProcess
from tests.interop.relay import Relay

COLUMNS = ("body", "properties")
RAW = encode_properties(
    Properties(
        # pika makes 1 of 1.5, and cannot read what is infinite.
        headers={"CC": ["elsewhere"], "n": 7, "f": 1.5, "inf": float("inf"), "x": b"\xff"},
        delivery_mode=2,
        expiration="3600000",
        type="t",
    )
)


@pytest.fixture
def channel(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> Generator[BlockingChannel]:
    # What streams change in pika is for the whole process: for tests of others it is undone.
    monkeypatch.setitem(pika.spec.props, pika.BasicProperties.INDEX, pika.BasicProperties)
    keep_properties()
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    yield channel
    connection.close()


@dataclass
class Checkpoint:
    """Spark's record of a query: where it began, the ends of its batches, how many are done."""

    start: Offset | None = None
    ends: list[Offset] = field(default_factory=list)
    done: int = 0

    def before(self, batch: int) -> Offset:
        assert self.start is not None
        return self.ends[batch - 1] if batch else self.start


class Driver:
    """Moves messages from queue `in` to queue `out`, as a micro-batch query does."""

    def __init__(self, url: str, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        options = ConsumeOptions(url, "in", "s", max_messages=5, task_messages=3)
        self._reader = ConsumeReader(options, spark_schema("consume", COLUMNS))
        self._writer = PublishStreamWriter(PublishOptions(url, routing_key="out", stream="w"))

    def run(self) -> None:
        """Move messages until there are no more. Raises: AMQPError, when the broker is lost."""
        try:
            while self._has_batch():
                self._batch()
        finally:
            self._reader.stop()

    def _has_batch(self) -> bool:
        known = self._checkpoint
        if known.start is None:
            known.start = self._reader.initialOffset()
        if known.done < len(known.ends):
            return True
        start = known.before(known.done)
        end = self._reader.latestOffset(start, ReadMaxRows(5))
        if end == start:
            return False
        known.ends.append(end)
        if known.done:
            self._reader.commit(start)
        return True

    def _batch(self) -> None:
        known = self._checkpoint
        tasks = self._reader.partitions(known.before(known.done), known.ends[known.done])
        written = [self._writer.write(self._rows(task)) for task in tasks]
        self._writer.commit([*written], known.done)
        known.done += 1

    def _rows(self, partition: InputPartition) -> Iterator[Row]:
        for batch in self._reader.read(partition):
            for row in batch.to_pylist():
                yield Row(**row)


class Cut:
    """Cuts the connections at one of the pieces in which the broker's words come."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.seen = 0

    def __call__(self, piece: bytes) -> bytes:
        self.seen += 1
        return b"" if self.seen == self.at else piece


def fill(channel: BlockingChannel, bodies: list[bytes]) -> None:
    channel.confirm_delivery()
    for queue in ("in", "out", "elsewhere"):
        channel.queue_declare(queue, durable=True)
    plain = pika.BasicProperties(delivery_mode=2)
    for number, body in enumerate(bodies):
        # The first one goes elsewhere as well, in every queue that it is published to.
        channel.basic_publish("", "in", body, plain if number else RawProperties(RAW))
    channel.queue_purge("elsewhere")


def taken(channel: BlockingChannel, queue: str) -> list[tuple[pika.BasicProperties, bytes]]:
    found: list[tuple[pika.BasicProperties, bytes]] = []
    while True:
        _, properties, body = channel.basic_get(queue, auto_ack=True)
        if properties is None or body is None:
            return found
        found.append((properties, body))


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.long), 11])
def test_every_message_is_moved_once_wherever_the_driver_loses_the_broker(
    broker: BrokerProcess, channel: BlockingChannel, step: int
) -> None:
    bodies = [b"message %d" % number for number in range(8)]
    at, is_cut = 1, True
    while is_cut:
        fill(channel, bodies)
        checkpoint = Checkpoint()
        cut = Cut(at)
        with Relay(broker.url, cut) as relay:
            with contextlib.suppress(AMQPError, OSError):
                Driver(relay.url, checkpoint).run()
            is_cut = cut.seen >= at
        Driver(broker.url, checkpoint).run()
        arrived = taken(channel, "out")
        assert sorted(body for _, body in arrived) == sorted(bodies), at
        (moved,) = (properties for properties, body in arrived if body == bodies[0])
        assert isinstance(moved, KeptProperties)
        assert moved.raw == RAW, at
        assert len(taken(channel, "elsewhere")) == 1, at
        assert taken(channel, "in") == [], at
        assert XaResource(channel.connection.channel()).recover() == [], at
        # The checkpoint is given up, and with it the queues that it knows of.
        for name in ("spark.s.staging", "spark.w.ledger"):
            channel.queue_delete(name)
        at += step
    assert at > 50


def test_a_batch_of_any_size_is_taken_and_all_of_it(
    broker: BrokerProcess, channel: BlockingChannel
) -> None:
    bodies = [b"%d" % number for number in range(3000)]
    fill(channel, bodies)
    options = ConsumeOptions(broker.url, "in", "s", max_messages=1000)
    reader = ConsumeReader(options, spark_schema("consume", ("body", "redelivered")))
    end = reader.initialOffset()
    found: list[bytes] = []
    while (start := end) != (end := reader.latestOffset(start, ReadMaxRows(1000))):
        assert end["index"] - start["index"] <= 1000
        for task in reader.partitions(start, end):
            for batch in reader.read(task):
                found += [row["body"] for row in batch.to_pylist()]
        reader.commit(end)
    reader.stop()
    assert found == bodies
    assert taken(channel, "in") == []
    assert taken(channel, "spark.s.staging") == []


def test_a_batch_is_of_whole_chunks_and_a_task_of_any_part_of_one(
    broker: BrokerProcess, channel: BlockingChannel
) -> None:
    bodies = [b"%d" % number for number in range(100)]
    fill(channel, bodies)
    schema = spark_schema("consume", COLUMNS)
    reader = ConsumeReader(ConsumeOptions(broker.url, "in", "s", 30, task_messages=7), schema)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(30))
    tasks = reader.partitions(start, end)
    assert end["index"] == 30
    rows = [
        [row["body"] for batch in reader.read(one) for row in batch.to_pylist()] for one in tasks
    ]
    assert rows == [bodies[at : min(at + 7, 30)] for at in range(0, 30, 7)]
    reader.stop()
    # Another driver, with smaller batches: of what is staged it gets a chunk at least.
    reader = ConsumeReader(ConsumeOptions(broker.url, "in", "s", 10), schema)
    assert reader.latestOffset(start, ReadMaxRows(10)) == end
    reader.stop()


def test_messages_that_the_driver_did_not_claim_stay_in_their_queue(
    broker: BrokerProcess, channel: BlockingChannel
) -> None:
    bodies = [b"%d" % number for number in range(50)]
    fill(channel, bodies)
    reader = ConsumeReader(
        ConsumeOptions(broker.url, "in", "s", max_messages=10), spark_schema("consume", COLUMNS)
    )
    start = reader.initialOffset()
    reader.latestOffset(start, ReadMaxRows(10))
    reader.stop()
    chunks = [msgpack.unpackb(body) for _, body in taken(channel, "spark.s.staging")]
    claimed = [row[-1] for chunk in chunks for row in chunk]
    left = [body for _, body in taken(channel, "in")]
    assert claimed + left == bodies
    assert 10 <= len(claimed) < len(bodies)


def test_a_queue_of_the_stream_that_somebody_used_is_told(
    broker: BrokerProcess, channel: BlockingChannel
) -> None:
    fill(channel, [])
    channel.queue_declare("spark.s.staging", durable=True)
    channel.basic_publish("", "spark.s.staging", b"?", pika.BasicProperties(delivery_mode=2))
    reader = ConsumeReader(ConsumeOptions(broker.url, "in", "s"), spark_schema("consume"))
    with pytest.raises(StagedError, match="does not belong to the stream"):
        reader.initialOffset()
    reader.stop()
    assert [body for _, body in taken(channel, "spark.s.staging")] == [b"?"]
