"""Checks of the values that the keys of a group must hold, whoever has put them there.

An operator with etcdctl may put anything. A member that reads it must be told which key is wrong,
and not fail where it needs a field that is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from amqpstore_server.cluster.keys import (
    FLOOR,
    FORCED,
    GROUP,
    HANDOVER,
    IN_SYNC,
    LEADER,
    SECRET,
    STATE,
    generation_key,
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


class _Floor(msgspec.Struct):
    term: int
    number: int


class _Forced(msgspec.Struct):
    term: int


class _Generation(msgspec.Struct):
    number: int
    incarnation: str
    proven: bool


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
    FLOOR: _Floor,
    FORCED: _Forced,
    HANDOVER: _Handover,
    SECRET: _Secret,
}
_MEMBERS = member_key("")
_GENERATIONS = generation_key("")


def check_value(key: str, value: Mapping[str, Any]) -> None:
    """Look whether a value has what is read of it. Raises: msgspec.ValidationError."""
    shape = _SHAPES.get(key)
    if key.startswith(_MEMBERS):
        shape = _Member
    elif key.startswith(_GENERATIONS):
        shape = _Generation
    if shape is not None:
        msgspec.convert(value, shape)
