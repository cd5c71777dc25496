"""Events: what has been received, in batches: consecutive publishes of a channel, and acks of
contiguous tags, are one event each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from amqpstore_server.protocol.errors import AmqpError, FatalFramingError
from amqpstore_server.protocol.methods import BasicPublish, Method

PROPERTIES_AT = 12
"""The offset of the properties in a payload, behind class id, weight and body size."""


@dataclass(slots=True)
class ContentHeader:
    """The payload of a content header frame.

    `body_size` in bytes; `properties` are the property flags and the property list as received.
    `plain` is delivery-mode and priority, 0 if absent, where it is known that no other property
    concerns the broker; otherwise None.
    """

    class_id: int
    body_size: int
    properties: bytes
    plain: tuple[int, int] | None = None


def publish_header(
    content: bytes, start: int, end: int, body_size: int, plain_at: tuple[int, int] | None
) -> ContentHeader:
    """Return the header of a publish, cut out of a read, whose payload is `content[start:end]`.

    Args: plain_at, where delivery-mode and priority are in it, 0 for one that is absent; None if
    another property may concern the broker.
    """
    plain = None
    if plain_at is not None:
        mode_at, priority_at = plain_at
        # An absent one is read at 0, where the class id begins with a zero.
        plain = content[start + mode_at], content[start + priority_at]
    properties = content[start + PROPERTIES_AT : end]
    return ContentHeader(BasicPublish.class_id, body_size, properties, plain)


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
    all tags up to `last`. A basic.ack on channel 0, where there is nothing to ack, is a
    `ReceivedMethod`.
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

MAX_ENTRIES = 8192
"""The number of entries of tables after which the rest of a read is left to the next call, as it
may have hundreds of thousands: to check this number takes a millisecond. What was recognised by its
shape does not count.
"""


class ReadEvents:
    """The events of one read, in order, while they are found."""

    __slots__ = ("entry_count", "events")

    def __init__(self) -> None:
        self.events: list[Event | MoreFrames] = []
        self.entry_count = 0
        """Entries of tables that were looked at, about."""

    def publishes(self, channel: int, target: Target) -> Publishes:
        """Return the event that a message of a channel belongs to: the last one, if that is of the
        same channel.
        """
        events = self.events
        if events:
            last = events[-1]
            if type(last) is Publishes and last.channel == channel:
                if last.targets[-1] is not target:
                    last.is_mixed = True
                return last
        publishes = Publishes(channel)
        events.append(publishes)
        return publishes

    def add_publish(self, channel: int, target: Target, header: ContentHeader, body: bytes) -> None:
        """Add one message."""
        publishes = self.publishes(channel, target)
        publishes.targets.append(target)
        publishes.headers.append(header)
        publishes.bodies.append(body)

    def add_failed(self, channel: int, error: AmqpError | FatalFramingError) -> None:
        """Add an error of the peer."""
        # Without its traceback, which refers to the receiver: it would never be freed.
        self.events.append(Failed(channel, error.with_traceback(None)))
