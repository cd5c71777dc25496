"""The columns of each view. README.md explains them; a test compares its tables with these."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "bigint": LongType(),
    "int": IntegerType(),
    "boolean": BooleanType(),
    "binary": BinaryType(),
    "timestamp": TimestampType(),
    "map<string,string>": MapType(StringType(), StringType()),
}

PROPERTIES = (
    ("content_type", "string"),
    ("content_encoding", "string"),
    ("headers", "map<string,string>"),
    ("delivery_mode", "int"),
    ("priority", "int"),
    ("correlation_id", "string"),
    ("reply_to", "string"),
    ("expiration", "string"),
    ("message_id", "string"),
    ("timestamp", "timestamp"),
    ("type", "string"),
    ("user_id", "string"),
    ("app_id", "string"),
    ("cluster_id", "string"),
)
"""The properties of class basic, in their order on the wire."""

ENVELOPE = (
    ("exchange", "string"),
    ("routing_key", "string"),
    *PROPERTIES,
    ("properties", "binary"),
)

_OPERATION = (
    ("lsn", "bigint"),
    ("time", "timestamp"),
    ("segment", "bigint"),
    ("offset", "bigint"),
    ("operation", "string"),
    ("vhost", "string"),
    ("queue", "string"),
    ("queue_id", "bigint"),
    ("first_position", "bigint"),
    ("count", "bigint"),
    ("first_id", "bigint"),
    ("level", "int"),
    ("expires", "timestamp"),
    ("delivery_count", "int"),
)

VIEWS: dict[str, Sequence[tuple[str, str]]] = {
    "messages": (
        ("id", "bigint"),
        ("vhost", "string"),
        ("queue", "string"),
        ("queue_id", "bigint"),
        ("position", "bigint"),
        ("state", "string"),
        ("delivery_count", "int"),
        ("refcount", "int"),
        ("expires", "timestamp"),
        *ENVELOPE,
        ("body", "binary"),
        ("body_bytes", "bigint"),
        ("segment", "bigint"),
        ("offset", "bigint"),
        ("lsn", "bigint"),
        ("checksum_ok", "boolean"),
        ("publish_time", "timestamp"),
    ),
    "transactions": (*_OPERATION, ("batch_messages", "bigint")),
    "queues": (
        ("vhost", "string"),
        ("queue", "string"),
        ("queue_id", "bigint"),
        ("level", "int"),
        ("ready", "bigint"),
        ("unacked", "bigint"),
        ("locked", "bigint"),
        ("lost", "bigint"),
        ("bytes", "bigint"),
        ("next_position", "bigint"),
        ("is_prepared", "boolean"),
    ),
    "segments": (
        ("segment", "bigint"),
        ("path", "string"),
        ("state", "string"),
        ("bytes", "bigint"),
        ("sound_bytes", "bigint"),
        ("live_bytes", "bigint"),
        ("garbage_bytes", "bigint"),
        ("first_id", "bigint"),
        ("end_id", "bigint"),
        ("created", "timestamp"),
    ),
    "findings": (
        ("code", "string"),
        ("severity", "string"),
        ("file", "string"),
        ("offset", "bigint"),
        ("text", "string"),
        ("queue", "string"),
        ("queue_id", "bigint"),
        ("position", "bigint"),
        ("message_id", "bigint"),
        ("messages", "bigint"),
    ),
    "tap": (
        ("lsn", "bigint"),
        ("time", "timestamp"),
        ("event", "string"),
        ("vhost", "string"),
        ("queue", "string"),
        ("queue_id", "bigint"),
        ("position", "bigint"),
        ("id", "bigint"),
        ("delivery_count", "int"),
        ("is_dead_letter", "boolean"),
        *ENVELOPE,
        ("body", "binary"),
    ),
    "consume": (
        ("queue", "string"),
        ("delivery_tag", "bigint"),
        ("redelivered", "boolean"),
        *ENVELOPE,
        ("body", "binary"),
    ),
}
"""Names and Spark SQL types of columns, by view."""


def spark_schema(view: str, columns: Sequence[str] | None = None) -> StructType:
    """Return the schema of a view, or of some of its columns in the view's order.

    Raises: ValueError, if there is no such column.
    """
    known = VIEWS[view]
    if columns is not None and (strange := {*columns} - {name for name, _ in known}):
        names = ", ".join(name for name, _ in known)
        raise ValueError(f"view {view} has no column {min(strange)!r}; it has {names}")
    wanted = known if columns is None else [one for one in known if one[0] in columns]
    return StructType([StructField(name, _TYPES[kind]) for name, kind in wanted])


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects for these columns."""
    return to_arrow_schema(schema, timezone="UTC")
