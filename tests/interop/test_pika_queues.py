"""Queues: declare, exclusivity, auto-delete, purge, delete."""

from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.interop.conftest import Connect
from tests.interop.pika_client import (
    Inbox,
    channel_closed_with,
    drain,
    exists,
    get,
    ready,
)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("auto_delete", [False, True])
def test_every_kind_of_queue_is_declared_twice_alike(
    channel: BlockingChannel, name: str, durable: bool, exclusive: bool, auto_delete: bool
) -> None:
    """C050, C052, C053."""
    for _ in range(2):
        declared = channel.queue_declare(
            name, durable=durable, exclusive=exclusive, auto_delete=auto_delete
        )
        assert declared.method.queue == name
        assert declared.method.message_count == 0
        assert declared.method.consumer_count == 0
    channel.queue_delete(name)


def test_declaring_again_tells_the_counts(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, exclusive=True)
    for _ in range(7):
        channel.basic_publish("", name, b"")
    consuming = connection.channel()
    consuming.basic_qos(prefetch_count=2)
    Inbox(consuming, name).wait_for(2)
    declared = channel.queue_declare(name, exclusive=True).method
    assert (declared.message_count, declared.consumer_count) == (5, 1)


def test_a_queue_without_a_name_gets_one(channel: BlockingChannel) -> None:
    """C046."""
    names = {channel.queue_declare("", exclusive=True).method.queue for _ in range(50)}
    assert len(names) == 50
    assert all(name.startswith("amq.gen-") for name in names)


def test_an_empty_name_means_the_queue_last_declared_on_the_channel(
    channel: BlockingChannel,
) -> None:
    """C061, C073, C076."""
    first = channel.queue_declare("", exclusive=True).method.queue
    last = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind("", "amq.direct", routing_key=last)
    channel.basic_publish("amq.direct", last, b"here")
    assert (ready(channel, first), ready(channel, last)) == (0, 1)
    message = get(channel, "")
    assert message is not None
    assert message.body == b"here"
    channel.basic_publish("amq.direct", last, b"purged")
    assert channel.queue_purge("").method.message_count == 1
    channel.queue_delete("")
    with channel_closed_with(404):
        channel.queue_declare(last, passive=True)


def test_an_empty_name_before_any_declaration_is_an_error(
    channel: BlockingChannel,
) -> None:
    """C073: RabbitMQ's code for it is 404."""
    with channel_closed_with(404):
        channel.queue_purge("")


def test_passive_declare_finds_a_queue_whatever_its_properties(
    channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, auto_delete=True)
    assert channel.queue_declare(name, passive=True, durable=True).method.queue == name


def test_passive_declare_of_a_missing_queue_is_404(channel: BlockingChannel, name: str) -> None:
    """C049."""
    with channel_closed_with(404):
        channel.queue_declare(name, passive=True)


@pytest.mark.parametrize(
    "other",
    [{"durable": True}, {"auto_delete": False}, {"arguments": {"x-max-length": 5}}],
    ids=lambda other: next(iter(other)),
)
def test_declaring_again_with_other_properties_is_406(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str, other: dict[str, Any]
) -> None:
    """C050."""
    declared: dict[str, Any] = {"durable": False, "auto_delete": True}
    channel.queue_declare(name, **declared)
    with channel_closed_with(406):
        channel.queue_declare(name, **{**declared, **other})
    connection.channel().queue_delete(name)


def test_a_reserved_name_cannot_be_declared(channel: BlockingChannel, name: str) -> None:
    """C047."""
    with channel_closed_with(403):
        channel.queue_declare(f"amq.{name}")


def test_a_long_name_in_any_script(channel: BlockingChannel, name: str) -> None:
    """A14: names are any UTF-8 up to 255 bytes."""
    queue = (name + "é漢字" * 40).encode()[:255].decode(errors="ignore")
    assert channel.queue_declare(queue, exclusive=True).method.queue == queue
    channel.basic_publish("", queue, b"found")
    assert [message.body for message in drain(channel, queue)] == [b"found"]


@pytest.mark.parametrize(
    "operation",
    ["declare", "passive", "consume", "get", "bind", "purge", "delete"],
)
def test_an_exclusive_queue_of_another_connection_is_405(
    channel: BlockingChannel, other_channel: BlockingChannel, name: str, operation: str
) -> None:
    """C054."""
    channel.queue_declare(name, exclusive=True)
    operations: dict[str, Callable[[], object]] = {
        "declare": lambda: other_channel.queue_declare(name, exclusive=True),
        "passive": lambda: other_channel.queue_declare(name, passive=True),
        "consume": lambda: Inbox(other_channel, name),
        "get": lambda: get(other_channel, name),
        "bind": lambda: other_channel.queue_bind(name, "amq.direct", "key"),
        "purge": lambda: other_channel.queue_purge(name),
        "delete": lambda: other_channel.queue_delete(name),
    }
    with channel_closed_with(405):
        operations[operation]()
    assert ready(channel, name) == 0


def test_another_connection_may_publish_to_an_exclusive_queue(
    channel: BlockingChannel, other_channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, exclusive=True)
    other_channel.confirm_delivery()
    other_channel.basic_publish("", name, b"reply", mandatory=True)
    assert [message.body for message in drain(channel, name)] == [b"reply"]


def test_an_exclusive_queue_goes_with_its_connection(
    connection: pika.BlockingConnection, open_connection: Connect, name: str
) -> None:
    """D07. The queue outlives the channel that declared it."""
    owner = open_connection()
    channel = owner.channel()
    channel.queue_declare(name, exclusive=True, durable=True)
    channel.close()
    assert ready(owner.channel(), name) == 0
    owner.close()
    assert not exists(connection, name)


def test_a_transient_shared_queue_outlives_its_connection(
    connection: pika.BlockingConnection, open_connection: Connect, name: str
) -> None:
    owner = open_connection()
    owner.channel().queue_declare(name)
    owner.close()
    assert exists(connection, name)
    connection.channel().queue_delete(name)


def test_auto_delete_waits_for_a_first_consumer(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    """A20: a get does not count as a consumer."""
    channel.queue_declare(name, auto_delete=True)
    channel.basic_publish("", name, b"")
    assert get(channel, name, auto_ack=True) is not None
    channel.close()
    assert exists(connection, name)
    connection.channel().queue_delete(name)


def test_auto_delete_takes_the_queue_with_its_last_consumer(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, auto_delete=True)
    first, second = Inbox(channel, name), Inbox(channel, name)
    channel.basic_cancel(first.consumer_tag)
    assert exists(connection, name)
    channel.basic_cancel(second.consumer_tag)
    assert not exists(connection, name)


def test_auto_delete_counts_a_closed_channel_as_a_cancel(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, auto_delete=True)
    Inbox(channel, name)
    channel.close()
    assert not exists(connection, name)


def test_purge_removes_and_counts_the_ready_messages(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    for _ in range(12):
        channel.basic_publish("", name, b"x")
    assert channel.queue_purge(name).method.message_count == 12
    assert ready(channel, name) == 0
    assert channel.queue_purge(name).method.message_count == 0


def test_purge_leaves_the_unacked_messages(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    """C071."""
    channel.queue_declare(name, exclusive=True)
    for number in range(6):
        channel.basic_publish("", name, str(number).encode())
    consuming = connection.channel()
    consuming.basic_qos(prefetch_count=2)
    Inbox(consuming, name).wait_for(2)
    assert channel.queue_purge(name).method.message_count == 4
    consuming.close()
    assert [message.body for message in drain(channel, name)] == [b"0", b"1"]


def test_purging_a_missing_queue_is_404(channel: BlockingChannel, name: str) -> None:
    """C074."""
    with channel_closed_with(404):
        channel.queue_purge(name)


def test_delete_tells_how_many_messages_went(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name)
    for _ in range(3):
        channel.basic_publish("", name, b"x")
    assert channel.queue_delete(name).method.message_count == 3
    assert not exists(connection, name)


def test_deleting_a_missing_queue_succeeds(channel: BlockingChannel, name: str) -> None:
    assert channel.queue_delete(name).method.message_count == 0


def test_delete_if_unused_is_406_while_there_is_a_consumer(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    """C078."""
    channel.queue_declare(name)
    inbox = Inbox(channel, name)
    with channel_closed_with(406):
        connection.channel().queue_delete(name, if_unused=True)
    channel.basic_cancel(inbox.consumer_tag)
    channel.queue_delete(name, if_unused=True)
    assert not exists(connection, name)


def test_delete_if_empty_is_406_while_there_are_messages(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    """C079."""
    channel.queue_declare(name)
    channel.basic_publish("", name, b"x")
    assert ready(channel, name) == 1
    with channel_closed_with(406):
        connection.channel().queue_delete(name, if_empty=True)
    channel.queue_purge(name)
    channel.queue_delete(name, if_empty=True)
    assert not exists(connection, name)


def test_a_deleted_queue_declared_again_starts_empty(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, durable=True)
    channel.basic_publish("", name, b"x")
    channel.queue_delete(name)
    declared = channel.queue_declare(name, exclusive=True)
    assert declared.method.message_count == 0


def test_three_hundred_queues(channel: BlockingChannel, name: str) -> None:
    """C045."""
    names = [f"{name}.{number}" for number in range(300)]
    for queue in names:
        channel.queue_declare(queue, exclusive=True)
        channel.basic_publish("", queue, queue.encode())
    for queue in names:
        assert [message.body for message in drain(channel, queue)] == [queue.encode()]
