"""The command line tools of rabbitmq-c: declare, publish, get, consume, delete."""

import subprocess
from collections.abc import Generator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import UnroutableError

from tests.interop.external_client import need, run
from tests.interop.pika_client import (
    Inbox,
    channel_closed_with,
    drain,
    publish_confirmed,
    ready,
    wait_until,
    wait_until_ready,
)

INSTALL = "apt-get install amqp-tools"


def amqp(
    tool: str, url: str, *arguments: str, body: bytes = b"", exit_code: int = 0
) -> subprocess.CompletedProcess[bytes]:
    """Run one of the tools to its end."""
    return run([need(f"amqp-{tool}", INSTALL), f"--url={url}", *arguments], body, exit_code)


@pytest.fixture
def queue(url: str, connection: pika.BlockingConnection, name: str) -> Generator[str]:
    """A durable queue that amqp-declare-queue made, deleted at the end."""
    declared = amqp("declare-queue", url, "--durable", "--queue", name)
    assert declared.stdout == f"{name}\n".encode()
    yield name
    connection.channel().queue_delete(name)


def test_declare_queue_makes_the_queue_it_names(
    url: str, channel: BlockingChannel, queue: str
) -> None:
    channel.queue_declare(queue, durable=True)
    assert ready(channel, queue) == 0


def test_declare_queue_prints_the_name_the_server_chose(url: str, channel: BlockingChannel) -> None:
    chosen = amqp("declare-queue", url, "--queue", "").stdout.decode().strip()
    assert chosen.startswith("amq.")
    assert ready(channel, chosen) == 0
    channel.queue_delete(chosen)


def test_declare_queue_with_another_durability_fails(
    url: str, channel: BlockingChannel, queue: str
) -> None:
    failed = amqp("declare-queue", url, "--queue", queue, exit_code=1)
    assert b"server channel error 406" in failed.stderr


def test_publish_and_get(url: str, channel: BlockingChannel, queue: str) -> None:
    amqp("publish", url, "--routing-key", queue, "--persistent", "--body", "from the option")
    amqp("publish", url, "--routing-key", queue, body=b"from\nstdin\x00")
    wait_until_ready(channel, queue, 2)
    assert amqp("get", url, "--queue", queue).stdout == b"from the option"
    assert amqp("get", url, "--queue", queue).stdout == b"from\nstdin\x00"
    amqp("get", url, "--queue", queue, exit_code=2)


def test_publish_sets_properties_and_headers(
    url: str, channel: BlockingChannel, queue: str
) -> None:
    amqp(
        "publish",
        url,
        *("--routing-key", queue, "--persistent"),
        *("--content-type", "text/plain", "--content-encoding", "utf-8", "--reply-to", "answers"),
        *("--header", "colour: red", "--header", "size: 10", "--body", "labelled"),
    )
    wait_until_ready(channel, queue, 1)
    message = drain(channel, queue)[0]
    assert message.body == b"labelled"
    assert message.properties.delivery_mode == 2
    assert message.properties.content_type == "text/plain"
    assert message.properties.content_encoding == "utf-8"
    assert message.properties.reply_to == "answers"
    assert message.properties.headers == {"colour": "red", "size": "10"}


def test_publish_sends_one_message_a_line(url: str, channel: BlockingChannel, queue: str) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(100))
    amqp("publish", url, "--routing-key", queue, "--line-buffered", body=lines)
    wait_until_ready(channel, queue, 100)
    assert b"".join(message.body for message in drain(channel, queue)) == lines


def test_publish_to_a_missing_exchange_is_told(url: str, name: str) -> None:
    failed = amqp("publish", url, "--exchange", name, "--body", "lost", exit_code=1)
    assert b"404" in failed.stderr


def test_consume_runs_a_command_for_each_message(
    url: str, channel: BlockingChannel, queue: str
) -> None:
    publish_confirmed(channel, queue, [b"one\n", b"two\n", b"three\n"])
    consumed = amqp(
        "consume", url, "--queue", queue, "--count", "3", "--prefetch-count", "1", "cat"
    )
    assert consumed.stdout == b"one\ntwo\nthree\n"
    assert ready(channel, queue) == 0


def test_consume_without_acknowledgement(url: str, channel: BlockingChannel, queue: str) -> None:
    publish_confirmed(channel, queue, [b"only\n"])
    assert amqp("consume", url, "--queue", queue, "--no-ack", "--count", "1", "cat").stdout == (
        b"only\n"
    )
    assert ready(channel, queue) == 0


def test_what_a_failing_command_was_given_comes_again(
    url: str, channel: BlockingChannel, queue: str
) -> None:
    """The tool acknowledges nothing that its command did not do; its end requeues it."""
    publish_confirmed(channel, queue, [b"undone"])
    # It reads the body: the tool would be killed by its pipe if the command were gone before that.
    amqp("consume", url, "--queue", queue, "--count", "1", "grep", "absent")
    wait_until_ready(channel, queue, 1)
    message = drain(channel, queue)[0]
    assert (message.body, message.redelivered) == (b"undone", True)


def test_consume_binds_a_queue_of_its_own(url: str, channel: BlockingChannel, name: str) -> None:
    """An exclusive queue with a server's name, bound to the exchange, gone with the tool."""
    command = need("amqp-consume", INSTALL)
    channel.exchange_declare(name, "topic", auto_delete=True)
    channel.confirm_delivery()
    arguments = ["--exchange", name, "--routing-key", "stock.#", "--count", "1", "cat"]
    with subprocess.Popen(
        [command, f"--url={url}", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as consumer:
        try:
            wait_until(channel, lambda: publish_reaches_a_queue(channel, name))
            stdout, stderr = consumer.communicate(timeout=60)
        finally:
            consumer.kill()
    assert stdout == b"EUR"
    assert consumer.returncode == 0
    queue = stderr.decode().strip().rpartition(" ")[2]
    assert queue.startswith("amq.")
    with channel_closed_with(404):
        channel.queue_declare(queue, passive=True)


def publish_reaches_a_queue(channel: BlockingChannel, exchange: str) -> bool:
    """Publish with the mandatory flag; False when the message came back."""
    try:
        channel.basic_publish(exchange, "stock.eur", b"EUR", mandatory=True)
    except UnroutableError:
        return False
    return True


def test_delete_queue_if_empty_keeps_one_that_is_not(
    url: str, channel: BlockingChannel, queue: str
) -> None:
    publish_confirmed(channel, queue, [b"waits"])
    failed = amqp("delete-queue", url, "--queue", queue, "--if-empty", exit_code=1)
    assert b"406" in failed.stderr
    assert drain(channel, queue)[0].body == b"waits"


def test_delete_queue_if_unused_keeps_one_with_a_consumer(
    url: str, channel: BlockingChannel, queue: str
) -> None:
    inbox = Inbox(channel, queue)
    failed = amqp("delete-queue", url, "--queue", queue, "--if-unused", exit_code=1)
    assert b"406" in failed.stderr
    channel.basic_cancel(inbox.consumer_tag)
    amqp("delete-queue", url, "--queue", queue, "--if-unused", "--if-empty")


def test_delete_queue_says_how_many_messages_went(
    url: str, channel: BlockingChannel, queue: str
) -> None:
    publish_confirmed(channel, queue, [b"a", b"b"])
    assert amqp("delete-queue", url, "--queue", queue).stdout == b"2\n"
    with channel_closed_with(404):
        channel.queue_declare(queue, passive=True)
