"""The way out: what a front door does for a channel when the broker has something for it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from amqpstore import Message, Run

if TYPE_CHECKING:
    from amqpstore_server.broker.queues.consumer import Consumer


class Returned(enum.Enum):
    """Why a message comes back to its publisher."""

    NO_ROUTE = enum.auto()
    NO_CONSUMERS = enum.auto()


class Outlet(Protocol):
    """One channel's way to its client. No call waits; what is sent leaves at the turn's end."""

    @property
    def is_writable(self) -> bool:
        """False while so much waits to be sent that deliveries should wait as well."""

    def deliver(self, consumer: Consumer, first_tag: int, run: Run) -> None:
        """Send a run, under ascending delivery tags from `first_tag` on."""

    def returned(self, messages: Sequence[Message], reason: Returned) -> None:
        """Send back messages that were mandatory, or immediate, and could not be that."""

    def confirm(self, tag: int, *, multiple: bool) -> None:
        """Tell the publisher that `tag` (and all before) is safe."""

    def refuse(self, tag: int) -> None:
        """Tell the publisher that a queue did not take `tag`."""

    def committed(self) -> None:
        """Tell the client that its transaction is on disk."""

    def consumer_cancelled(self, consumer_tag: str) -> None:
        """Tell the client that the broker ended its consumer."""

    def failed(self) -> None:
        """An error of ours kept an answer back that the client waits for: end its connection."""


class ClosedOutlet:
    """The way out of a channel that is closed: nobody is there."""

    is_writable = False

    def deliver(self, consumer: Consumer, first_tag: int, run: Run) -> None: ...
    def returned(self, messages: Sequence[Message], reason: Returned) -> None: ...
    def confirm(self, tag: int, *, multiple: bool) -> None: ...
    def refuse(self, tag: int) -> None: ...
    def committed(self) -> None: ...
    def consumer_cancelled(self, consumer_tag: str) -> None: ...
    def failed(self) -> None: ...


CLOSED: Outlet = ClosedOutlet()
