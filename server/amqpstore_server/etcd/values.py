"""What the keys of a group must hold, whoever has put it there.

An operator with etcdctl may put anything. A member that reads it must be told which key is wrong,
and not fail where it needs a field that is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from amqpstore_server.cluster.keys import (
    GROUP,
    HANDOVER,
    IN_SYNC,
    LEADER,
    SECRET,
    STATE,
    member_key,
)


class _Group(msgspec.Struct):
    min_in_sync: int
    protocol: int


class _Member(msgspec.Struct):
    sync: bool


class _State(msgspec.Struct):
    term: int
    leader: str


class _Leader(msgspec.Struct):
    member: str
    incarnation: str
    term: int
    replicate: str
    request: str


class _InSync(msgspec.Struct):
    members: list[str]


class _Handover(msgspec.Struct):
    to: str
    term: int


class _Secret(msgspec.Struct):
    secret: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{2}){32}$")]


_SHAPES: Mapping[str, type[msgspec.Struct]] = {
    GROUP: _Group,
    STATE: _State,
    LEADER: _Leader,
    IN_SYNC: _InSync,
    HANDOVER: _Handover,
    SECRET: _Secret,
}
_MEMBERS = member_key("")


def check_value(key: str, value: Mapping[str, Any]) -> None:
    """Look whether a value has what is read of it. Raises: msgspec.ValidationError."""
    shape = _Member if key.startswith(_MEMBERS) else _SHAPES.get(key)
    if shape is not None:
        msgspec.convert(value, shape)
