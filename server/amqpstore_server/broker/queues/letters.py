"""The letters of a queue: dead letters that wait until all queues that they go to take them.

A queue with the dead-letter strategy `at-least-once` puts what dies in it here, in one transaction,
and from here it goes to its targets in another: after a crash it is in exactly one place, and its
own consumers do not get it. It is as it was before it died, so that exchange and routing keys are
what the settings say when it goes; only a header says of what it has died, and when.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from amqpstore import Message, Placement
from amqpstore_server.broker.messages.envelope import ParsedEnvelope
from amqpstore_server.broker.queues.queue import Queue


class Forwards(Protocol):
    """Sends the letters of one queue on."""

    @property
    def reasons(self) -> Mapping[str, int]:
        """The reasons why letters wait, with the number of each."""

    def pump(self) -> None:
        """Send on what can go, as far as the budget of a round allows."""

    def arrived(self) -> None:
        """Note that there are more letters."""

    def look_again(self) -> None:
        """Try all letters once more."""

    def ended(self) -> None:
        """Note that the queue of the letters has ended, or has failed."""


class LettersQueue(Queue):
    """The letters that wait in one queue: see `Queue.letters`."""

    kind = "letters"
    is_internal = True
    is_listed = False
    counts_as_route = False
    forwarding: Forwards | None = None
    """The forwarding that sends them on; None while the queue that they died in has not been
    restored.
    """

    @property
    def reasons(self) -> Mapping[str, int]:
        """The reasons why letters wait, with the number of each."""
        return {} if self.forwarding is None else self.forwarding.reasons

    @property
    def held_bytes(self) -> int:
        """The bytes in the bodies of letters that wait, or are about to."""
        return sum([one.ready_bytes for one in self.priorities]) + self.coming_bytes

    def look_again(self) -> None:
        """Try all letters once more: something that they wait for may have changed."""
        if self.forwarding is not None and not self.is_set_aside:
            self.forwarding.look_again()

    def enforce(self) -> None:
        super().enforce()
        # A binding or a setting may have given them a way out.
        self.look_again()

    def moved_in(self, messages: Sequence[Message], placement: Placement) -> None:
        super().moved_in(messages, placement)
        if self.forwarding is not None:
            self.forwarding.arrived()

    def closed(self) -> None:
        super().closed()
        if self.forwarding is not None:
            self.forwarding.ended()

    def set_aside(self, error: Exception) -> None:
        super().set_aside(error)
        if self.forwarding is not None:
            # Its tasks would go on with a queue that is not served any more.
            self.forwarding.ended()

    def _pump(self, *, yields: bool) -> None:  # noqa: ARG002 - it has no consumers
        if self.forwarding is not None:
            self.forwarding.pump()

    def _expires_ms(self, envelope: ParsedEnvelope) -> int:  # noqa: ARG002 - it has died already
        return 0
