"""An error of ours that keeps an answer back ends the connection that waits for it, with 541.

No client waits for ever, and the others are served on.
"""

from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from amqpstore_server.amqp import channel as amqp_channel
from amqpstore_server.amqp.channel import AmqpChannel
from amqpstore_server.broker.channels.channel import Channel
from amqpstore_server.broker.channels.confirms import Publisher
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.vhost import VirtualHost
from amqpstore_server.protocol import methods
from amqpstore_tools.pika import XaResource, Xid
from amqpstore_tools.testing.broker import BrokerFailedError, MemoryBroker

Patch = pytest.MonkeyPatch

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def confirmed(channel: BlockingChannel) -> None:
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"persistent", PERSISTENT)


def confirmed_at_once(channel: BlockingChannel) -> None:
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"transient")


def committed(channel: BlockingChannel) -> None:
    channel.tx_select()
    channel.basic_publish("", "q", b"persistent", PERSISTENT)
    channel.tx_commit()


def prepared(channel: BlockingChannel) -> Xid:
    branch = XaResource(channel)
    xid = Xid.new(1, b"global", b"branch")
    branch.start(xid)
    channel.basic_publish("", "q", b"persistent", PERSISTENT)
    branch.end(xid)
    branch.prepare(xid)
    return xid


def decided(channel: BlockingChannel) -> None:
    XaResource(channel).commit(prepared(channel))


def decided_at_once(channel: BlockingChannel) -> None:
    branch = XaResource(channel)
    xid = Xid.new(1, b"global", b"branch")
    branch.start(xid)
    channel.basic_publish("", "q", b"persistent", PERSISTENT)
    branch.end(xid)
    branch.commit(xid, one_phase=True)


def declared(channel: BlockingChannel) -> None:
    channel.queue_declare("another", durable=True)


def acked(channel: BlockingChannel) -> None:
    channel.basic_publish("", "q", b"persistent", PERSISTENT)
    method, _, _ = channel.basic_get("q")
    assert method is not None
    channel.basic_ack(method.delivery_tag or 0)
    channel.queue_declare("q", passive=True)


def closed(channel: BlockingChannel) -> None:
    """Have the broker close the channel, as the queue is not there."""
    channel.queue_declare("nowhere", passive=True)


@pytest.mark.parametrize(
    ("ask", "owner", "name"),
    [
        (confirmed, Publisher, "confirm_durable"),
        (confirmed, AmqpChannel, "confirm"),
        (confirmed, amqp_channel, "ack_frame"),
        (confirmed_at_once, Publisher, "_confirm_now"),
        (confirmed_at_once, AmqpChannel, "confirm"),
        (committed, AmqpChannel, "committed"),
        (committed, methods.TxCommitOk, "encode"),
        (prepared, methods.DtxPrepareOk, "encode"),
        (decided, methods.DtxCommitOk, "encode"),
        (decided_at_once, methods.DtxCommitOk, "encode"),
        (declared, VirtualHost, "declare_queue"),
        (declared, methods.QueueDeclareOk, "encode"),
        (acked, Channel, "ack"),
        (closed, methods.ChannelClose, "encode"),
    ],
)
def test_who_waits_is_told_that_the_broker_failed(
    ask: Callable[[BlockingChannel], object], owner: object, name: str, monkeypatch: Patch
) -> None:
    broker = MemoryBroker()
    parameters = pika.URLParameters(broker.url)
    with pika.BlockingConnection(parameters) as other:
        other.channel().queue_declare("q", durable=True)

        def fail(*_arguments: Any, **_named: Any) -> Any:
            raise RuntimeError("broken on purpose")

        with monkeypatch.context() as patch:
            first = pika.BlockingConnection(parameters)
            channel = first.channel()
            patch.setattr(owner, name, fail)
            with pytest.raises(ConnectionClosedByBroker) as caught:
                ask(channel)
        assert caught.value.reply_code == 541
        assert "see the log of the broker" in caught.value.reply_text
        confirmed(other.channel())
    assert broker.is_running
    with pytest.raises(BrokerFailedError, match="broken on purpose"):
        broker.close()


def test_a_queue_that_fails_at_an_ack_or_at_what_arrives_is_set_aside(monkeypatch: Patch) -> None:
    """The clients are answered: what they asked for is durable."""
    broker = MemoryBroker()
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as client:
        channel = client.channel()
        for name in ("q", "letters"):
            channel.queue_declare(name, durable=True)

        def fail(*_arguments: Any, **_named: Any) -> Any:
            raise RuntimeError("broken on purpose")

        with monkeypatch.context() as patch:
            patch.setattr(Queue, "moved_in", fail)
            committed(channel)
        with pytest.raises(ChannelClosedByBroker, match="set aside"):
            channel.basic_get("q")
        other = client.channel()
        other.confirm_delivery()
        other.basic_publish("", "letters", b"persistent", PERSISTENT)
    with pytest.raises(BrokerFailedError, match="broken on purpose"):
        broker.close()
