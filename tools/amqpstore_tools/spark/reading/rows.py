"""Converts tuples to Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

from amqpstore_tools.spark.reading.envelopes import array_of

_ROWS = 16_384


def batches_of(
    rows: Iterable[tuple[Any, ...]], names: list[str], schema: pa.Schema, *, most: int = _ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield batches. Args: names, of the values in a row; schema, the requested columns; most, the
    rows of a batch.
    """
    places = [names.index(field.name) for field in schema]
    rows = iter(rows)
    while some := list(islice(rows, most)):
        columns = list(zip(*some, strict=True))
        arrays = [
            array_of(list(columns[place]), field.type)
            for place, field in zip(places, schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
