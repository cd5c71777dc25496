"""Arguments, headers and properties as JSON: field tables have types that JSON does not have."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import fields
from decimal import Decimal
from typing import Any

from amqpstore_server.protocol.content import BasicProperties, decode_properties

_NOT_TEXT = "Not UTF-8, base64 is: "
"""The prefix that RabbitMQ puts before bytes that are not text."""
_LINE = 76


def shown_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of arguments or headers with values that JSON has."""
    shown: dict[str, Any] = shown_value(table)
    return shown


def shown_value(value: Any) -> Any:
    """Return a value of a table as JSON has it: a time in seconds, bytes as text, and those that
    are not text as RabbitMQ writes them.
    """
    # A table in a table may be as deep as its bytes allow.
    found = [value]
    waiting: list[tuple[Any, Any]] = [(found, 0)]
    while waiting:
        container, key = waiting.pop()
        one = container[key]
        if isinstance(one, Mapping):
            container[key] = copy = dict(one)
            waiting += [(copy, name) for name in copy]
        elif isinstance(one, list | tuple):
            container[key] = items = list(one)
            waiting += [(items, index) for index in range(len(items))]
        else:
            container[key] = _shown_one(one)
    return found[0]


def _shown_one(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return _shown_bytes(bytes(value))
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return value


def _shown_bytes(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        encoded = base64.b64encode(value).decode()
        lines = [encoded[first : first + _LINE] for first in range(0, len(encoded), _LINE)]
        return _NOT_TEXT + "\n".join(lines)


def shown_properties(raw: bytes) -> dict[str, Any]:
    """Return the properties of a message, of which only those that it has."""
    properties = decode_properties(raw)
    found = {field.name: getattr(properties, field.name) for field in fields(BasicProperties)}
    return {name: shown_value(value) for name, value in found.items() if value is not None}
