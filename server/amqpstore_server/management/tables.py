"""Arguments and headers as JSON: field tables have types that JSON does not have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from decimal import Decimal
from typing import Any

from amqpstore_server.protocol.content import decode_properties


def shown_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of arguments or headers with values that JSON has."""
    return {key: shown_value(value) for key, value in table.items()}


def shown_value(value: Any) -> Any:
    """Return a value of a table; bytes as text, with what is not UTF-8 replaced."""
    if isinstance(value, Mapping):
        return shown_table(value)
    if isinstance(value, list | tuple):
        return [shown_value(item) for item in value]
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, Decimal):
        return float(value)
    return value


def shown_properties(raw: bytes) -> dict[str, Any]:
    """Return the properties of a message, of which only those that it has."""
    properties = decode_properties(raw)
    found = {field.name: getattr(properties, field.name) for field in fields(properties)}
    return {name: shown_value(value) for name, value in found.items() if value is not None}
