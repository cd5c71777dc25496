"""The format `amqpstore` as Spark sees it."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from amqpstore_tools.spark.reading.options import (
    MODES,
    ConsumeOptions,
    PublishOptions,
    ReadOptions,
    TapOptions,
    choice,
    columns_of,
)
from amqpstore_tools.spark.reading.reader import PushedReader, StoreReader
from amqpstore_tools.spark.reading.schemas import VIEWS, spark_schema


class AmqpstoreSource(DataSource):
    """`spark.read.format("amqpstore")` and the like. README.md lists the options."""

    @classmethod
    def name(cls) -> str:
        return "amqpstore"

    def schema(self) -> StructType:
        view = self.options.get("mode") or self.options.get("view", "messages")
        view = choice({"view": view}, "view", view, list(VIEWS))
        return spark_schema(view, columns_of(self.options, view))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = ReadOptions.of(self.options)
        return (PushedReader if options.pushdown else StoreReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        mode = choice(self.options, "mode", "", MODES)
        # Imported here, so that reading a store needs no client of the broker.
        if mode == "consume":
            from amqpstore_tools.spark.streams.consume import ConsumeReader

            return ConsumeReader(ConsumeOptions.of(self.options), schema)
        from amqpstore_tools.spark.streams.tap import TapReader

        return TapReader(TapOptions.of(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002
        from amqpstore_tools.spark.streams.publish import PublishWriter, check_columns

        options = PublishOptions.of(self.options, is_stream=False)
        check_columns(schema, options)
        return PublishWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, N802
        from amqpstore_tools.spark.streams.publish import PublishStreamWriter, check_columns

        options = PublishOptions.of(self.options, is_stream=True)
        check_columns(schema, options)
        return PublishStreamWriter(options)
