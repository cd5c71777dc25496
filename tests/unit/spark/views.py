"""Views of a store read without a Spark session, by what its tasks would do."""

from typing import Any

from pyspark.sql.datasource import Filter

from tools.spark.options import ReadOptions
from tools.spark.reader import StoreReader
from tools.spark.schemas import spark_schema

Row = dict[str, Any]


def read(directory: str, *filters: Filter, **options: str) -> list[Row]:
    """All rows of a view, in the order of the partitions."""
    chosen = ReadOptions.of({"path": directory, **options})
    reader = StoreReader(chosen, spark_schema(chosen.view, chosen.columns))
    assert list(reader.pushFilters(list(filters))) == list(filters), "Spark has to look again"
    return [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def files_read(directory: str, *filters: Filter, **options: str) -> list[int]:
    """Numbers of the segments that would be read."""
    chosen = ReadOptions.of({"path": directory, **options})
    reader = StoreReader(chosen, spark_schema(chosen.view, chosen.columns))
    reader.pushFilters(list(filters))
    segments = [one.segments for one in reader.partitions() if hasattr(one, "segments")]
    return [segment.number for some in segments for segment in some]
