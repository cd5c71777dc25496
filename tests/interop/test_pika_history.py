"""Gets that wait and histories with pika, while the broker is stopped and killed."""

import itertools
import threading

import pytest
from pika import spec
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ConnectionClosedByBroker

from amqpstore_tools.pika import get
from tests.broker_process import BrokerProcess
from tests.conformance.topology import session
from tests.interop.pika_client import (
    drain,
    publish_confirmed,
    ready,
)

HISTORY = "amq.consumed.work"
LONG = pytest.mark.long


def test_a_broker_that_stops_ends_gets_that_wait(broker: BrokerProcess) -> None:
    caught: list[BaseException] = []

    def wait(channel: BlockingChannel) -> None:
        try:
            get(channel, "work", wait_s=20)
        except AMQPError as error:
            caught.append(error)

    with session(broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare("work")
        getter = threading.Thread(target=wait, args=(channel,))
        getter.start()
        with session(broker.url) as other:
            assert ready(other.channel(), "work") == 0
        assert broker.terminate() == 0
        getter.join(20)
    assert isinstance(caught[0], ConnectionClosedByBroker)
    assert caught[0].reply_code == 320


def consume_until_killed(broker: BrokerProcess, kill_after: int) -> None:
    """Ack the messages of the queue one by one; the broker is killed in the middle of it."""
    seen = itertools.count(1)

    def on_message(
        channel: BlockingChannel,
        method: spec.Basic.Deliver,
        _properties: spec.BasicProperties,
        _body: bytes,
    ) -> None:
        channel.basic_ack(method.delivery_tag or 0)
        if next(seen) == kill_after:
            broker.kill()

    with session(broker.url) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=20)
        channel.basic_consume("work", on_message)
        with pytest.raises(AMQPError):
            channel.start_consuming()


@pytest.mark.parametrize(
    "kill_after", [pytest.param(1, marks=LONG), 37, pytest.param(90, marks=LONG)]
)
def test_killed_while_it_consumes_every_message_is_in_one_place(
    broker: BrokerProcess, kill_after: int
) -> None:
    """J17: in its queue or in its history, whatever the kill left undone."""
    bodies = [b"%d" % number for number in range(100)]
    with session(broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare("work", durable=True, arguments={"x-history-length": 1000})
        publish_confirmed(channel, "work", bodies)
    consume_until_killed(broker, kill_after)
    broker.start()
    with session(broker.url) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        kept, consumed = ready(channel, "work"), ready(channel, HISTORY)
        assert kept + consumed == len(bodies)
        channel.queue_declare("browse", durable=True)
        to_browse = spec.BasicProperties(headers={"x-replay-to": "browse"})
        channel.basic_publish("amq.replay", "work", b"", to_browse, mandatory=True)
        # What was confirmed of a replay is on disk.
        broker.kill()
    broker.start()
    with session(broker.url) as connection:
        channel = connection.channel()
        copies = [message.body for message in drain(channel, "browse")]
        left = [message.body for message in drain(channel, "work")]
        assert len(copies) == consumed
        assert sorted(copies + left, key=int) == bodies
