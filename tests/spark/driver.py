"""A Spark driver in a process of its own, to be killed: from a queue to an exchange, or from the
log to files.

Usage: python driver.py transfer URL CHECKPOINT STEP, where STEP is that of a micro-batch at which
the process that does it kills the driver: Spark's JVM, the Python that started it, and itself. Or:
python driver.py archive STORE CHECKPOINT FILES. DRIVER_PIDS in the environment is a file for both
pids: it is gone when the driver was killed.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from amqpstore_tools.pika import XaResource
from amqpstore_tools.spark import session
from amqpstore_tools.spark.source import AmqpstoreSource
from amqpstore_tools.spark.streams import consume, publish

STEPS = ("claimed", "staged", "prepared", "decided", "half-committed", "committed")


def kill_driver() -> None:
    """Kill Spark's JVM and the Python that started it, with the worker that this runs in."""
    with open(os.environ["DRIVER_PIDS"]) as file:
        pids = [int(line) for line in file]
    # The driver is killed once only.
    os.unlink(os.environ["DRIVER_PIDS"])
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def dying(function: Callable[..., Any], *, before: bool) -> Callable[..., Any]:
    """Return the function with the driver's death before it or after it."""

    def run(*arguments: Any, **keywords: Any) -> Any:
        if before and os.path.exists(os.environ["DRIVER_PIDS"]):
            kill_driver()
        result = function(*arguments, **keywords)
        if os.path.exists(os.environ["DRIVER_PIDS"]):
            kill_driver()
        return result

    return run


def rig(step: str) -> None:
    """Have this process, a worker of Spark's, end the driver at a step."""
    reader, writer = consume.ConsumeReader, publish.PublishStreamWriter
    if step == "claimed":
        reader._take_staged = dying(reader._take_staged, before=False)  # type: ignore[method-assign]
    elif step == "staged":
        reader.partitions = dying(reader.partitions, before=True)  # type: ignore[method-assign]
    elif step == "prepared":
        writer.decide = dying(writer.decide, before=True)  # type: ignore[method-assign]
    elif step == "decided":
        publish._decide = dying(publish._decide, before=False)
    elif step == "half-committed":
        XaResource.commit = dying(XaResource.commit, before=False)  # type: ignore[method-assign]
    elif step == "committed":
        writer.decide = dying(writer.decide, before=False)  # type: ignore[method-assign]


class RiggedSource(AmqpstoreSource):
    """A source whose option `die` names the step at which its workers end the driver."""

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        rig(self.options.get("die", ""))
        return super().streamReader(schema)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        rig(self.options.get("die", ""))
        return super().streamWriter(schema, overwrite)


def transfer(spark: SparkSession, url: str, checkpoint: str, die: str = "") -> StreamingQuery:
    """Queue `in` to queue `out`, four tasks a batch."""
    taken = spark.readStream.format("amqpstore").option("mode", "consume")
    taken = taken.options(url=url, queue="in", stream="s", max_messages="40", die=die)
    rows = taken.option("task_messages", "10").load().select("body", "properties")
    writer = rows.writeStream.format("amqpstore").options(url=url, routing_key="out", stream="w")
    writer = writer.option("die", die).option("checkpointLocation", checkpoint)
    return writer.trigger(processingTime="50 milliseconds").start()


def archive(spark: SparkSession, store: str, target: str, checkpoint: str) -> StreamingQuery:
    """The log of a store to Parquet files, in small batches."""
    log = spark.readStream.format("amqpstore").option("mode", "tap").option("max_bytes", "15000")
    writer = log.load(store).writeStream.format("parquet").option("path", target)
    return writer.option("checkpointLocation", checkpoint).start()


def main(mode: str, source: str, checkpoint: str, more: str) -> None:
    spark = session("local[2]", settings={"spark.sql.shuffle.partitions": "1"})
    spark.dataSource.register(RiggedSource)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    # Whole at once: a worker reads it.
    with open(f"{checkpoint}.new", "w") as file:
        file.write(f"{gateway.proc.pid}\n{os.getpid()}\n")
    os.rename(f"{checkpoint}.new", os.environ["DRIVER_PIDS"])
    if mode == "transfer":
        query = transfer(spark, source, checkpoint, more)
    else:
        query = archive(spark, source, more, checkpoint)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:5])
