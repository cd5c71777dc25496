"""Exchanges and bindings: what exists from the start, routing, refusals."""

from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.interop.pika_client import (
    channel_closed_with,
    connection_closed_with,
    drain,
    ready,
)


def bound_queue(channel: BlockingChannel, exchange: str, *keys: str) -> str:
    """A fresh exclusive queue bound by each of the keys."""
    queue = channel.queue_declare("", exclusive=True).method.queue
    for key in keys:
        channel.queue_bind(queue, exchange, routing_key=key)
    return queue


def bodies(channel: BlockingChannel, queue: str) -> list[bytes]:
    return [message.body for message in drain(channel, queue)]


@pytest.mark.parametrize(
    ("exchange", "exchange_type"), [("amq.direct", "direct"), ("amq.fanout", "fanout")]
)
def test_the_required_exchanges_exist(
    channel: BlockingChannel, exchange: str, exchange_type: str
) -> None:
    """C028, C030, C035: a reserved name may be declared when it exists."""
    channel.exchange_declare(exchange, passive=True)
    channel.exchange_declare(exchange, exchange_type, durable=True)


def test_the_default_exchange_routes_by_queue_name(channel: BlockingChannel, name: str) -> None:
    """C031, C044, C098."""
    for suffix in "ab":
        channel.queue_declare(f"{name}.{suffix}", exclusive=True)
    channel.basic_publish("", f"{name}.b", b"for b")
    assert bodies(channel, f"{name}.a") == []
    message = drain(channel, f"{name}.b")[0]
    assert (message.body, message.exchange, message.routing_key) == (b"for b", "", f"{name}.b")


@pytest.mark.parametrize("declared", [False, True])
def test_direct_routes_by_equal_key(channel: BlockingChannel, name: str, declared: bool) -> None:
    """C065."""
    exchange = name if declared else "amq.direct"
    if declared:
        channel.exchange_declare(exchange, "direct", auto_delete=True)
    one = bound_queue(channel, exchange, f"{name}.one")
    both = bound_queue(channel, exchange, f"{name}.one", f"{name}.two")
    for key in ("one", "two", "On", "one.", ""):
        channel.basic_publish(exchange, f"{name}.{key}", key.encode())
    assert bodies(channel, one) == [b"one"]
    message, last = drain(channel, both)
    assert (message.body, last.body) == (b"one", b"two")
    assert (last.exchange, last.routing_key) == (exchange, f"{name}.two")


@pytest.mark.parametrize("declared", [False, True])
def test_fanout_routes_to_every_queue_whatever_the_key(
    channel: BlockingChannel, name: str, declared: bool
) -> None:
    """C05."""
    exchange = name if declared else "amq.fanout"
    if declared:
        channel.exchange_declare(exchange, "fanout", auto_delete=True)
    queues = [bound_queue(channel, exchange, key) for key in ("", "some", "other")]
    channel.basic_publish(exchange, name, name.encode())
    for queue in queues:
        assert name.encode() in bodies(channel, queue)


def test_a_binding_made_twice_delivers_once(channel: BlockingChannel, name: str) -> None:
    """C056, C057."""
    queue = bound_queue(channel, "amq.direct", name, name, name)
    channel.basic_publish("amq.direct", name, b"once")
    assert bodies(channel, queue) == [b"once"]
    channel.queue_unbind(queue, "amq.direct", name)
    channel.basic_publish("amq.direct", name, b"never")
    assert bodies(channel, queue) == []


def test_two_bindings_that_match_deliver_once(channel: BlockingChannel, name: str) -> None:
    """C057."""
    channel.exchange_declare(name, "fanout", auto_delete=True)
    queue = bound_queue(channel, name, "a", "b", "c")
    channel.basic_publish(name, "b", b"once")
    assert bodies(channel, queue) == [b"once"]


def test_unbind_removes_one_binding(channel: BlockingChannel, name: str) -> None:
    queue = bound_queue(channel, "amq.direct", f"{name}.a", f"{name}.b")
    channel.queue_unbind(queue, "amq.direct", f"{name}.a")
    for suffix in "ab":
        channel.basic_publish("amq.direct", f"{name}.{suffix}", suffix.encode())
    assert bodies(channel, queue) == [b"b"]


def test_unbinding_what_is_not_bound_succeeds(channel: BlockingChannel, name: str) -> None:
    """C068: RabbitMQ's way."""
    queue = bound_queue(channel, "amq.direct")
    channel.queue_unbind(queue, "amq.direct", name)


def test_binding_a_missing_queue_is_404(channel: BlockingChannel, name: str) -> None:
    """C062."""
    with channel_closed_with(404):
        channel.queue_bind(name, "amq.direct", "key")


def test_binding_to_a_missing_exchange_is_404(channel: BlockingChannel, name: str) -> None:
    """C063."""
    channel.queue_declare(name, exclusive=True)
    with channel_closed_with(404):
        channel.queue_bind(name, f"{name}.missing", "key")


def test_binding_to_the_default_exchange_is_403(channel: BlockingChannel, name: str) -> None:
    """C03."""
    channel.queue_declare(name, exclusive=True)
    with channel_closed_with(403):
        channel.queue_bind(name, "", "key")


def test_unbinding_from_the_default_exchange_is_403(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    with channel_closed_with(403):
        channel.queue_unbind(name, "", name)


def test_declaring_the_default_exchange_is_403(channel: BlockingChannel) -> None:
    with channel_closed_with(403):
        channel.exchange_declare("", "direct")


@pytest.mark.parametrize("exchange", ["", "amq.direct", "amq.fanout", "amq.missing"])
def test_deleting_a_predeclared_exchange_is_403(channel: BlockingChannel, exchange: str) -> None:
    """A13: and any other that is the server's by its name, whether it exists or not."""
    with channel_closed_with(403):
        channel.exchange_delete(exchange)


def test_declaring_a_reserved_name_is_403(channel: BlockingChannel) -> None:
    """C035."""
    with channel_closed_with(403):
        channel.exchange_declare("amq.foo", "direct")


def test_an_unknown_type_closes_the_connection_with_503(
    channel: BlockingChannel, name: str
) -> None:
    """C038."""
    with connection_closed_with(503):
        channel.exchange_declare(name, "no-such-type")


def test_passive_declare_of_a_missing_exchange_is_404(channel: BlockingChannel, name: str) -> None:
    """C039."""
    with channel_closed_with(404):
        channel.exchange_declare(name, passive=True)


@pytest.mark.parametrize(
    "other",
    [{"exchange_type": "fanout"}, {"durable": True}, {"auto_delete": False}],
    ids=lambda other: next(iter(other)),
)
def test_declaring_again_with_other_properties_is_406(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str, other: dict[str, Any]
) -> None:
    """C037, C040."""
    declared: dict[str, Any] = {"exchange_type": "direct", "durable": False, "auto_delete": True}
    channel.exchange_declare(name, **declared)
    channel.exchange_declare(name, **declared)
    with channel_closed_with(406):
        channel.exchange_declare(name, **{**declared, **other})
    connection.channel().exchange_delete(name)


def test_a_passive_declare_of_the_default_exchange_is_403(channel: BlockingChannel) -> None:
    """C03."""
    with channel_closed_with(403):
        channel.exchange_declare("", passive=True)


def test_deleting_a_missing_exchange_succeeds(channel: BlockingChannel, name: str) -> None:
    """C042: RabbitMQ's way."""
    channel.exchange_delete(name)


def test_delete_if_unused_is_406_while_there_is_a_binding(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    """C043."""
    channel.exchange_declare(name, "direct")
    queue = bound_queue(channel, name, "key")
    with channel_closed_with(406):
        connection.channel().exchange_delete(name, if_unused=True)
    channel.queue_unbind(queue, name, "key")
    channel.exchange_delete(name, if_unused=True)
    with channel_closed_with(404):
        channel.exchange_declare(name, passive=True)


def test_a_deleted_exchange_takes_its_bindings_along(channel: BlockingChannel, name: str) -> None:
    """C29."""
    channel.exchange_declare(name, "direct")
    queue = bound_queue(channel, name, "key")
    channel.exchange_delete(name)
    channel.exchange_declare(name, "direct", auto_delete=True)
    channel.basic_publish(name, "key", b"unroutable")
    assert ready(channel, queue) == 0
    channel.exchange_delete(name)


def test_a_deleted_queue_takes_its_bindings_along(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name)
    channel.queue_bind(name, "amq.direct", name)
    channel.queue_delete(name)
    channel.queue_declare(name, exclusive=True)
    channel.basic_publish("amq.direct", name, b"unroutable")
    assert ready(channel, name) == 0


def test_an_auto_delete_exchange_goes_with_its_last_binding(
    channel: BlockingChannel, name: str
) -> None:
    """C26."""
    channel.exchange_declare(name, "direct", auto_delete=True)
    queue = bound_queue(channel, name, "a", "b")
    channel.queue_unbind(queue, name, "a")
    channel.exchange_declare(name, passive=True)
    channel.queue_delete(queue)
    with channel_closed_with(404):
        channel.exchange_declare(name, passive=True)


def test_a_durable_queue_may_bind_to_a_transient_exchange(
    channel: BlockingChannel, name: str
) -> None:
    """C058."""
    channel.exchange_declare(name, "direct", auto_delete=True)
    channel.queue_declare(name, durable=True)
    channel.queue_bind(name, name, "key")
    channel.basic_publish(name, "key", b"routed")
    assert bodies(channel, name) == [b"routed"]
    channel.queue_delete(name)
