"""Acks that are overdue close their channel with 406, as in RabbitMQ ("Overdue acks")."""

import pika
import pytest

from tests.broker_process import BrokerProcess
from tests.conformance.topology import Arguments, queue
from tests.interop.pika_client import Inbox, channel_closed_with, ready, settle, wait_until


@pytest.mark.parametrize(
    ("of_queue", "of_consumer"),
    [({"x-consumer-timeout": 1000}, {}), ({}, {"x-consumer-timeout": 1000})],
)
def test_an_overdue_ack_closes_the_channel(
    url: str, of_queue: Arguments, of_consumer: Arguments
) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel, other = connection.channel(), connection.channel()
        name = queue(other, of_queue)
        other.basic_publish("", name, b"m")
        got: list[bytes] = []
        channel.basic_consume(
            name, lambda *found: got.append(found[3]), arguments=dict(of_consumer)
        )
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
            wait_until(channel, lambda: bool(got))
            channel.start_consuming()
        assert got == [b"m"]
        assert closed.value.reply_code == 406
        text = closed.value.reply_text
        assert "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out." in text
        assert "Timeout value used: 1000 ms." in text
        settle(other)
        assert ready(other, name) == 1
        method, _, _ = other.basic_get(name)
        assert method is not None
        assert method.redelivered


@pytest.mark.parametrize("value", [-1, "1000", True])
def test_a_consumer_timeout_that_is_none_is_refused(url: str, value: object) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        name = queue(channel)
        with channel_closed_with(406):
            channel.basic_consume(name, lambda *_: None, arguments={"x-consumer-timeout": value})


def test_the_brokers_own_timeout_and_the_off_switch_of_a_queue(data_directory: str) -> None:
    config = f"{data_directory}.toml"
    with open(config, "w", encoding="utf-8") as file:
        file.write("consumer_timeout_s = 1\n")
    with BrokerProcess(data_directory, f"{data_directory}.log", ["--config", config]) as process:
        process.start()
        with pika.BlockingConnection(pika.URLParameters(process.url)) as connection:
            late, free = connection.channel(), connection.channel()
            names = queue(late), queue(free, {"x-consumer-timeout": 0})
            inboxes = []
            for channel, name in zip((late, free), names, strict=True):
                channel.basic_publish("", name, b"m")
                inboxes.append(Inbox(channel, name))
            inboxes[1].wait_for(1)
            with channel_closed_with(406):
                late.start_consuming()
            free.basic_ack(1)
            assert ready(free, names[1]) == 0
        assert process.terminate() == 0
