"""The outlet: the interface through which the broker sends to a channel's client."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from amqpstore import Message, Run

if TYPE_CHECKING:
    from amqpstore_server.broker.errors import ResourceExhaustedError
    from amqpstore_server.broker.queues.consumer import Consumer


class Returned(enum.Enum):
    """The reason why a message is returned to its publisher."""

    NO_ROUTE = enum.auto()
    NO_CONSUMERS = enum.auto()


class Outlet(Protocol):
    """One channel's way to its client. No call blocks; everything is sent at the end of the
    turn.
    """

    @property
    def is_writable(self) -> bool:
        """False while so much waits to be sent that deliveries should wait too."""

    def deliver(self, consumer: Consumer, first_tag: int, run: Run) -> None:
        """Send a run of messages, under ascending delivery tags from `first_tag` on."""

    def returned(self, messages: Sequence[Message], reason: Returned) -> None:
        """Return messages that were mandatory and had no queue, or immediate and had no
        consumer.
        """

    def confirm(self, tag: int, *, multiple: bool) -> None:
        """Confirm `tag`, or with `multiple` all up to it."""

    def publish_refused(self, error: ResourceExhaustedError) -> None:
        """Tell the client that messages it published cannot be stored now."""

    def refuse(self, tag: int) -> None:
        """Nack `tag`: a queue did not accept it."""

    def committed(self) -> None:
        """Tell the client that its transaction is durable."""

    def consumer_cancelled(self, consumer_tag: str) -> None:
        """Tell the client that the broker cancelled its consumer."""

    def ack_timed_out(self, timeout_ms: int) -> None:
        """Close the channel: a message was unacked for longer than `timeout_ms`."""

    def failed(self) -> None:
        """End the client's connection: an internal error kept back an answer that it waits for."""


class ClosedOutlet:
    """The outlet of a closed channel: it discards everything."""

    is_writable = False

    def deliver(self, consumer: Consumer, first_tag: int, run: Run) -> None: ...
    def returned(self, messages: Sequence[Message], reason: Returned) -> None: ...
    def confirm(self, tag: int, *, multiple: bool) -> None: ...
    def publish_refused(self, error: ResourceExhaustedError) -> None: ...
    def refuse(self, tag: int) -> None: ...
    def committed(self) -> None: ...
    def consumer_cancelled(self, consumer_tag: str) -> None: ...
    def ack_timed_out(self, timeout_ms: int) -> None: ...
    def failed(self) -> None: ...


CLOSED: Outlet = ClosedOutlet()
