"""Users of a new broker: none works from another machine unless an operator has set it so."""

import logging

import pytest

from amqpstore_server.administration.first_users import (
    ADMINISTRATOR,
    define_administrator,
    define_first,
    is_loopback,
)
from amqpstore_server.logins.users import Users
from amqpstore_tools.verbs import serve
from tests.simulated_broker import SimulatedBroker


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fd00::2", False),
    ],
)
def test_what_is_this_machine(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_a_broker_beyond_loopback_gets_an_administrator_once(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    simulated = SimulatedBroker()
    users = Users(simulated.store)
    define_first(simulated.broker, users)
    assert define_administrator(simulated.broker, users, ["127.0.0.1", "::1"]) == ""
    password = define_administrator(simulated.broker, users, ["127.0.0.1", "0.0.0.0"])
    assert len(password) == 24
    assert users.check(ADMINISTRATOR, password.encode())
    assert not users.check(ADMINISTRATOR, b"guest")
    assert users.may(ADMINISTRATOR, "management")
    simulated.broker.access(ADMINISTRATOR, "/").check("configure", "queue", "q")
    users.upgrade(ADMINISTRATOR)
    assert define_administrator(simulated.broker, users, ["0.0.0.0"]) == ""
    # The next start knows it, and adds no user.
    simulated.restart()
    users = Users(simulated.store)
    define_first(simulated.broker, users)
    assert users.check(ADMINISTRATOR, password.encode())
    assert define_administrator(simulated.broker, users, ["0.0.0.0"]) == ""
    serve._print_ready(["amqp://[::]:5672"], "data", password)
    assert capsys.readouterr().out.count(password) == 1
    assert password not in caplog.text


def test_a_password_that_nobody_has_used_is_made_anew_at_each_start() -> None:
    simulated = SimulatedBroker()
    before = ""
    for _ in range(2):
        users = Users(simulated.store)
        define_first(simulated.broker, users)
        password = define_administrator(simulated.broker, users, ["0.0.0.0"])
        assert password
        assert not users.check(ADMINISTRATOR, before.encode() or b"wrong")
        assert not users.check(ADMINISTRATOR, b"")
        before = password
        simulated.restart()
    # Not while only loopback can be reached, where guest may log in.
    users = Users(simulated.store)
    assert define_administrator(simulated.broker, users, ["127.0.0.1"]) == ""
    users.define(ADMINISTRATOR, {**users.hashed(b"of an operator"), "tags": ["administrator"]})
    assert define_administrator(simulated.broker, users, ["0.0.0.0"]) == ""


def test_the_first_user_can_be_named(caplog: pytest.LogCaptureFixture) -> None:
    simulated = SimulatedBroker()
    users = Users(simulated.store)
    define_first(simulated.broker, users, "anna", "secret")
    assert users.names == ["anna"]
    assert users.check("anna", b"secret")
    assert users.may("anna", "administrator")
    simulated.broker.access("anna", "/").check("configure", "queue", "q")
    assert define_administrator(simulated.broker, users, ["0.0.0.0"]) == ""
    assert not caplog.records
    # A store that has users gets none, and the log says so.
    define_first(simulated.broker, users, "anna", "another")
    assert not caplog.records
    define_first(simulated.broker, users, "bert", "another")
    assert users.names == ["anna"]
    assert "default_user not added" in caplog.text


def test_a_broker_with_users_of_its_own_gets_none() -> None:
    simulated = SimulatedBroker()
    users = Users(simulated.store)
    users.define("anna", users.imported(b"", "rabbit_password_hashing_sha256"))
    define_first(simulated.broker, users)
    assert define_administrator(simulated.broker, users, ["0.0.0.0"]) == ""
    assert users.names == ["anna"]


def test_an_administrator_may_what_the_lesser_tags_may() -> None:
    users = Users(SimulatedBroker().store)
    implied = {
        "administrator": {"administrator", "monitoring", "policymaker", "management"},
        "monitoring": {"monitoring", "management"},
        "policymaker": {"policymaker", "management"},
        "management": {"management"},
        "impersonator": {"impersonator"},
        "something": {"something"},
    }
    for tag in implied:
        users.define(tag, {**users.imported(b"", ""), "tags": [tag]})
    for user, may in implied.items():
        assert {tag for tag in implied if users.may(user, tag)} == may
    assert not users.may("nobody", "management")
