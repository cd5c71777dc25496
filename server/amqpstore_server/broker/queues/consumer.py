"""A consumer: a channel's subscription to a queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from amqpstore import Message, Run

if TYPE_CHECKING:
    from amqpstore_server.broker.queues.backlog import Taken
    from amqpstore_server.broker.queues.queue import Queue

_DELIVERED_AT_ONCE = 1024
"""How many messages a consumer without a prefetch limit gets before the others have their turn."""


class Window:
    """A prefetch limit, and how much of it is used: `messages`, and `size` bytes of bodies.

    0 means no limit. `asked` is how many messages the client asked for, and `most` how many it may
    have at most. A single message is delivered even if it exceeds the size (basic.qos,
    prefetch-size).
    """

    __slots__ = ("asked", "messages", "size", "unacked", "unacked_bytes")

    def __init__(self, messages: int = 0, size: int = 0, most: int = 0) -> None:
        self.asked = messages
        self.messages = min(messages or most, most or messages)
        self.size = size
        self.unacked = 0
        self.unacked_bytes = 0

    @property
    def is_limited(self) -> bool:
        """Whether it limits anything."""
        return bool(self.messages or self.size)

    def fits(self, size: int) -> bool:
        """Tell whether a message of that size may be delivered now, as far as bytes are
        concerned.
        """
        return not self.size or not self.unacked or self.unacked_bytes + size <= self.size

    def add(self, run: Run) -> None:
        """Count a run as unacked."""
        self.unacked += run.count
        self.unacked_bytes += run.body_bytes

    def remove(self, run: Run) -> None:
        """Stop counting a run as unacked."""
        self.unacked -= run.count
        self.unacked_bytes -= run.body_bytes


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """The options of a consumer. Consumers of a higher priority are served first.

    `timeout_ms` is the time in which it has to ack; 0 means any time, None what its queue says.
    `arguments` are the client's, all of them, to be shown.
    """

    no_ack: bool = False
    exclusive: bool = False
    priority: int = 0
    timeout_ms: int | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)


class Writable(Protocol):
    """An outlet that may be full."""

    @property
    def is_writable(self) -> bool:
        """False while so much waits to be sent that deliveries should wait too."""


class ConsumingChannel(Protocol):
    """A channel as its consumers need it."""

    @property
    def consumers(self) -> Sized: ...

    @property
    def window(self) -> Window: ...

    @property
    def is_paused(self) -> bool: ...

    @property
    def outlet(self) -> Writable: ...

    def deliver(self, consumer: Consumer, taken: Taken) -> None:
        """Send messages that were taken off a queue to one of the channel's consumers."""

    def cancelled(self, consumer: Consumer) -> None:
        """Tell the client that the queue has cancelled a consumer."""


class Consumer:
    """Consumer `tag` of a channel. `window` is its own limit; its channel has one for all of them.

    `identity` stands for the consumer in messages that it requeued, which may outlive it.
    """

    __slots__ = (
        "arguments",
        "channel",
        "exclusive",
        "identity",
        "is_apart",
        "no_ack",
        "priority",
        "queue",
        "tag",
        "timeout_ms",
        "window",
    )

    def __init__(
        self,
        channel: ConsumingChannel,
        queue: Queue,
        tag: str,
        options: ConsumerOptions,
        window: Window,
    ) -> None:
        self.channel = channel
        self.queue = queue
        self.tag = tag
        self.no_ack = options.no_ack
        self.exclusive = options.exclusive
        self.priority = options.priority
        self.timeout_ms = options.timeout_ms
        self.arguments = options.arguments
        self.window = window
        self.identity = object()
        self.is_apart = False
        """Whether it can take nothing, and its queue does not look at it until it can."""

    @property
    def capacity(self) -> int:
        """The number of messages that the consumer can take now, whatever their size."""
        channel = self.channel
        if channel.is_paused or not channel.outlet.is_writable:
            return 0
        shared = channel.window
        if self.no_ack:
            # As in RabbitMQ it waits while the channel's limit is reached, but its deliveries do
            # not count towards it.
            is_full = shared.messages and shared.unacked >= shared.messages
            return 0 if is_full else _DELIVERED_AT_ONCE
        # Both limits hold: RabbitMQ gives `global` the meaning of a limit for the channel, beside
        # that of each consumer.
        capacity = _DELIVERED_AT_ONCE
        for window in (self.window, shared):
            if window.messages and window.messages - window.unacked < capacity:
                capacity = window.messages - window.unacked
        return capacity

    @property
    def is_full(self) -> bool:
        """Whether it has as many unacked messages as its own limit allows."""
        window = self.window
        return 0 < window.messages <= window.unacked

    @property
    def shares_limit(self) -> bool:
        """Whether it shares a limit with other consumers of its channel."""
        channel = self.channel
        return bool(channel.window.messages) and not self.no_ack and len(channel.consumers) > 1

    @property
    def fair_share(self) -> int:
        """The number of messages that the consumer may take before the channel's other consumers
        were served.
        """
        if not self.shares_limit:
            return _DELIVERED_AT_ONCE
        window = self.channel.window
        # Each gets one at least, or two consumers that share a prefetch of one would get nothing.
        return max(1, (window.messages - window.unacked) // len(self.channel.consumers))

    @property
    def has_size_limit(self) -> bool:
        """Whether `fits` has to be called before each message."""
        return not self.no_ack and bool(self.window.size or self.channel.window.size)

    def fits(self, size: int) -> bool:
        """Tell whether it can take a message of that size now."""
        return self.window.fits(size) and self.channel.window.fits(size)

    def fitting(self, messages: Sequence[Message]) -> int:
        """Return how many of the first messages it can take now, as far as bytes are concerned."""
        if not self.fits(len(messages[0].body)):
            return 0
        windows = [window for window in (self.window, self.channel.window) if window.size]
        room = min(window.size - window.unacked_bytes for window in windows)
        count = 0
        for message in messages:
            room -= len(message.body)
            if room < 0:
                break
            count += 1
        return max(count, 1)  # the first may be larger than all that it may have
