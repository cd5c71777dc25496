"""Helpers that the tests of the rules share: queues and bindings in a line, and the messages
there.
"""

import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, UnroutableError
from pika.spec import BasicProperties

from tests.interop.pika_client import Received, connect, drain, get, ready, wait_until

Arguments = Mapping[str, Any]


def unique(prefix: str = "rule") -> str:
    """A name that nothing has used."""
    return f"{prefix}.{uuid.uuid4().hex[:12]}"


def queue(channel: BlockingChannel, arguments: Arguments | None = None) -> str:
    """A new exclusive queue."""
    name = unique("queue")
    channel.queue_declare(name, exclusive=True, arguments=dict(arguments or {}))
    return name


def exchange(
    channel: BlockingChannel,
    kind: str,
    arguments: Arguments | None = None,
    *,
    internal: bool = False,
) -> str:
    """A new transient exchange."""
    name = unique(kind)
    channel.exchange_declare(name, kind, internal=internal, arguments=dict(arguments or {}))
    return name


def bound(
    channel: BlockingChannel, source: str, *keys: str, arguments: Arguments | None = None
) -> str:
    """A new exclusive queue, bound with each of the keys."""
    name = queue(channel)
    for key in keys or ("",):
        channel.queue_bind(name, source, key, arguments=dict(arguments or {}))
    return name


def publish_keys(channel: BlockingChannel, target: str, keys: Sequence[str]) -> None:
    """Publish to each routing key a message whose body is the key."""
    for key in keys:
        channel.basic_publish(target, key, key.encode())


def bodies(channel: BlockingChannel, name: str) -> list[bytes]:
    """Take everything out of a queue."""
    return [message.body for message in drain(channel, name)]


def texts(channel: BlockingChannel, name: str) -> list[str]:
    return [body.decode() for body in bodies(channel, name)]


def get_soon(channel: BlockingChannel, name: str, auto_ack: bool = True) -> Received:
    """The next message of a queue, once it has one."""
    wait_until(channel, lambda: ready(channel, name) > 0)
    message = get(channel, name, auto_ack=auto_ack)
    assert message is not None
    return message


def has_route(channel: BlockingChannel, name: str) -> bool:
    """Tell whether a mandatory message finds the queue, without using the queue.

    Args: channel, in confirm mode, where the return comes before the call ends.
    """
    try:
        channel.basic_publish("", name, b"ping", mandatory=True)
    except UnroutableError:
        return False
    return True


def confirming(connection: pika.BlockingConnection) -> BlockingChannel:
    """Open another channel, in confirm mode."""
    channel = connection.channel()
    channel.confirm_delivery()
    return channel


@contextmanager
def session(url: str) -> Generator[pika.BlockingConnection]:
    """A connection that is closed behind the block, also where the broker was killed in it."""
    connection = connect(url)
    try:
        yield connection
    finally:
        with suppress(AMQPError):
            connection.close()


def headers(properties: BasicProperties) -> dict[str, Any]:
    """A message's headers; none of them where it has no table."""
    return dict(properties.headers or {})


def deaths(message: Received) -> list[dict[str, Any]]:
    """Return what x-death says, newest first, without the times."""
    entries = headers(message.properties).get("x-death", [])
    return [{key: entry[key] for key in entry if key != "time"} for entry in entries]
