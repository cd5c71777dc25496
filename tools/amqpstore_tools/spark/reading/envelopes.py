"""Heads of messages as columns: exchange, routing key, and every property with its type. Rows as
Arrow batches.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa

from amqpstore.format.message import HEAD
from amqpstore_tools.offline.contents import properties_of
from amqpstore_tools.spark.reading.schemas import PROPERTIES

_LARGEST_S = (1 << 63) // 1_000_000 - 1
"""The largest time in Spark's timestamps, which count microseconds."""

_ROWS = 16_384

Envelope = dict[str, Any]


class Decoded(NamedTuple):
    """A head by names of columns, and why its properties cannot be read, if so."""

    columns: Envelope
    reason: str | None


def decode_head(head: bytes) -> Decoded:
    """Decode the head of a MESSAGE's payload, whose lengths are consistent."""
    exchange_size, routing_key_size, _ = HEAD.unpack_from(head)
    exchange_end = HEAD.size + exchange_size
    properties_at = exchange_end + routing_key_size
    raw = head[properties_at:]
    columns: Envelope = {
        "exchange": head[HEAD.size : exchange_end].decode("utf-8", "replace"),
        "routing_key": head[exchange_end:properties_at].decode("utf-8", "replace"),
        "properties": raw,
    }
    try:
        properties = properties_of(raw)
    except ValueError as error:
        return Decoded(columns, str(error))
    if "headers" in properties:
        properties["headers"] = {
            key: text_of(value) for key, value in properties["headers"].items()
        }
    seconds = properties.pop("timestamp", None)
    if seconds is not None and seconds <= _LARGEST_S:
        properties["timestamp"] = seconds * 1_000_000
    return Decoded(columns | properties, None)


def text_of(value: Any) -> str | None:
    """Return the value of a header as text: text unchanged, everything else as JSON."""
    return value if isinstance(value, str) or value is None else json.dumps(value)


class EnvelopeColumns:
    """Columns of heads that repeat often.

    Each head is decoded once, and its values are then selected by number.
    Args: schema, of the batch.
    """

    def __init__(self, schema: pa.Schema) -> None:
        names = {name for name, _ in PROPERTIES} | {"exchange", "routing_key", "properties"}
        self._fields = [field for field in schema if field.name in names]
        self._cache: dict[bytes, Envelope] = {}

    def columns(self, head_at: Callable[[int], bytes], numbers: list[int]) -> dict[str, pa.Array]:
        """Return the columns. Args: numbers, of the head of each row, -1 if there is none."""
        if not self._fields:
            return {}
        distinct = dict.fromkeys(numbers)
        rows = []
        for index, number in enumerate(distinct):
            distinct[number] = index
            rows.append({} if number < 0 else self._decoded(head_at(number)))
        indexes = pa.array(map(distinct.__getitem__, numbers), pa.int32(), size=len(numbers))
        found = {}
        for field in self._fields:
            values = [row.get(field.name) for row in rows]
            found[field.name] = array_of(values, field.type).take(indexes)
        return found

    def _decoded(self, head: bytes) -> Envelope:
        found = self._cache.get(head)
        if found is None:
            if len(self._cache) >= 4096:
                self._cache.clear()
            found = self._cache[head] = decode_head(head).columns
        return found


def array_of(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return values as an array; a map is given as a dict."""
    if pa.types.is_map(kind):
        values = [None if value is None else list(value.items()) for value in values]
    return pa.array(values, kind)


def batches_of(
    rows: Iterable[tuple[Any, ...]], names: list[str], schema: pa.Schema, *, most: int = _ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield batches. Args: names, of the values in a row; schema, the requested columns; most, the
    rows of a batch.
    """
    indexes = [names.index(field.name) for field in schema]
    rows = iter(rows)
    while some := list(islice(rows, most)):
        columns = list(zip(*some, strict=True))
        arrays = [
            array_of(list(columns[index]), field.type)
            for index, field in zip(indexes, schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
