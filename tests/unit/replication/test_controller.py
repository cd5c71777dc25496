"""The threads around a member's state machine."""

from __future__ import annotations

import threading
from typing import Any
from unittest.mock import Mock

import pytest

from amqpstore_server.cluster.effects import Effect, Revoke
from amqpstore_server.cluster.keys import MemberIdentity
from amqpstore_server.cluster.notes import Notes
from amqpstore_server.cluster.timing import Timing
from amqpstore_server.replication import controller
from amqpstore_server.replication.controller import Controller

LEASE = 7
SOON_S = 0.1


class QuickEtcd:
    """A driver of an etcd that answers before its constructor has returned."""

    def __init__(self, _client: object, answers: Any, *_others: object) -> None:
        self.asked: list[Effect] = []
        self.answer = threading.Thread(target=answers.granted, args=(LEASE,))
        self.answer.start()
        self.answer.join(SOON_S)

    def carry_out(self, effect: Effect) -> None:
        self.asked.append(effect)


def test_etcd_may_answer_while_a_member_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "EtcdDriver", QuickEtcd)
    for name in ("DiskLane", "MemberListener", "MemberDialer", "Lane"):
        monkeypatch.setattr(controller, name, Mock())
    settings, file = Mock(timing=Timing()), Mock(notes=Notes())
    identity = MemberIdentity("b", "b1", "store", 1)
    starting = Controller(settings, Mock(), identity, Mock(term=0), Mock(), Mock(), file)
    etcd: Any = starting._etcd
    etcd.answer.join()
    assert etcd.asked == [Revoke(LEASE)]
    assert starting.orders.failure is None


def test_a_stop_waits_for_etcd_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The resignation is to be known there, if etcd answers."""
    monkeypatch.setattr(controller, "EtcdDriver", QuickEtcd)
    monkeypatch.setattr(QuickEtcd, "close", lambda _etcd: None, raising=False)
    monkeypatch.setattr(controller, "_RESIGNED_S", 0.05)
    for name in ("DiskLane", "MemberListener", "MemberDialer", "Lane"):
        monkeypatch.setattr(controller, name, Mock())
    settings, file = Mock(timing=Timing()), Mock(notes=Notes())
    identity = MemberIdentity("b", "b1", "store", 1)
    ending = Controller(settings, Mock(), identity, Mock(term=0), Mock(), Mock(), file)
    ending._ticks = Mock()
    ending._attempts.add("is never answered")
    ending.close()
    assert ending._attempts
    file.write.assert_called_once_with(ending.member.notes)
