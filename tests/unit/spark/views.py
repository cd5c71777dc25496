"""Views of a store read without a Spark session, by what its tasks would do."""

from typing import Any

from pyspark.sql.datasource import Filter

from amqpstore_tools.spark.reading.leases import release
from amqpstore_tools.spark.reading.options import ReadOptions
from amqpstore_tools.spark.reading.plan import StorePartition
from amqpstore_tools.spark.reading.reader import PushedReader, StoreReader
from amqpstore_tools.spark.reading.schemas import spark_schema

Row = dict[str, Any]


def read(directory: str, *filters: Filter, **options: str) -> list[Row]:
    """All rows of a view, in the order of the partitions."""
    chosen = ReadOptions.of({"path": directory, **options})
    reader = PushedReader(chosen, spark_schema(chosen.view, chosen.columns))
    assert list(reader.pushFilters(list(filters))) == list(filters), "Spark has to look again"
    partitions = held(reader)
    try:
        return [
            row
            for partition in partitions
            for batch in reader.read(partition)
            for row in batch.to_pylist()
        ]
    finally:
        let_go(partitions)


def files_read(directory: str, *filters: Filter, **options: str) -> list[int]:
    """Numbers of the segments that would be read."""
    chosen = ReadOptions.of({"path": directory, **options})
    reader = PushedReader(chosen, spark_schema(chosen.view, chosen.columns))
    reader.pushFilters(list(filters))
    partitions = held(reader)
    let_go(partitions)
    return [segment.number for partition in partitions for segment in partition.segments]


def held(reader: StoreReader) -> list[StorePartition]:
    return [one for one in reader.partitions() if isinstance(one, StorePartition)]


def let_go(partitions: list[StorePartition]) -> None:
    for path in {one.lease for one in partitions if one.lease}:
        release(path)
