"""Two-phase commit from pika, by amqpstore_tools.pika: the methods of class dtx, one by one."""

from collections.abc import Callable

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelWrongStateError, StreamLostError

from amqpstore_tools.pika import (
    ExtensionMissingError,
    XaNotFoundError,
    XaProtocolError,
    XaResource,
    XaRolledBackError,
    XaStatus,
    Xid,
)
from tests.broker_process import BrokerProcess
from tests.interop.pika_client import (
    PERSISTENT,
    Inbox,
    connect,
    drain,
    get,
    publish_confirmed,
    ready,
)
from tests.interop.relay import Relay

FORMAT = 77


@pytest.fixture
def xa(channel: BlockingChannel) -> XaResource:
    return XaResource(channel)


@pytest.fixture
def xid() -> Xid:
    return Xid.new(FORMAT, b"\x00\xff", b"\xfe")


@pytest.fixture
def queue(other_channel: BlockingChannel, name: str) -> str:
    other_channel.queue_declare(name, durable=True)
    return name


def work(xa: XaResource, channel: BlockingChannel, xid: Xid, queue: str) -> None:
    """Publish a message to the queue in the branch, and end it."""
    xa.start(xid)
    channel.basic_publish("", queue, b"work", PERSISTENT)
    assert xa.end(xid) is XaStatus.OK


def test_a_prepared_branch_is_seen_once_it_is_committed(
    xa: XaResource, channel: BlockingChannel, other_channel: BlockingChannel, xid: Xid, queue: str
) -> None:
    work(xa, channel, xid, queue)
    assert xa.prepare(xid) is XaStatus.OK
    assert ready(other_channel, queue) == 0
    assert xid in xa.recover()
    xa.commit(xid)
    assert xid not in xa.recover()
    assert [message.body for message in drain(other_channel, queue)] == [b"work"]


def test_a_rollback_undoes_publishes_and_acks(
    xa: XaResource, channel: BlockingChannel, other_channel: BlockingChannel, xid: Xid, queue: str
) -> None:
    publish_confirmed(other_channel, queue, [b"before"])
    received = get(channel, queue)
    assert received is not None
    xa.start(xid)
    channel.basic_ack(received.delivery_tag)
    channel.basic_publish("", queue, b"undone", PERSISTENT)
    xa.end(xid)
    assert xa.prepare(xid) is XaStatus.OK
    assert ready(other_channel, queue) == 0
    xa.rollback(xid)
    assert [(m.body, m.redelivered) for m in drain(other_channel, queue)] == [(b"before", True)]


def test_a_branch_is_committed_in_one_phase(
    xa: XaResource, channel: BlockingChannel, other_channel: BlockingChannel, xid: Xid, queue: str
) -> None:
    work(xa, channel, xid, queue)
    xa.commit(xid, one_phase=True)
    assert [message.body for message in drain(other_channel, queue)] == [b"work"]


def test_a_branch_without_work_is_over_when_it_is_prepared(xa: XaResource, xid: Xid) -> None:
    xa.start(xid)
    xa.end(xid)
    assert xa.prepare(xid) is XaStatus.RDONLY
    assert xid not in xa.recover()
    with pytest.raises(XaNotFoundError):
        xa.commit(xid)


def test_another_connection_decides(
    xa: XaResource, channel: BlockingChannel, other_channel: BlockingChannel, xid: Xid, queue: str
) -> None:
    work(xa, channel, xid, queue)
    xa.prepare(xid)
    channel.connection.close()
    other = XaResource(other_channel)
    assert xid in other.recover()
    other.commit(xid)
    assert ready(other_channel, queue) == 1


def test_an_unprepared_branch_goes_with_its_channel(
    xa: XaResource, channel: BlockingChannel, other_channel: BlockingChannel, xid: Xid, queue: str
) -> None:
    work(xa, channel, xid, queue)
    channel.close()
    other = XaResource(other_channel)
    with pytest.raises(XaRolledBackError):
        other.prepare(xid)
    assert ready(other_channel, queue) == 0
    with pytest.raises(XaNotFoundError):
        other.prepare(xid)


def test_a_branch_that_has_failed_can_only_be_rolled_back(
    xa: XaResource, channel: BlockingChannel, other_channel: BlockingChannel, xid: Xid, queue: str
) -> None:
    xa.start(xid)
    channel.basic_publish("", queue, b"undone", PERSISTENT)
    assert xa.end(xid, fail=True) is XaStatus.RBROLLBACK
    with pytest.raises(XaRolledBackError):
        xa.prepare(xid)
    assert ready(other_channel, queue) == 0


def test_a_branch_is_suspended_and_resumed(
    xa: XaResource, channel: BlockingChannel, other_channel: BlockingChannel, xid: Xid, queue: str
) -> None:
    """J04: what is published meanwhile is not the branch's."""
    xa.start(xid)
    channel.basic_publish("", queue, b"first", PERSISTENT)
    xa.end(xid, suspend=True)
    channel.basic_publish("", queue, b"apart", PERSISTENT)
    xa.start(xid, resume=True)
    channel.basic_publish("", queue, b"second", PERSISTENT)
    xa.end(xid)
    assert [message.body for message in drain(other_channel, queue)] == [b"apart"]
    xa.commit(xid, one_phase=True)
    assert [message.body for message in drain(other_channel, queue)] == [b"first", b"second"]


def test_two_channels_join_one_branch(
    xa: XaResource, channel: BlockingChannel, other_channel: BlockingChannel, xid: Xid, queue: str
) -> None:
    joining = XaResource(other_channel)
    xa.start(xid)
    joining.start(xid, join=True)
    channel.basic_publish("", queue, b"one", PERSISTENT)
    other_channel.basic_publish("", queue, b"other", PERSISTENT)
    joining.end(xid)
    xa.end(xid)
    assert joining.prepare(xid) is XaStatus.OK
    assert ready(channel, queue) == 0
    xa.commit(xid)
    assert {message.body for message in drain(channel, queue)} == {b"one", b"other"}


def test_timeouts_are_set_and_read(
    xa: XaResource, channel: BlockingChannel, xid: Xid, queue: str
) -> None:
    xa.start(xid)
    assert xa.get_timeout(xid) == 0
    xa.set_timeout(xid, 600)
    assert xa.get_timeout(xid) == 600
    xa.set_timeout(xid, 0)
    assert xa.get_timeout(xid) == 0
    with pytest.raises(ValueError, match="timeout_s"):
        xa.set_timeout(xid, -1)
    channel.close()


def test_a_branch_that_takes_too_long_is_rolled_back(
    xa: XaResource, channel: BlockingChannel, other_channel: BlockingChannel, xid: Xid, queue: str
) -> None:
    publish_confirmed(other_channel, queue, [b"before"])
    received = get(channel, queue)
    assert received is not None
    xa.start(xid)
    xa.set_timeout(xid, 1)
    channel.basic_ack(received.delivery_tag)
    channel.basic_publish("", queue, b"late", PERSISTENT)
    xa.end(xid)
    back = Inbox(other_channel, queue, auto_ack=True).wait_for(1)
    assert [(message.body, message.redelivered) for message in back] == [(b"before", True)]
    with pytest.raises(XaRolledBackError, match="RBTIMEOUT"):
        xa.prepare(xid)


Refused = Callable[[XaResource, Xid], object]


@pytest.mark.parametrize(
    ("refused", "kind"),
    [
        (lambda xa, xid: xa.prepare(xid), XaNotFoundError),
        (lambda xa, xid: xa.commit(xid), XaNotFoundError),
        (lambda xa, xid: xa.rollback(xid), XaNotFoundError),
        (lambda xa, xid: xa.forget(xid), XaNotFoundError),
        (lambda xa, xid: xa.get_timeout(xid), XaNotFoundError),
        (lambda xa, xid: xa.set_timeout(xid, 1), XaNotFoundError),
        (lambda xa, xid: xa.start(xid, join=True), XaNotFoundError),
        (lambda xa, xid: (xa.start(xid), xa.prepare(xid)), XaProtocolError),
        (lambda xa, xid: (xa.start(xid), xa.commit(xid)), XaProtocolError),
        (lambda xa, xid: (xa.start(xid), xa.end(xid), xa.commit(xid)), XaProtocolError),
        (lambda xa, xid: (xa.start(xid), xa.start(xid)), XaProtocolError),
        (lambda xa, xid: (xa.start(xid), xa.start(Xid.new(FORMAT))), XaProtocolError),
        (lambda xa, xid: (xa.start(xid), xa.end(xid), xa.start(xid)), XaProtocolError),
        (lambda xa, xid: xa.start(xid, join=True, resume=True), XaProtocolError),
    ],
)
def test_what_is_refused_closes_the_channel(
    xa: XaResource, channel: BlockingChannel, xid: Xid, refused: Refused, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match=r"^Dtx\.\w+: 40[46] .*XAER_\w+") as caught:
        refused(xa, xid)
    assert caught.value.__cause__ is not None
    assert channel.is_closed
    assert channel.connection.is_open
    with pytest.raises(ChannelWrongStateError):
        xa.recover()
    assert xid not in XaResource(channel.connection.channel()).recover()


def test_a_channel_is_for_dtx_or_confirms(channel: BlockingChannel) -> None:
    channel.confirm_delivery()
    with pytest.raises(XaProtocolError):
        XaResource(channel)


def test_a_channel_is_for_dtx_or_tx(channel: BlockingChannel) -> None:
    channel.tx_select()
    with pytest.raises(XaProtocolError):
        XaResource(channel)


def test_a_server_without_dtx_is_told_apart(url: str) -> None:
    def without_dtx(octets: bytes) -> bytes:
        return octets.replace(b"\x03dtxt", b"\x03d-xt")

    with Relay(url, without_dtx) as relay, connect(relay.url) as connection:
        channel = connection.channel()
        with pytest.raises(ExtensionMissingError, match=r"amqpstore \d.*'dtx'"):
            XaResource(channel)
        assert channel.is_open


def test_a_prepared_branch_survives_a_kill_with_many_others(broker: BrokerProcess) -> None:
    """J05: 60 in doubt, with the longest xids there are, and each decided another way."""
    xids = [Xid(2**32 - 1 - n, bytes([n]) * 64, bytes([n]) * 64) for n in range(60)]
    with pytest.raises(StreamLostError), connect(broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare("queue", durable=True)
        xa = XaResource(channel)
        for n, xid in enumerate(xids):
            xa.start(xid)
            channel.basic_publish("", "queue", b"%d" % n, PERSISTENT)
            xa.end(xid)
            assert xa.prepare(xid) is XaStatus.OK
        broker.kill()
    broker.start()
    with pytest.raises(StreamLostError), connect(broker.url) as connection:
        channel = connection.channel()
        assert ready(channel, "queue") == 0
        xa = XaResource(channel)
        assert sorted(xa.recover()) == sorted(xids)
        for n, xid in enumerate(xids):
            if n % 2:
                xa.commit(xid)
            else:
                xa.rollback(xid)
        assert xa.recover() == []
        broker.kill()
    broker.start()
    with connect(broker.url) as connection:
        channel = connection.channel()
        assert XaResource(channel).recover() == []
        bodies = {int(message.body) for message in drain(channel, "queue")}
        assert bodies == set(range(1, 60, 2))
