"""Field tables, as a client sent them, in the plain values that the broker keeps and compares."""

from __future__ import annotations

from decimal import Decimal
from typing import Any


def plain(table: dict[str, Any]) -> dict[str, Any]:
    """The same table in what the catalog takes: a timestamp is its seconds, a decimal is text."""
    return {key: _plain(value) for key, value in table.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return plain(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return value
