"""Events: what has been received, in batches: consecutive publishes of a channel, and acks of
contiguous tags, are one event each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from amqpstore_server.protocol.content import ContentHeader
from amqpstore_server.protocol.errors import AmqpError, FatalFramingError
from amqpstore_server.protocol.methods import BasicPublish, Method


class Target:
    """A basic.publish, decoded once for all that repeat it, and equal to itself alone."""

    __slots__ = ("publish",)

    def __init__(self, publish: BasicPublish) -> None:
        self.publish = publish


@final
class Publishes:
    """Consecutive messages published on one channel, as columns; `is_mixed` if their targets
    differ.
    """

    __slots__ = ("bodies", "channel", "headers", "is_mixed", "targets")

    def __init__(self, channel: int) -> None:
        self.channel = channel
        self.is_mixed = False
        self.targets: list[Target] = []
        self.headers: list[ContentHeader] = []
        self.bodies: list[bytes] = []


@final
class Acks:
    """basic.acks of the tags `first` to `last`, each a frame of its own; or one with `multiple`, of
    all tags up to `last`. A basic.ack on channel 0, where no one can ack, is a `ReceivedMethod`.
    """

    __slots__ = ("channel", "first", "last", "multiple")

    def __init__(self, channel: int, first: int, last: int, *, multiple: bool = False) -> None:
        self.channel = channel
        self.first = first
        self.last = last
        self.multiple = multiple


@final
@dataclass(slots=True)
class ReceivedMethod:
    """A whole method that carries no content."""

    channel: int
    method: Method


@final
@dataclass(slots=True)
class Failed:
    """An error of a peer in a frame of `channel`; 0 if the error concerns no channel."""

    channel: int
    error: AmqpError | FatalFramingError


@final
class MoreFrames:
    """The rest of a read, which the receiver has not looked at yet: it comes with the next call."""

    __slots__ = ()


Event = Publishes | Acks | ReceivedMethod | Failed
