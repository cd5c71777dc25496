"""Distributed transactions (rules J; class dtx), byte by byte."""

import struct

import pytest

from tests.broker_process import BrokerProcess
from tests.conformance.dtx_client import (
    COMMIT,
    END,
    FORGET,
    GET_TIMEOUT,
    OK,
    PREPARE,
    READ_ONLY,
    RECOVER,
    ROLLBACK,
    ROLLED_BACK,
    SET_TIMEOUT,
    START,
    TIMED_OUT,
    DtxChannel,
    Xid,
)
from tests.conformance.topology import unique
from tests.conformance.wire_client import QUEUE_DECLARE_OK, WireClient, queue_declare

pytestmark = pytest.mark.usefixtures("ours_alone")

DURABLE = 0b00010
JOIN, RESUME = 1, 2
FAIL, SUSPEND = 1, 2


def xid() -> Xid:
    """Return a new Xid whose bytes are not UTF-8."""
    return Xid(0xFFFFFFFF, b"\xff\x00" + unique().encode()[-40:], b"\x80")


def declare(client: WireClient, *queues: str) -> None:
    for queue in queues:
        client.send(queue_declare(1, queue, DURABLE))
        client.expect(QUEUE_DECLARE_OK, 1)


@pytest.mark.parametrize("decision", ["commit", "rollback"])
def test_a_prepared_branch_survives_a_kill_and_is_decided_by_another(
    broker: BrokerProcess, decision: str
) -> None:
    """J01, J05: a message is moved from one queue to another."""
    name = xid()
    with WireClient.connected(broker.url, channels=1) as client:
        declare(client, "source", "target")
        channel = DtxChannel(client)
        channel.publish("source", b"order", b"next")
        assert channel.start(name) == OK
        tag, redelivered, _ = channel.take("source")
        assert not redelivered
        channel.ack(tag)
        channel.publish("target", b"receipt", b"copy")
        assert channel.end(name) == OK
        assert channel.prepare(name) == OK
        broker.kill()
    broker.start()
    for _ in range(2):
        with WireClient.connected(broker.url, channels=1) as client:
            channel = DtxChannel(client)
            assert channel.recover() == [name]
            assert (client.ready("source"), client.ready("target")) == (1, 0)
        broker.restart()
    with WireClient.connected(broker.url, channels=1) as client:
        channel = DtxChannel(client)
        decide = channel.commit if decision == "commit" else channel.rollback
        assert decide(name) == OK
        broker.kill()
    broker.start()
    with WireClient.connected(broker.url, channels=1) as client:
        channel = DtxChannel(client)
        assert channel.recover() == []
        if decision == "commit":
            assert [channel.take("target")[1:] for _ in range(2)] == [
                (False, b"receipt"),
                (False, b"copy"),
            ]
            assert client.ready("source") == 1
        else:
            assert client.ready("target") == 0
            assert channel.take("source")[1:] == (True, b"order")


def test_the_model_is_that_of_x_open(url: str) -> None:
    """J01, J04: join, suspend and resume, one phase, read-only, timeouts."""
    name, other = xid(), xid()
    with WireClient.connected(url, channels=2) as client:
        queue = unique()
        client.declare_queue(queue)
        first, second = DtxChannel(client, 1), DtxChannel(client, 2)
        assert first.start(name) == OK
        assert second.start(name, JOIN) == OK
        first.publish(queue, b"a")
        second.publish(queue, b"b")
        assert first.end(name, SUSPEND) == OK
        assert first.start(other) == OK
        assert first.end(other) == OK
        assert first.prepare(other) == READ_ONLY
        assert first.start(name, RESUME) == OK
        assert first.get_timeout(name) == 0
        first.set_timeout(name, 300)
        assert second.get_timeout(name) == 300
        assert first.end(name) == OK
        assert second.end(name) == OK
        assert client.ready(queue) == 0
        assert second.commit(name, one_phase=True) == OK
        assert client.ready(queue) == 2


def test_a_branch_that_failed_says_so(url: str) -> None:
    """J01."""
    name = xid()
    with WireClient.connected(url, channels=1) as client:
        channel = DtxChannel(client)
        channel.start(name)
        assert channel.end(name, FAIL) == ROLLED_BACK
        assert channel.commit(name, one_phase=True) == ROLLED_BACK


def test_a_branch_that_takes_too_long_is_rolled_back(url: str) -> None:
    """J04."""
    name = xid()
    with WireClient.connected(url, channels=2) as client:
        queue = unique()
        client.declare_queue(queue)
        channel = DtxChannel(client)
        channel.publish(queue, b"a")
        channel.start(name)
        tag, _, _ = channel.take(queue)
        channel.ack(tag)
        channel.set_timeout(name, 1)
        assert channel.end(name) == OK
        while not client.ready(queue):
            pass
        assert channel.prepare(name) == TIMED_OUT
        assert channel.take(queue)[1:] == (True, b"a")


def test_a_connection_that_breaks_rolls_back_what_is_not_prepared(url: str) -> None:
    """J01."""
    name = xid()
    queue = unique()
    with WireClient.connected(url, channels=1) as client:
        declare(client, queue)
        channel = DtxChannel(client)
        channel.publish(queue, b"a")
        channel.start(name)
        channel.ack(channel.take(queue)[0])
        channel.publish(queue, b"b")
        channel.end(name)
        client.abort()
    with WireClient.connected(url, channels=1) as client:
        channel = DtxChannel(client)
        while not client.ready(queue):
            pass
        assert client.ready(queue) == 1
        assert channel.take(queue)[1:] == (True, b"a")
        assert name not in channel.recover()


NAMED = Xid(7, b"\xff never started", b"").encoded()
NO_BITS = bytes(1)


@pytest.mark.parametrize(
    ("method_id", "arguments"),
    [
        (START, NAMED + NO_BITS),
        (END, NAMED + NO_BITS),
        (PREPARE, NAMED),
        (COMMIT, NAMED + NO_BITS),
        (ROLLBACK, NAMED),
        (FORGET, NAMED),
        (RECOVER, b""),
        (GET_TIMEOUT, NAMED),
        (SET_TIMEOUT, NAMED + struct.pack(">I", 1)),
    ],
)
def test_everything_takes_dtx_select_first(url: str, method_id: int, arguments: bytes) -> None:
    """J01: 406."""
    with WireClient.connected(url, channels=1) as client:
        close = DtxChannel(client, select=False).refused(method_id, arguments, 406)
        assert "dtx.select" in close.reply_text
        assert close.failing_method == (100, method_id)


@pytest.mark.parametrize(
    ("method_id", "arguments", "reply_code", "text"),
    [
        (END, NAMED + NO_BITS, 404, "XAER_NOTA"),
        (PREPARE, NAMED, 404, "XAER_NOTA"),
        (COMMIT, NAMED + NO_BITS, 404, "XAER_NOTA"),
        (ROLLBACK, NAMED, 404, "XAER_NOTA"),
        (FORGET, NAMED, 404, "XAER_NOTA"),
        (START, NAMED + bytes([JOIN | RESUME]), 406, "XAER_INVAL"),
        (START, Xid(1, b"", b"").encoded() + NO_BITS, 406, "XAER_INVAL"),
        (START, Xid(1, b"a", bytes(65)).encoded() + NO_BITS, 406, "XAER_INVAL"),
    ],
)
def test_what_is_wrong_is_named_as_in_xa_h(
    url: str, method_id: int, arguments: bytes, reply_code: int, text: str
) -> None:
    """J01."""
    with WireClient.connected(url, channels=1) as client:
        close = DtxChannel(client).refused(method_id, arguments, reply_code)
        assert text in close.reply_text


def test_a_channel_that_is_refused_takes_its_branch_with_it(url: str) -> None:
    """J01: the error closes the channel, and that rolls back."""
    name = xid()
    with WireClient.connected(url, channels=2) as client:
        one, two = DtxChannel(client, 1), DtxChannel(client, 2)
        one.start(name)
        one.refused(START, name.encoded() + NO_BITS, 406)
        assert two.commit(name, one_phase=True) == ROLLED_BACK


def test_the_server_says_that_it_has_it(url: str) -> None:
    with WireClient(url) as client:
        client.send(b"AMQP\x00\x00\x09\x01")
        start = client.next_frame()
        assert b"\x03dtxt\x01" in start.payload
