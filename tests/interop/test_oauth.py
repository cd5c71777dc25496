"""Tokens of OAuth 2 as passwords: real clients, and an issuer that serves its keys over HTTPS."""

import re
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

import pika
import pika.exceptions
import pytest
import trustme

from tests.broker_process import BrokerProcess
from tests.conformance.wire_client import (
    BASIC_CANCEL,
    BASIC_CONSUME_OK,
    CHANNEL_CLOSE,
    CONNECTION_OPEN_OK,
    CONNECTION_TUNE,
    CONNECTION_UPDATE_SECRET,
    QUEUE_DECLARE_OK,
    WireClient,
    basic_consume,
    connection_open,
    long_string,
    method,
    publish,
    queue_declare,
    short_string,
    start_ok,
    tune_ok,
)
from tests.token_issuer import Issuer
from tests.waiting import wait_until

UPDATE_SECRET_OK = (10, 71)


@pytest.fixture
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def issuer(ca: trustme.CA) -> Generator[Issuer]:
    found = Issuer(ca)
    yield found
    found.close()


@pytest.fixture
def broker(
    data_directory: str, issuer: Issuer, ca: trustme.CA, tmp_path: object
) -> Generator[BrokerProcess]:
    """A broker that knows the issuer."""
    path = f"{tmp_path}/ca.pem"
    ca.cert_pem.write_to_path(path)
    with oauth_broker(data_directory, issuer.url, jwks_ca=path) as process:
        process.start()
        yield process
        assert process.terminate() == 0, process.log_tail()
        assert "Traceback" not in process.stderr, process.log_tail()
        assert "eyJ" not in process.stderr, "a token is in the log"


@contextmanager
def oauth_broker(data_directory: str, jwks: str, **settings: str) -> Generator[BrokerProcess]:
    keys = {"resource_server_id": "broker", "jwks": jwks, "leeway_s": "0", **settings}
    environment = {f"AMQPSTORE_OAUTH_{name.upper()}": value for name, value in keys.items()}
    environment["AMQPSTORE_LOG_LEVEL"] = "debug"
    log = f"{data_directory}.log"
    with BrokerProcess(data_directory, log, environment=environment) as process:
        yield process


def connect(broker: BrokerProcess, token: str) -> pika.BlockingConnection:
    """Log in as RabbitMQ's clients do: the token is the password, the user is anything."""
    login = pika.PlainCredentials("ignored", token)
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", broker.port, credentials=login)
    )


def wire(broker: BrokerProcess, token: str, channels: int = 1) -> WireClient:
    client = WireClient.greeted(broker.url)
    client.send(start_ok("PLAIN", b"\0\0" + token.encode(), "en_US", ("consumer_cancel_notify",)))
    client.expect(CONNECTION_TUNE)
    client.send(tune_ok(100, 131_072, 0), connection_open("/"))
    client.expect(CONNECTION_OPEN_OK)
    for channel in range(1, channels + 1):
        client.open_channel(channel)
    return client


def update_secret(token: str) -> bytes:
    return method(0, CONNECTION_UPDATE_SECRET, long_string(token) + short_string("renewed"))


def test_a_token_is_a_password(broker: BrokerProcess, issuer: Issuer) -> None:
    with connect(broker, issuer.token()) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        channel.basic_publish("", "q", b"x", pika.BasicProperties(user_id="anna"))
        assert channel.basic_get("q")[2] == b"x"
        with pytest.raises(pika.exceptions.ChannelClosedByBroker):
            channel.basic_publish("", "q", b"x", pika.BasicProperties(user_id="berta"))
    with pika.BlockingConnection(pika.URLParameters(broker.url)):
        pass  # users with passwords are served as before


def test_a_scope_is_a_permission(broker: BrokerProcess, issuer: Issuer) -> None:
    scope = "broker.configure:%2F/mine.* broker.write:%2F/amq.topic/orders.* other.write:*/*"
    with connect(broker, issuer.token(scope=scope)) as connection:
        connection.channel().queue_declare("mine.1")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="ACCESS_REFUSED"):
            connection.channel().queue_declare("yours")
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("amq.topic", "orders.new", b"")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="bills"):
            channel.basic_publish("amq.topic", "bills.new", b"")
    for refused in ("broker.read:elsewhere/*", "other.read:*/*", ""):
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            connect(broker, issuer.token(scope=refused))


def test_a_wrong_token_is_refused(broker: BrokerProcess, issuer: Issuer, ca: trustme.CA) -> None:
    stranger = Issuer(ca)
    try:
        wrong = [
            stranger.token(),
            issuer.token(lasts_s=-1),
            issuer.token(aud="another"),
            issuer.token()[:-4] + "AAAA",
            "eyJ.eyJ.x",
        ]
        for token in wrong:
            with pytest.raises(pika.exceptions.ProbableAuthenticationError):
                connect(broker, token)
    finally:
        stranger.close()
    said = re.compile(
        r'"login refused" connection=\d+ peer=\S+ user=ignored mechanism=PLAIN reason="token: '
    )
    wait_until(lambda: len(said.findall(broker.stderr)) == len(wrong))


def test_an_expired_token_ends_the_connection(broker: BrokerProcess, issuer: Issuer) -> None:
    with wire(broker, issuer.token(lasts_s=4)) as client:
        client.open_channel(2)
        assert client.expect_connection_close(320).reply_text.endswith("the token has expired")
    wait_until(lambda: 'event="token expired"' in broker.stderr)


def test_a_token_is_renewed(broker: BrokerProcess, issuer: Issuer) -> None:
    """The connection goes on with the new token, whose rights count from then on."""
    with wire(broker, issuer.token(lasts_s=4), channels=2) as client:
        client.send(queue_declare(1, "q", bits=0b010))
        client.expect(QUEUE_DECLARE_OK, 1)
        client.send(basic_consume(2, "q", "c"))
        client.expect(BASIC_CONSUME_OK, 2)
        until = time.monotonic() + 5
        client.send(update_secret(issuer.token(scope="broker.write:*/*")))
        client.expect(BASIC_CANCEL, 2)  # the right to read has gone
        client.expect(UPDATE_SECRET_OK)
        wait_until(lambda: time.monotonic() > until)
        client.send(publish(1, "q", b"still there"))
        client.send(queue_declare(1, "other"))
        assert client.expect(CHANNEL_CLOSE, 1)


@pytest.mark.parametrize("wrong", ["another user", "expired", "not a token"])
def test_a_renewal_that_is_wrong_ends_the_connection(
    broker: BrokerProcess, issuer: Issuer, wrong: str
) -> None:
    token = {
        "another user": issuer.token("berta"),
        "expired": issuer.token(lasts_s=-5),
        "not a token": "secret",
    }[wrong]
    with wire(broker, issuer.token()) as client:
        client.send(update_secret(token))
        assert client.expect_connection_close(530).failing_method == CONNECTION_UPDATE_SECRET


def test_one_renewal_at_a_time(broker: BrokerProcess, issuer: Issuer) -> None:
    with wire(broker, issuer.token()) as client:
        client.send(update_secret(issuer.token()) * 2)
        client.expect_connection_close(503)


def test_keys_are_not_fetched_for_each_token(broker: BrokerProcess, issuer: Issuer) -> None:
    with connect(broker, issuer.token()):
        pass
    assert issuer.fetches == 1
    issuer.new_key("unknown")
    for _ in range(20):
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            connect(broker, issuer.token())
    assert issuer.fetches == 1, "each unknown key is asked for"


def test_an_issuer_that_cannot_be_verified_is_not_asked(
    data_directory: str, issuer: Issuer, tmp_path: object
) -> None:
    """The issuer's CA is not the trusted one: there is no way around that."""
    path = f"{tmp_path}/other.pem"
    trustme.CA().cert_pem.write_to_path(path)
    for settings in ({"jwks_ca": path}, {}):
        with oauth_broker(data_directory, issuer.url, **settings) as broker:
            broker.start()
            before = broker.stderr.count("CERTIFICATE_VERIFY_FAILED")
            with pytest.raises(pika.exceptions.ProbableAuthenticationError):
                connect(broker, issuer.token())
            wait_until(
                lambda: broker.stderr.count("CERTIFICATE_VERIFY_FAILED") == before + 1  # noqa: B023
            )
    assert issuer.fetches == 0


@pytest.mark.parametrize("status", [302, 404, 500])
def test_other_answers_of_the_issuer_bring_no_keys(
    broker: BrokerProcess, issuer: Issuer, status: int
) -> None:
    issuer.status = status
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        connect(broker, issuer.token())
    assert issuer.fetches == 1, "a redirect was followed"
    wait_until(lambda: f"status {status}" in broker.stderr)


def test_an_issuer_that_takes_for_ever_holds_up_nobody(
    broker: BrokerProcess, issuer: Issuer
) -> None:
    """The issuer's answer comes byte by byte, each byte in time."""
    issuer.drips = True
    refused = threading.Event()

    def log_in() -> None:
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            connect(broker, issuer.token())
        refused.set()

    waiting = threading.Thread(target=log_in)
    waiting.start()
    wait_until(lambda: issuer.fetches == 1)
    with pika.BlockingConnection(pika.URLParameters(broker.url)):
        assert not refused.is_set()
    issuer.drips = False
    waiting.join()
    assert refused.is_set()
