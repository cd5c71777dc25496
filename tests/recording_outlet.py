"""The way out of a broker channel for tests that need no protocol.

The clients of the simulated broker (`unit/broker`, `property`, `crash`) stand on it, and the
suite of `unit/contracts/test_outlet.py` holds all of them, and AMQP's channel, to the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from amqpstore import Message, Run
from amqpstore_server.broker.channels.outlet import Returned
from amqpstore_server.broker.errors import ResourceExhaustedError
from amqpstore_server.broker.queues.consumer import Consumer


class Delivered(NamedTuple):
    """A consumer got a message."""

    consumer_tag: str
    tag: int
    message: Message
    redelivered: bool


class Back(NamedTuple):
    """A publisher got its message back."""

    message: Message
    reason: Returned


class Confirmed(NamedTuple):
    """A publisher was told that `tags` are safe: the last by its tag, the others by `multiple`."""

    tags: list[int]
    multiple: bool


class Refused(NamedTuple):
    """A publisher was told that a queue did not take its message."""

    tag: int


class Committed(NamedTuple):
    """A client was told that its transaction is on disk."""


class Cancelled(NamedTuple):
    """A client was told that the broker ended its consumer."""

    consumer_tag: str


class Late(NamedTuple):
    """A client was told that an ack of its is overdue."""

    timeout_ms: int


Told = Late | Delivered | Back | Confirmed | Refused | Committed | Cancelled


class RecordingOutlet:
    """Keeps what the client of one channel is told, in order, and fails on what no client may see.

    That is: a message without a body, a delivery tag that does not ascend, a publish that is
    answered twice, and an answer that is kept back by an error.
    """

    def __init__(self) -> None:
        self.is_writable = True
        self.record: list[Told] = []
        self._last_delivered = 0
        self._first_unanswered = 1
        self._answered: set[int] = set()

    def deliver(self, consumer: Consumer, first_tag: int, run: Run) -> None:
        assert run.messages is not None, "a delivery of what is not in memory"
        assert len(run.messages) == run.count
        assert first_tag > self._last_delivered, f"delivery tag {first_tag} is not a new one"
        self._last_delivered = first_tag + run.count - 1
        redelivered = run.delivery_count > 0
        self.record += [
            Delivered(consumer.tag, tag, message, redelivered)
            for tag, message in enumerate(run.messages, first_tag)
        ]

    def returned(self, messages: Sequence[Message], reason: Returned) -> None:
        self.record += [Back(message, reason) for message in messages]

    def confirm(self, tag: int, *, multiple: bool) -> None:
        first = self._first_unanswered if multiple else tag
        tags = [each for each in range(first, tag + 1) if not self._is_answered(each)]
        assert tags, f"{tag} was answered twice"
        self._note_answered(tags)
        self.record.append(Confirmed(tags, multiple))

    def publish_refused(self, error: ResourceExhaustedError) -> None:
        raise AssertionError("what cannot be stored is refused at once here") from error

    def refuse(self, tag: int) -> None:
        assert not self._is_answered(tag), f"{tag} was answered twice"
        self._note_answered([tag])
        self.record.append(Refused(tag))

    def committed(self) -> None:
        self.record.append(Committed())

    def consumer_cancelled(self, consumer_tag: str) -> None:
        self.record.append(Cancelled(consumer_tag))

    def ack_timed_out(self, timeout_ms: int) -> None:
        self.record.append(Late(timeout_ms))

    def failed(self) -> None:
        raise AssertionError("an answer to the client failed")

    def _is_answered(self, tag: int) -> bool:
        return tag < self._first_unanswered or tag in self._answered

    def _note_answered(self, tags: list[int]) -> None:
        self._answered.update(tags)
        while self._first_unanswered in self._answered:
            self._answered.remove(self._first_unanswered)
            self._first_unanswered += 1
