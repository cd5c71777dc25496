"""Checks of the catalog rows that the broker wrote: each row is checked before it is used.

A correct checksum says that a row was not changed by accident. A row that was written by a bug, by
another version or by another program must not keep the rest from being served.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from amqpstore import Store

_log = logging.getLogger(__name__)

_MAX_PRIORITY = 1 << 40
"""The priorities of a delayed exchange are times."""

_Name = Annotated[str, msgspec.Meta(max_length=255)]
_QueueName = Annotated[
    str, msgspec.Meta(pattern=r"\A(amq\.(delayed|history|consumed)\.)?[\s\S]{0,255}\Z")
]
"""Older versions wrote longer names than they accepted, for queues of the broker's own: see
`queues.kinds.served_name`.
"""


class _Queue(msgspec.Struct):
    vhost: str
    name: _QueueName
    auto_delete: bool
    arguments: dict[str, Any]
    kind: str = ""


class _PriorityQueue(msgspec.Struct):
    vhost: str
    name: _QueueName
    level: Annotated[int, msgspec.Meta(ge=1, le=_MAX_PRIORITY)]


class _Exchange(msgspec.Struct):
    vhost: str
    name: _Name
    type: str
    auto_delete: bool
    internal: bool
    arguments: dict[str, Any]


class _Binding(msgspec.Struct):
    vhost: str
    exchange: str
    to: Literal["queue", "exchange"]
    name: str
    routing_key: str
    arguments: dict[str, Any]


class _Policy(msgspec.Struct):
    vhost: str
    operator: bool
    name: str
    pattern: str
    apply_to: str
    priority: int
    definition: dict[str, Any]


class _Permission(msgspec.Struct):
    configure: str
    write: str
    read: str
    topic: dict[str, dict[str, str]] = {}


class _User(msgspec.Struct):
    hash: str
    tags: list[str] = []
    imported: bytes = b""
    limits: dict[str, int] = {}


class _ImportedUser(msgspec.Struct):
    algorithm: Literal["rabbit_password_hashing_sha256", "rabbit_password_hashing_sha512"]
    hash: bytes
    tags: list[str] = []
    limits: dict[str, int] = {}


class _VirtualHost(msgspec.Struct):
    limits: dict[str, int] = {}
    metadata: dict[str, Any] = {}


class _GlobalParameter(msgspec.Struct):
    global_parameter: str
    value: Any


class _Branch(msgspec.Struct):
    vhost: str
    user: str
    xid: tuple[Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)], bytes, bytes]


_SHAPES = {
    "exchanges": _Exchange,
    "bindings": _Binding,
    "policies": _Policy,
    "permissions": _Permission,
    "branches": _Branch,
    "vhosts": _VirtualHost,
}


def rows_of(store: Store, table: str) -> Iterator[tuple[str, Any]]:
    """Yield the keys and rows of a table that have the broker's form; others are left out."""
    for key, row in store.definitions.rows(table).items():
        if is_usable(table, key, row):
            yield key, row


def is_usable(table: str, key: str, row: Any) -> bool:
    """Tell whether a row has the form that the broker writes. If not, it is logged, and stays in
    the catalog.
    """
    reason = misshapen(table, row)
    if reason:
        log_unusable(table, key, reason)
    return not reason


def misshapen(table: str, row: Any) -> str:
    """Return why a row, or the label of a branch, does not have the broker's form; empty if it
    has.
    """
    try:
        # Bytes stay bytes here: in a text they would be read as base64.
        msgspec.convert(row, _shape_of(table, row), builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def log_unusable(table: str, key: str, reason: str) -> None:
    """Log that a row of the catalog is not used, and why."""
    _log.error("definition left out", extra={"table": table, "key": key, "reason": reason})


def _shape_of(table: str, row: Any) -> Any:
    is_map = isinstance(row, dict)
    if table == "queues":
        return _PriorityQueue if is_map and "level" in row else _Queue
    if table == "users":
        return _ImportedUser if is_map and "algorithm" in row else _User
    if table == "policies" and is_map and "global_parameter" in row:
        return _GlobalParameter
    return _SHAPES[table]
