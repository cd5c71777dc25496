"""Reads the events of one queue from an archive as a data frame, up to a time or between two."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import Row

from amqpstore_tools.archive.committing import Archive
from amqpstore_tools.archive.errors import ArchiveError
from amqpstore_tools.archive.events import ACK, DELETE, DELIVER, GONE, HELD, PUBLISH, PURGE, SCHEMA
from amqpstore_tools.archive.layout import QueueName, queue_directory
from amqpstore_tools.archive.manifest import FileEntry
from amqpstore_tools.transfer.lines import MessageLine, QueueKey


@dataclass(frozen=True)
class Found:
    """The files of a queue. `from_ms` is when the archive begins, `to_ms` when it ends; `missing`
    LSNs are not in it.
    """

    paths: list[str]
    from_ms: int
    to_ms: int
    missing: int


def find(directory: str, name: QueueName, *, least_ms: int | None, most_ms: int | None) -> Found:
    """Find the files that may have events of a queue between two times. Raises: ArchiveError."""
    manifests = Archive(directory).manifests()
    if not manifests:
        raise ArchiveError(directory, "it is empty. Run amqpstore archive first.")
    prefix = queue_directory(name) + os.sep
    files = [entry for one in manifests for entry in one.files if entry.path.startswith(prefix)]
    if not files:
        known = sorted(
            {
                queue.queue
                for one in manifests
                for queue in one.queues.values()
                if queue.vhost == name.vhost and queue.queue
            }
        )
        hint = f"It has {', '.join(map(repr, known[:10]))}" if known else "It has none"
        if len(known) > 10:
            hint += f" and {len(known) - 10} more"
        reason = f"no queue {name.queue!r} of virtual host {name.vhost!r}. {hint}."
        raise ArchiveError(directory, reason)
    return Found(
        [
            os.path.join(os.path.abspath(directory), entry.path)
            for entry in files
            if _may_have(entry, least_ms, most_ms)
        ],
        min(entry.first_ms for one in manifests for entry in one.files),
        manifests[-1].taken_ms,
        sum(one.missing for one in manifests[1:]),
    )


def events(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Return the content of some files of an archive."""
    schema = from_arrow_schema(SCHEMA)
    if not paths:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*paths)


def published(
    spark: SparkSession, paths: Sequence[str], least_ms: int | None, most_ms: int | None
) -> DataFrame:
    """Return the messages that were published from one time to before another, in order."""
    found = events(spark, paths).where(sql.col("event") == PUBLISH)
    if least_ms is not None:
        found = found.where(sql.col("time") >= _time(least_ms))
    if most_ms is not None:
        found = found.where(sql.col("time") < _time(most_ms))
    return _with_ms(found).orderBy("lsn", "queue_id", "position")


def held_at(spark: SparkSession, paths: Sequence[str], at_ms: int) -> DataFrame:
    """Return what a queue held at a time, in order: messages that had arrived by then and had not
    left.

    Column `delivery_count` is how often each had been delivered by then.
    """
    by_then = events(spark, paths).where(sql.col("time") <= _time(at_ms))
    came = by_then.where(sql.col("event").isin(PUBLISH, HELD))
    left = _one_by_one(by_then.where(sql.col("event").isin(ACK, PURGE, GONE)))
    # A message that existed when the archive began may occur twice, if a run was late.
    came = came.dropDuplicates(["queue_id", "position"])
    gone = by_then.where(sql.col("event") == DELETE).select("queue_id")
    delivered = (
        _one_by_one(by_then.where(sql.col("event") == DELIVER), "delivery_count")
        .groupBy("queue_id", "position")
        .agg(sql.max("delivery_count").alias("delivered"))
    )
    held = (
        came.join(gone, ["queue_id"], "left_anti")
        .join(left, ["queue_id", "position"], "left_anti")
        .join(delivered, ["queue_id", "position"], "left")
    )
    most = sql.greatest(
        sql.coalesce("delivered", sql.lit(0)), sql.coalesce("delivery_count", sql.lit(0))
    )
    return (
        _with_ms(held)
        .withColumn("delivery_count", most)
        .drop("delivered")
        .orderBy(sql.col("level").desc(), "queue_id", "position")
    )


def lines(found: DataFrame, name: QueueName) -> Iterator[MessageLine | None]:
    """Yield the messages in files; None for one whose content was damaged."""
    for row in found.toLocalIterator(prefetchPartitions=True):
        yield None if row["body"] is None else _line(row, name)


def _line(row: Row, name: QueueName) -> MessageLine:
    return MessageLine(
        QueueKey(name.vhost, name.queue, row["level"] or 0),
        row["exchange"],
        row["routing_key"],
        bytes(row["properties"]),
        bytes(row["body"]),
        sequence=row["position"],
        id=row["id"],
        priority=row["level"] or 0,
        expires_ms=row["expires_ms"] or 0,
        deliveries=row["delivery_count"] or 0,
    )


def _one_by_one(runs: DataFrame, *columns: str) -> DataFrame:
    """Return one row for each message of runs of positions."""
    last = sql.col("position") + sql.col("count") - 1
    positions = sql.explode(sql.sequence(sql.col("position"), last))
    return runs.select("queue_id", positions.alias("position"), *columns)


def _with_ms(found: DataFrame) -> DataFrame:
    """Convert times to numbers, which do not depend on a time zone."""
    return found.withColumn("time_ms", sql.unix_millis("time")).withColumn(
        "expires_ms", sql.unix_millis("expires")
    )


def _may_have(entry: FileEntry, least_ms: int | None, most_ms: int | None) -> bool:
    return (least_ms is None or entry.last_ms >= least_ms) and (
        most_ms is None or entry.first_ms <= most_ms
    )


def _time(ms: int) -> Column:
    return sql.timestamp_millis(sql.lit(ms))
