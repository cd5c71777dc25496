"""Field tables from clients: conversion to the plain values that the broker stores and compares,
and the arguments read from them.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from amqpstore_server.broker.channels.gets import MAX_WAIT_MS
from amqpstore_server.broker.rules.settings import CHECKS
from amqpstore_server.protocol.errors import PreconditionFailed
from amqpstore_server.protocol.field_table import Timestamp
from amqpstore_server.protocol.methods import BasicGet

_PLAIN_TYPES = frozenset({str, int, bool, float, bytes, type(None)})
"""The types whose values stay as they are."""


def plain(table: dict[str, Any]) -> dict[str, Any]:
    """Convert a field table to values that the catalog can store: a timestamp becomes its seconds,
    a decimal becomes text.
    """
    return {
        key: value if type(value) in _PLAIN_TYPES else _plain(value) for key, value in table.items()
    }


def queue_arguments(table: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a queue as plain values. Raises: PreconditionFailed.

    A timestamp is refused where an argument has a meaning: as a plain value it would pass as a
    number.
    """
    for name, value in table.items():
        if name in CHECKS and isinstance(value, Timestamp):
            raise PreconditionFailed(f"invalid arg '{name}' for a queue: it is a timestamp")
    return plain(table)


def wait_ms(method: BasicGet) -> int:
    """Return how many ms a get waits for a message; 0 if it does not wait. Raises:
    PreconditionFailed.
    """
    wait = method.arguments.get("x-wait", 0)
    if isinstance(wait, bool) or not isinstance(wait, int) or not 0 <= wait <= MAX_WAIT_MS:
        raise PreconditionFailed(
            f"invalid arg 'x-wait' for a get: {wait!r} is not a number of ms from 0 to "
            f"{MAX_WAIT_MS}"
        )
    return wait


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return plain(value)
    if isinstance(value, list):
        return [item if type(item) in _PLAIN_TYPES else _plain(item) for item in value]
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return value
