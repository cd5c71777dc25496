"""Arguments and headers as JSON: field tables have types that JSON does not have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from decimal import Decimal
from typing import Any

from amqpstore_server.protocol.content import decode_properties


def shown_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of arguments or headers with values that JSON has."""
    shown: dict[str, Any] = shown_value(table)
    return shown


def shown_value(value: Any) -> Any:
    """Return a value of a table; bytes as text, with what is not UTF-8 replaced."""
    found = [value]
    waiting: list[tuple[Any, Any]] = [(found, 0)]
    while waiting:
        place, key = waiting.pop()
        one = place[key]
        if isinstance(one, Mapping):
            place[key] = copy = dict(one)
            waiting += [(copy, name) for name in copy]
        elif isinstance(one, list | tuple):
            place[key] = items = list(one)
            waiting += [(items, index) for index in range(len(items))]
        elif isinstance(one, bytes | bytearray):
            place[key] = bytes(one).decode("utf-8", "replace")
        elif isinstance(one, Decimal):
            place[key] = float(one)
    return found[0]


def shown_properties(raw: bytes) -> dict[str, Any]:
    """Return the properties of a message, of which only those that it has."""
    properties = decode_properties(raw)
    found = {field.name: getattr(properties, field.name) for field in fields(properties)}
    return {name: shown_value(value) for name, value in found.items() if value is not None}
