"""The format `amqpstore` as Spark sees it."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from tools.spark.options import ReadOptions, columns_of
from tools.spark.reader import StoreReader
from tools.spark.schemas import spark_schema


class AmqpstoreSource(DataSource):
    """`spark.read.format("amqpstore")` and the like. README.md lists the options."""

    @classmethod
    def name(cls) -> str:
        return "amqpstore"

    def schema(self) -> StructType:
        view = self.options.get("view", "messages")
        return spark_schema(view, columns_of(self.options, view))

    def reader(self, schema: StructType) -> DataSourceReader:
        return StoreReader(ReadOptions.of(self.options), schema)
