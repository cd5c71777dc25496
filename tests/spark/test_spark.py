"""Stores and queues in a real Spark session, with a real broker; drivers that are killed."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pika
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from amqpstore_tools.pika import XaResource
from tests.broker_process import REPOSITORY, BrokerProcess
from tests.spark import driver
from tests.spark.conftest import Connect
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

TIMEOUT_S = 120.0


def until(condition: Callable[[], bool]) -> None:
    wait_until(condition, timeout_s=TIMEOUT_S, pause_s=0.05)


def publish(connection: pika.BlockingConnection, queue: str, bodies: list[bytes]) -> None:
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    channel.tx_select()
    properties = pika.BasicProperties(delivery_mode=2, headers={"CC": ["elsewhere"], "n": 1})
    for body in bodies:
        channel.basic_publish("", queue, body, properties)
    channel.tx_commit()
    channel.close()


def drained(connection: pika.BlockingConnection, queue: str) -> list[bytes]:
    channel = connection.channel()
    found = []
    while (one := channel.basic_get(queue, auto_ack=True))[2] is not None:
        found.append(one[2])
    return found


def depth(connection: pika.BlockingConnection, queue: str) -> int:
    return int(connection.channel().queue_declare(queue, passive=True).method.message_count)


@contextmanager
def driver_process(
    tmp_path: Path, *arguments: str
) -> Generator[tuple[subprocess.Popen[bytes], str]]:
    """A driver of its own, ended with its JVM however the test ends."""
    pids = str(tmp_path / "pids")
    with open(tmp_path / "driver.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.driver", *arguments],
            cwd=REPOSITORY,
            env={**os.environ, "DRIVER_PIDS": pids, "SPARK_LOCAL_DIRS": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield process, pids
    finally:
        process.kill()
        process.wait()


@pytest.mark.long
def test_a_live_store_is_read_while_compaction_takes_its_segments(
    spark: SparkSession, broker: BrokerProcess, directory: str, connect: Connect
) -> None:
    connection = connect()
    # More than a segment, so that one of them is nothing but these.
    publish(connection, "q", [b"%04d" % number + bytes(6000) for number in range(3000)])
    publish(connection, "q", [b"%04d" % number + bytes(6000) for number in range(3000, 3100)])
    frame = spark.read.format("amqpstore").load(directory)
    frame = frame.where("queue = 'q'").select("position", "body", "state")
    plan = frame._jdf.queryExecution().executedPlan()
    plan.execute().getNumPartitions()  # now it is planned, and the segments are held
    segments = set(os.listdir(f"{directory}/segments"))
    connection.channel().queue_purge("q")
    for _ in range(4):
        publish(connection, "p", [bytes(1 << 20)] * 12)
    until(lambda: bool(segments - set(os.listdir(f"{directory}/segments"))))
    rows = frame.collect()
    assert [bytes(row.body[:4]) for row in sorted(rows)] == [b"%04d" % n for n in range(3100)]
    assert {row.state for row in rows} == {"ready"}
    again = spark.read.format("amqpstore").load(directory)
    assert again.where("queue = 'q' and state = 'ready'").count() == 0


def test_filters_columns_and_views(
    spark: SparkSession, broker: BrokerProcess, directory: str, connect: Connect
) -> None:
    publish(connect(), "a", [b"1", b"2"])
    publish(connect(), "b", [b"3"])
    broker.terminate()
    frame = spark.read.format("amqpstore").load(directory)
    counted = {row.queue: row["count"] for row in frame.groupBy("queue").count().collect()}
    assert counted == {"a": 2, "b": 1}
    row = frame.where(F.col("queue") == "b").head()
    assert row is not None
    assert (bytes(row.body), row.state, row.routing_key, row.headers["n"]) == (
        b"3",
        "ready",
        "b",
        "1",
    )
    # What one query asks of a frame is nothing to the next one, nor to itself.
    assert frame.where("queue = 'nothing'").count() == 0
    assert frame.count() == 3
    both = frame.where("queue = 'a'").union(frame.where("queue = 'b'"))
    assert {row.queue: row["count"] for row in both.groupBy("queue").count().collect()} == counted
    named = spark.read.format("amqpstore").option("queue", "b").load(directory)
    assert named.count() == 1
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed = spark.read.format("amqpstore").option("pushdown", "true").load(directory)
        assert [row.queue for row in pushed.where("queue = 'b'").collect()] == ["b"]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert frame.where("publish_time > now() + interval 1 hour").count() == 0
    assert frame.where("publish_time > now() - interval 1 hour and segment = 1").count() == 3
    store = spark.read.format("amqpstore")
    assert store.option("bodies", "false").load(directory).where("body is null").count() == 3
    views = {view: store.option("view", view).load(directory).count() for view in VIEWS}
    assert views == {"transactions": 2, "queues": 2, "segments": 1, "findings": 0}
    broker.start()


VIEWS = ("transactions", "queues", "segments", "findings")


@pytest.mark.parametrize(
    "step",
    [pytest.param(step, marks=pytest.mark.long) for step in driver.STEPS],
)
def test_every_message_is_moved_once_through_a_kill_of_the_driver(
    spark: SparkSession, broker: BrokerProcess, connect: Connect, tmp_path: Path, step: str
) -> None:
    connection = connect()
    bodies = [b"message %d" % number for number in range(100)]
    publish(connection, "in", bodies)
    publish(connection, "out", [])
    checkpoint = str(tmp_path / "checkpoint")
    with driver_process(tmp_path, "transfer", broker.url, checkpoint, step) as (process, pids):
        code = process.wait(TIMEOUT_S)
        log = (tmp_path / "driver.log").read_text()
        assert code == -signal.SIGKILL, log
        assert not os.path.exists(pids), log
    query = driver.transfer(spark, broker.url, checkpoint)
    try:
        until(lambda: query.exception() is not None or depth(connection, "out") >= len(bodies))
        assert query.exception() is None
        # One more makes Spark say of all before it that it is done.
        publish(connection, "in", [b"last"])
        until(lambda: depth(connection, "out") > len(bodies))
    finally:
        query.stop()
    channel = connection.channel()
    _, properties, _ = channel.basic_get("out")
    assert properties is not None
    assert properties.headers == {"CC": ["elsewhere"], "n": 1}
    channel.close()
    assert Counter(drained(connection, "out")) == Counter([*bodies, b"last"])
    assert depth(connection, "in") == 0
    assert XaResource(connection.channel()).recover() == []


@pytest.mark.long
def test_the_log_is_archived_once_through_kills_of_the_driver(
    spark: SparkSession,
    broker: BrokerProcess,
    directory: str,
    connect: Connect,
    tmp_path: Path,
) -> None:
    connection = connect()
    for number in range(40):
        publish(connection, "q", [b"%d" % (10 * number + one) for one in range(10)])
    target, checkpoint = str(tmp_path / "files"), str(tmp_path / "checkpoint")
    done = Path(checkpoint, "commits")
    with driver_process(tmp_path, "archive", directory, checkpoint, target) as (process, pids):
        until(lambda: done.exists() and any(done.iterdir()))
        for pid in Path(pids).read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        process.wait(TIMEOUT_S)
    assert len(drained(connection, "q")) == 400
    query = driver.archive(spark, directory, target, checkpoint)
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    rows = spark.read.parquet(target)
    published = rows.where("event = 'publish'").select("position", "body").collect()
    assert [bytes(row.body) for row in sorted(published)] == [b"%d" % n for n in range(400)]
    acked = rows.where("event = 'ack'").select("position").collect()
    assert sorted(row.position for row in acked) == list(range(1, 401))


def test_a_replayed_batch_is_published_once(
    spark: SparkSession, broker: BrokerProcess, connect: Connect
) -> None:
    connection = connect()
    publish(connection, "out", [])
    rows = [(b"a", "out", {"CC": '["out2"]', "n": "1"}), (b"b", "out", {"n": "2"})]
    publish(connection, "out2", [])
    frame = spark.createDataFrame(rows, ["body", "routing_key", "headers"])
    writer = frame.write.format("amqpstore").mode("append").option("url", broker.url)
    for batch in (1, 1, 0, 2):
        writer.options(stream="batches", batch_id=str(batch)).save()
    assert sorted(drained(connection, "out")) == [b"a", b"a", b"b", b"b"]
    assert drained(connection, "out2") == [b"a", b"a"]
    with pytest.raises(Exception, match="has no column body"):
        frame.drop("body").write.format("amqpstore").mode("append").option("url", broker.url).save()
    assert depth(connection, "out") == 0
