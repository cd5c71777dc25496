"""A consumer: a channel's standing request for the messages of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpstore import Run

if TYPE_CHECKING:
    from server.broker.channel import Channel
    from server.broker.queue import Queue

_DELIVERED_AT_ONCE = 1024
"""How many messages a consumer without a prefetch limit is handed before the others' turn."""


class Consumer:
    """Consumer `tag` of a channel. `unacked` of its deliveries wait for an ack.

    `prefetch` is how many may; 0 is any number (basic.qos, per consumer).
    """

    __slots__ = ("channel", "exclusive", "no_ack", "prefetch", "queue", "tag", "unacked")

    def __init__(
        self,
        channel: Channel,
        queue: Queue,
        tag: str,
        *,
        no_ack: bool,
        exclusive: bool,
        prefetch: int,
    ) -> None:
        self.channel = channel
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.prefetch = prefetch
        self.unacked = 0

    @property
    def capacity(self) -> int:
        """How many messages it can take now."""
        channel = self.channel
        if not channel.outlet.is_writable:
            return 0
        if self.no_ack:
            return _DELIVERED_AT_ONCE
        capacity = self.prefetch - self.unacked if self.prefetch else _DELIVERED_AT_ONCE
        if channel.prefetch:
            capacity = min(capacity, channel.prefetch - channel.consumers_unacked)
        return min(capacity, _DELIVERED_AT_ONCE)

    def deliver(self, run: Run) -> None:
        """Hand over a run, no longer than `capacity`."""
        self.channel.deliver(self, run)
