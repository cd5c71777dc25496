"""Tests of which clients are logged as soon as they connect."""

from __future__ import annotations

import pytest

from amqpstore_server.broker.monitoring.log_limit import LogLimit
from amqpstore_server.clients.client_log import ClientLog


def connect(limit: LogLimit, *, logs_in: bool) -> None:
    log = ClientLog("192.0.2.7:4000")
    log.accepted(limit, "192.0.2.7", 5.0)
    if logs_in:
        log.logged_in("guest")
    log.info("connection closed")


def test_those_who_log_in_leave_room_for_the_lines_of_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limit = LogLimit()
    with caplog.at_level("INFO"):
        for _ in range(30):
            connect(limit, logs_in=True)
        assert len(caplog.messages) == 60
        for _ in range(25):
            connect(limit, logs_in=False)
    assert len(caplog.messages) == 60 + 40
    with caplog.at_level("INFO"):
        connect(limit, logs_in=True)
    assert caplog.messages[100:] == ["connection closed"]
