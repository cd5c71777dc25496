"""`spark.read.format("amqpstore")`: plans on the driver, and reads in tasks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from amqpstore.errors import StoreError
from amqpstore.system.files import NotAFileError
from amqpstore_tools.offline.read_only_files import ReadOnlyFiles
from amqpstore_tools.spark.reading.envelopes import batches_of
from amqpstore_tools.spark.reading.leases import renew
from amqpstore_tools.spark.reading.live import LiveRuns
from amqpstore_tools.spark.reading.messages import MessageBatches
from amqpstore_tools.spark.reading.operations import operation_rows
from amqpstore_tools.spark.reading.options import ReadOptions
from amqpstore_tools.spark.reading.plan import SegmentTask, StorePartition, partitions
from amqpstore_tools.spark.reading.scanning import ColumnScanner
from amqpstore_tools.spark.reading.schemas import VIEWS, arrow_schema
from amqpstore_tools.spark.reading.wanted import wanted_of


class GoneError(StoreError):
    """Data that a job was to read no longer exists."""

    def __init__(self, path: str, *, was_leased: bool) -> None:
        if was_leased:
            what = (
                "its lease has expired because no task had read from it for a while: "
                'option("lease_idle_s") says how long. Load the store again.'
            )
        else:
            what = "a broker was started on the store since. Load it again."
        super().__init__(f"{path} is gone: {what}")


class StoreReader(DataSourceReader):
    """Reads one view of a store."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._wanted = options.wanted

    def partitions(self) -> Sequence[InputPartition]:
        return partitions(self._options, self._wanted)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, StorePartition):
            # Spark's own: there was nothing to read.
            return
        schema = arrow_schema(self._schema)
        if partition.view == "findings":
            # Imported here, so that other views need no check.
            from amqpstore_tools.spark.reading.findings import finding_rows

            yield from self._table(finding_rows(self._options.path), schema)
        if partition.rows:
            yield from self._table(partition.rows, schema)
        for segment in partition.segments:
            yield from self._segment(partition, segment, schema)

    def _table(
        self, rows: Iterable[tuple[Any, ...]], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        names = [name for name, _ in VIEWS[self._options.view]]
        yield from batches_of(rows, names, schema)

    def _segment(
        self, partition: StorePartition, segment: SegmentTask, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        try:
            if partition.lease:
                renew(partition.lease)
            file = ReadOnlyFiles().open(segment.path)
        except NotAFileError:
            raise
        except FileNotFoundError:
            raise GoneError(segment.path, was_leased=bool(partition.lease)) from None
        wanted = self._wanted
        with contextlib.closing(file):
            scanner = ColumnScanner(
                file,
                segment.number,
                segment.size,
                partition.seed,
                dictionaries=partition.dictionaries,
                want_bodies=self._options.bodies and "body" in self._schema.fieldNames(),
            )
            if partition.view == "messages":
                made = MessageBatches(schema, segment.number, partition.names, wanted)
                yield from made.read(scanner, LiveRuns(segment.live), segment.end_id)
            else:
                rows = (
                    row
                    for batch in scanner.batches()
                    for row in operation_rows(batch, segment.number, partition.names, wanted)
                )
                yield from self._table(rows, schema)


class PushedReader(StoreReader):
    """A reader that also uses a query's filters. Spark refuses it if its own setting is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        time_column = "time" if self._options.view == "transactions" else "publish_time"
        self._wanted = wanted_of(filters, time_column, self._options.wanted)
        return filters
