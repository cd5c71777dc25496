"""Connections of streams to the broker."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple, cast

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker

from amqpstore.errors import PicklableError
from amqpstore_tools.pika import KeptProperties, keep_properties

_LOCKED = 405

LOCK_TIMEOUT_S = 60.0
"""A killed driver on another machine is noticed by its heartbeats after this time at the latest."""

_PAUSE_S = 0.2
_PREFETCH = 2000


class Delivered(NamedTuple):
    """A message that has to be acked."""

    method: pika.spec.Basic.Deliver | pika.spec.Basic.GetOk
    properties: KeptProperties
    body: bytes

    @property
    def tag(self) -> int:
        """The delivery tag."""
        return self.method.delivery_tag or 0


class StreamLockedError(PicklableError):
    """Another process runs the stream of this name."""

    def __init__(self, stream: str) -> None:
        super().__init__(
            f"stream {stream!r} is run by another process: it held the lock for "
            f"{LOCK_TIMEOUT_S:.0f} s. Stop that process, or use another name."
        )


def connect(url: str) -> pika.BlockingConnection:
    """Connect. Raises: AMQPError."""
    keep_properties()
    return pika.BlockingConnection(pika.URLParameters(url))


def queue_name(stream: str, what: str) -> str:
    """Return the name of a queue that belongs to a stream."""
    return f"spark.{stream}.{what}"


@contextlib.contextmanager
def locked(
    url: str, stream: str, *, timeout_s: float = LOCK_TIMEOUT_S
) -> Iterator[BlockingChannel]:
    """Open a channel on a connection that holds the lock of this stream.

    The lock is an exclusive queue, so it is released with the connection, however that ends.
    Raises: StreamLockedError, AMQPError.
    """
    connection, channel = lock(url, stream, timeout_s=timeout_s)
    try:
        yield channel
    finally:
        with contextlib.suppress(AMQPError):
            connection.close()


def lock(
    url: str, stream: str, *, timeout_s: float = LOCK_TIMEOUT_S
) -> tuple[pika.BlockingConnection, BlockingChannel]:
    """Lock a stream until the connection is closed."""
    connection = connect(url)
    deadline = time.monotonic() + timeout_s
    while True:
        channel = connection.channel()
        try:
            channel.queue_declare(queue_name(stream, "lock"), exclusive=True)
        except ChannelClosedByBroker as refused:
            if refused.reply_code != _LOCKED or time.monotonic() > deadline:
                connection.close()
                if refused.reply_code != _LOCKED:
                    raise
                raise StreamLockedError(stream) from None
            connection.sleep(_PAUSE_S)
        else:
            return connection, channel


def ready(
    channel: BlockingChannel, queue: str, most: int = sys.maxsize, *, most_bytes: int = sys.maxsize
) -> list[Delivered]:
    """Return the ready messages of a queue, unacked, in order.

    Consumers fetch them, as a get is a round trip for each message; a get then tells that there are
    no more.
    Args: most, messages, about; most_bytes, of bodies, about.
    Raises: AMQPError.
    """
    found: list[Delivered] = []
    size = 0
    is_empty = False
    while not is_empty and len(found) < most and size < most_bytes:
        some, is_empty = _some(channel, queue, min(most - len(found), _PREFETCH))
        found += some
        size += sum(len(one.body) for one in some)
    found.sort(key=lambda one: one.tag)
    return found


def _some(channel: BlockingChannel, queue: str, prefetch: int) -> tuple[list[Delivered], bool]:
    """Return about `prefetch` messages, and whether there are no more."""
    got: list[Delivered] = []
    brought: list[Delivered] = []
    channel.basic_qos(prefetch_count=prefetch)
    consumer = channel.basic_consume(queue, lambda _, *one: brought.append(Delivered(*one)))
    is_empty = False
    # Continue until nothing can be in transit, as that would be requeued. If another consumer is
    # the single active one, this one gets nothing, and everything is left to the gets.
    for _ in range(prefetch):
        if is_empty or len(brought) == prefetch:
            break
        method, properties, body = channel.basic_get(queue)
        channel.connection.process_data_events(0)
        if method is None or properties is None or body is None:
            is_empty = True
        else:
            got.append(Delivered(method, cast(KeptProperties, properties), body))
    channel.basic_cancel(consumer)
    return got + brought, is_empty
