"""A group is founded where etcd has no keys of one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from amqpstore.replica import Membership
from amqpstore_server.cluster.keys import (
    GROUP,
    IN_SYNC,
    EtcdRow,
    EtcdTransaction,
    View,
    alive_key,
)
from amqpstore_tools.cluster.directory import MemberStore
from amqpstore_tools.cluster.founding import _put_keys
from amqpstore_tools.offline.exits import ToolError

MEMBER = Membership("0123456789abcdef", 1, "group")
STORE = MemberStore("store", 3, 0)


def founded(*there: str) -> EtcdTransaction:
    """Return the transaction that founds a group where etcd has some keys already."""
    view = View(1, 9, {key: EtcdRow({"role": "following"}, 5) for key in there})
    made: list[EtcdTransaction] = []
    group: Any = SimpleNamespace(
        where="/amqpstore/shop/main/",
        settings=SimpleNamespace(advertise="a:5673", amqp="a:5672"),
        change=lambda make: made.append(make(view, "request")),
    )
    _put_keys(group, MEMBER, STORE)
    return made[0]


def test_a_member_that_shows_that_it_runs_is_no_group() -> None:
    """A live key shows a member that stopped a moment ago, or is restarted again and again."""
    puts = [one.key for one in founded(alive_key("fedcba9876543210"), alive_key("x")).puts]
    assert {GROUP, IN_SYNC} <= {*puts}


def test_other_keys_are_named() -> None:
    with pytest.raises(ToolError, match=r"already: group, in_sync$"):
        founded(alive_key("x"), IN_SYNC, GROUP)
