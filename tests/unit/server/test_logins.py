"""Tests of the mechanisms that clients are offered, and of warnings of passwords without TLS."""

from functools import partial
from typing import Any

import pytest
import trio

from amqpstore_server.administration.first_users import define_first
from amqpstore_server.clients.client_log import ClientLog
from amqpstore_server.clients.login import EXTERNAL, Login
from amqpstore_server.config.config import Config
from amqpstore_server.logins.logins import Logins
from amqpstore_server.logins.users import Users
from tests.simulated_broker import SimulatedBroker

PLAIN = Login("anna", b"secret", "PLAIN")


def logins(**settings: Any) -> Logins:
    return Logins(Config(**settings), Users(SimulatedBroker().store))


@pytest.mark.parametrize("has_tls", [False, True])
@pytest.mark.parametrize("is_loopback", [False, True])
@pytest.mark.parametrize("rule", ["warn", "refuse", "allow"])
def test_password_mechanisms_can_need_tls(has_tls: bool, is_loopback: bool, rule: str) -> None:
    offered, user = logins(plain_without_tls=rule).offered(
        ClientLog("192.0.2.1:1"), has_tls=has_tls, is_loopback=is_loopback, certificate=None
    )
    is_refused = rule == "refuse" and not (has_tls or is_loopback)
    assert offered == (() if is_refused else ("PLAIN", "AMQPLAIN"))
    assert not user


@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN", EXTERNAL])
def test_guest_logs_in_from_this_machine_only(mechanism: str) -> None:
    """CVE-2026-57216: the client's address counts, whatever address the broker listens on."""
    simulated = SimulatedBroker()
    users = Users(simulated.store)
    define_first(simulated.broker, users)
    own = Logins(Config(), users)
    login = Login("guest", b"guest", mechanism)
    granted = {
        is_loopback: trio.run(
            partial(own.check, login, "192.0.2.1", is_loopback=is_loopback)
        ).granted
        for is_loopback in (True, False)
    }
    assert granted == {True: True, False: False}


def test_mechanisms_are_those_of_the_configuration() -> None:
    own = logins(mechanisms=["AMQPLAIN"])
    assert own.offered(ClientLog("192.0.2.1:1"), has_tls=True, is_loopback=True, certificate=None)[
        0
    ] == ("AMQPLAIN",)
    own.change(Config(mechanisms=["PLAIN"]), None)
    assert own.offered(ClientLog("192.0.2.1:1"), has_tls=True, is_loopback=True, certificate=None)[
        0
    ] == ("PLAIN",)


def test_each_peer_is_warned_of_once_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    own = logins()
    for now in (0.0, 10.0, 3599.0):
        own.warn({"peer": "192.0.2.1:5"}, PLAIN, now)
    own.warn({"peer": "192.0.2.2:5"}, PLAIN, 20.0)
    assert len(caplog.records) == 2
    own.warn({"peer": "192.0.2.1:6"}, PLAIN, 3600.0)
    assert len(caplog.records) == 3
    assert "secret" not in caplog.text


def test_what_is_remembered_of_peers_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    own = logins()
    for number in range(5000):
        own.warn({"peer": f"192.0.2.{number}:5"}, PLAIN, 0.0)
    assert len(own._warned) <= 1000


@pytest.mark.parametrize(
    ("rule", "login"), [("allow", PLAIN), ("refuse", PLAIN), ("warn", Login("a", b"", "EXTERNAL"))]
)
def test_nothing_is_said_where_no_password_may_come(
    rule: str, login: Login, caplog: pytest.LogCaptureFixture
) -> None:
    logins(plain_without_tls=rule).warn({"peer": "192.0.2.1:5"}, login, 0.0)
    assert not caplog.records
