"""The turn: what a round of reads left to do, done once for all of them.

Every connection that read something wakes it. It runs after them, has the queues hand out what
came in, gives the batch to the committer, and sends what waits, one write a connection.
"""

from __future__ import annotations

from typing import Protocol

import trio

from amqpstore_server.broker.broker import Broker
from amqpstore_server.committer import Committer


class Sender(Protocol):
    """A connection that has something to send."""

    def send_now(self) -> None:
        """Send what the socket takes at once; see to it that the rest follows."""


class Turn:
    """Deliveries, the batch, and writes, in this order."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._senders: dict[Sender, None] = {}
        self._event = trio.Event()

    def wake(self) -> None:
        """There is something to do."""
        self._event.set()

    def has_output(self, sender: Sender) -> None:
        """Note that a connection's outbox is no longer empty."""
        self._senders[sender] = None
        self._event.set()

    async def run(self, committer: Committer) -> None:
        """Never returns."""
        while True:
            await self._event.wait()
            self._event = trio.Event()
            self._broker.pump()
            if self._broker.has_work:
                # What moved from one queue to another on the way has its turn next.
                self._event.set()
            committer.commit(promised_only=True)
            self._broker.context.store.free_memory()
            self._send()

    def _send(self) -> None:
        # A function of its own, so that no variable keeps a connection until the next turn.
        senders, self._senders = self._senders, {}
        for sender in senders:
            sender.send_now()
