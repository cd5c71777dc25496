"""Connections to the broker, for streams that take from it and put into it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker

_LOCKED = 405

LOCK_TIMEOUT_S = 60.0
"""A driver that was killed on another machine is noticed by its heartbeats at the latest."""

_PAUSE_S = 0.2


class StreamLockedError(Exception):
    """Another process runs the stream of this name."""

    def __init__(self, stream: str) -> None:
        super().__init__(
            f"stream {stream!r} is run by another process: the broker says so after "
            f"{LOCK_TIMEOUT_S:.0f} s. Stop that one, or take another name."
        )


def connect(url: str) -> pika.BlockingConnection:
    """Raises: AMQPError."""
    return pika.BlockingConnection(pika.URLParameters(url))


def queue_name(stream: str, what: str) -> str:
    """Of a queue that belongs to a stream."""
    return f"spark.{stream}.{what}"


@contextlib.contextmanager
def locked(
    url: str, stream: str, *, timeout_s: float = LOCK_TIMEOUT_S
) -> Iterator[BlockingChannel]:
    """A channel of a connection that nobody else has for this stream.

    The lock is an exclusive queue, so it goes with the connection, however that ends. Raises:
    StreamLockedError, AMQPError.
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
    """The same, until the connection is closed."""
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
