"""The log of a whole broker: whom a line is about, and that no secret is in it."""

import base64
import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import AMQPError, ChannelClosedByBroker, ProbableAuthenticationError

from tests.broker_process import BrokerProcess
from tests.conformance import wire_client as wire
from tests.conformance.wire_client import WireClient
from tests.waiting import wait_until

PASSWORD, WRONG, AMQPLAIN, MALFORMED, SECRET = (
    f"{name}-7Kq9xW2v" for name in ("right", "wrong", "amqplain", "malformed", "renewed")
)
FORGED = 'eve\nlevel=info event="login" user=admin\x1b[2J\u202e'


def definitions(**more: Any) -> str:
    user = {"name": "anna", "password": PASSWORD, "tags": [], **more}
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    permissions = [{"user": "anna", "vhost": "/", **everything}]
    return json.dumps({"users": [user], "vhosts": [{"name": "/"}], "permissions": permissions})


@pytest.fixture(params=["text", "json"])
def broker(request: pytest.FixtureRequest, stopped_broker: BrokerProcess, tmp_path: Path) -> Any:
    """A broker that logs everything it can."""
    file = tmp_path / "definitions.json"
    file.write_text(definitions())
    stopped_broker.environment |= {
        "AMQPSTORE_DEFINITIONS": str(file),
        "AMQPSTORE_LOG_FORMAT": request.param,
        "AMQPSTORE_LOG_LEVEL": "debug",
    }
    with stopped_broker as broker:
        broker.start()
        yield broker


def connect(broker: BrokerProcess, user: str, password: str) -> pika.BlockingConnection:
    credentials = pika.PlainCredentials(user, password)
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", broker.port, "/", credentials)
    )


def send_login(broker: BrokerProcess, mechanism: str, response: bytes) -> None:
    """Log in with these bytes, which are wrong."""
    with WireClient.greeted(broker.url) as client:
        client.send(wire.start_ok(mechanism, response))
        client.read_to_reset()


def session(broker: BrokerProcess, definitions_file: Path) -> None:
    """Do all that has to do with secrets, right and wrong."""
    with connect(broker, "anna", PASSWORD) as connection:
        connection.channel().queue_declare("q", durable=True)
        connection.update_secret(SECRET, "renewed")
        with pytest.raises(ChannelClosedByBroker):
            connection.channel().queue_declare("none", passive=True)
    for user in ("anna", "nobody", FORGED):
        with pytest.raises(ProbableAuthenticationError):
            connect(broker, user, WRONG)
    login = wire.field("LOGIN", b"S", wire.long_string("anna"))
    send_login(broker, "AMQPLAIN", login + wire.field("PASSWORD", b"S", wire.long_string(AMQPLAIN)))
    for mechanism in ("PLAIN", "AMQPLAIN", "EXTERNAL", "OTHER"):
        send_login(broker, mechanism, f"\0anna\0{MALFORMED}\0{MALFORMED}".encode())
    # A response of which only a part arrives, and one that is a password as user name too.
    with WireClient.greeted(broker.url) as client:
        client.send(wire.start_ok("PLAIN", f"\0anna\0{MALFORMED}".encode())[:-10])
        client.abort()
    for wrong in (
        definitions(password=5),
        definitions(password_hash=SECRET),
        definitions(tags=7),
        definitions()[:-4],
    ):
        before = refused(broker)
        definitions_file.write_text(wrong)
        os.kill(broker.pid, signal.SIGHUP)
        wait_until(lambda: refused(broker) > before)  # noqa: B023


def refused(broker: BrokerProcess) -> int:
    """Return how often definitions were refused, in part or as a whole."""
    return broker.stderr.count("definition left out") + broker.stderr.count("not loaded")


def forms(secret: str) -> list[str]:
    """The secret, and what it looks like where bytes are shown in other ways."""
    octets = secret.encode()
    # Without the ends, which depend on what is around it.
    encoded = [base64.b64encode(bytes(at) + octets).decode()[6:-6] for at in range(3)]
    return [secret, octets.hex(), secret[:12], *encoded]


def test_no_secret_is_in_the_log(broker: BrokerProcess, tmp_path: Path) -> None:
    session(broker, tmp_path / "definitions.json")
    assert broker.terminate() == 0
    log = broker.stderr
    assert log.count("login refused") >= 2
    for secret in (PASSWORD, WRONG, AMQPLAIN, MALFORMED, SECRET):
        for form in forms(secret):
            assert form not in log
    for line in log.splitlines():
        assert line.isprintable(), line


def test_lines_about_a_client_have_connection_user_and_vhost(broker: BrokerProcess) -> None:
    before = len(broker.stderr)
    with connect(broker, "anna", PASSWORD) as connection, pytest.raises(ChannelClosedByBroker):
        connection.channel().queue_declare("none", passive=True)
    wait_until(lambda: "connection closed" in broker.stderr[before:])
    with suppress(AMQPError):
        connect(broker, FORGED, WRONG)
    wait_until(lambda: "login refused" in broker.stderr[before:])
    lines = broker.stderr[before:].splitlines()
    fields = _from_json if broker.environment["AMQPSTORE_LOG_FORMAT"] == "json" else _from_text
    (error,) = [line for line in lines if "channel error" in line]
    (closed,) = [line for line in lines if "connection closed" in line and "anna" in line]
    for line in (error, closed):
        logged = fields(line)
        assert (logged["user"], logged["vhost"]) == ("anna", "/")
        assert logged["peer"].startswith("127.0.0.1:")
    assert fields(error)["connection"] == fields(closed)["connection"]
    (refused,) = [line for line in lines if "login refused" in line]
    assert "\x1b" not in refused
    assert not [line for line in lines if line.startswith("level=info")]
    if fields is _from_json:
        assert json.loads(refused)["user"] == FORGED


def _from_json(line: str) -> dict[str, str]:
    return {name: str(value) for name, value in json.loads(line).items()}


def _from_text(line: str) -> dict[str, str]:
    # Those that are looked for are not quoted.
    return dict(part.split("=", 1) for part in line.split(" ") if "=" in part)
