"""The turn: work that follows a round of reads, done once for all of them.

Every connection that read something wakes it. It runs after them, has the queues hand out new
messages, gives the batch to the committer, and sends output, one write per connection.
"""

from __future__ import annotations

from typing import Protocol

import trio

from amqpstore_server.broker.broker import Broker
from amqpstore_server.committer import Committer


class Sender(Protocol):
    """A connection that has something to send."""

    def send_now(self) -> None:
        """Send what the socket accepts at once, and make sure that the rest follows."""


class Turn:
    """Runs deliveries, the batch, and writes, in this order."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._senders: dict[Sender, None] = {}
        self._event = trio.Event()

    def wake(self) -> None:
        """Wake the turn: there is work."""
        self._event.set()

    def has_output(self, sender: Sender) -> None:
        """Note that a connection's outbox is no longer empty."""
        self._senders[sender] = None
        self._event.set()

    async def run(self, committer: Committer) -> None:
        """Run turns. Never returns."""
        while True:
            await self._event.wait()
            self._event = trio.Event()
            self._broker.pump()
            if self._broker.has_work:
                # Queues that got messages from another queue on the way have their turn next.
                self._event.set()
            committer.commit(promised_only=True)
            self._broker.context.store.free_memory()
            self._send()

    def _send(self) -> None:
        # A separate function, so that no local variable keeps a connection alive until the next
        # turn.
        senders, self._senders = self._senders, {}
        for sender in senders:
            sender.send_now()
