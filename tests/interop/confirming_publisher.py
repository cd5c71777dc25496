"""A publisher with many confirms outstanding, on pika's SelectConnection."""

import threading
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pika
from pika.channel import Channel
from pika.frame import Method
from pika.spec import Basic

from tests.interop.pika_client import PERSISTENT, parameters

RUN_LIMIT_S = 60.0


class Outgoing(NamedTuple):
    """A message to publish."""

    exchange: str
    routing_key: str
    body: bytes


class ConfirmingPublisher:
    """Publishes persistent messages over one connection, up to `window` of them unconfirmed.

    `run` returns when all are confirmed, or when the connection is lost. What was sent and what
    was confirmed are then known by the messages' positions in the order given.
    """

    def __init__(
        self,
        url: str,
        messages: Iterable[Outgoing],
        window: int,
        on_confirmed: threading.Semaphore | None = None,
    ) -> None:
        self.sent = 0
        self.confirmed: list[int] = []
        self.most_outstanding = 0
        self.failure = ""
        self._messages: Iterator[Outgoing] = iter(messages)
        self._exhausted = False
        self._window = window
        self._unconfirmed: set[int] = set()
        self._on_confirmed = on_confirmed
        self._channel: Channel
        self._connection = pika.SelectConnection(
            parameters(url),
            on_open_callback=lambda connection: connection.channel(
                on_open_callback=self._on_channel
            ),
            on_open_error_callback=lambda _connection, _error: self._stop(),
            on_close_callback=lambda _connection, _reason: self._stop(),
        )

    def run(self) -> None:
        self._connection.ioloop.call_later(RUN_LIMIT_S, self._too_slow)
        self._connection.ioloop.start()
        self._connection.ioloop.close()
        assert not self.failure, self.failure

    def _stop(self) -> None:
        self._connection.ioloop.stop()

    def _too_slow(self) -> None:
        self.failure = f"{len(self._unconfirmed)} unconfirmed after {RUN_LIMIT_S} s"
        self._stop()

    def _on_channel(self, channel: Channel) -> None:
        self._channel = channel
        channel.confirm_delivery(self._on_answer, callback=lambda _frame: self._fill())

    def _on_answer(self, frame: Method[Basic.Ack | Basic.Nack]) -> None:
        last = frame.method.delivery_tag - 1
        if not isinstance(frame.method, Basic.Ack):
            self.failure = f"message {last} was nacked"
        answered = (
            sorted(position for position in self._unconfirmed if position <= last)
            if frame.method.multiple
            else [last]
        )
        for position in answered:
            if position not in self._unconfirmed:
                self.failure = f"message {position} was answered twice or before it was sent"
            self._unconfirmed.discard(position)
            self.confirmed.append(position)
            if self._on_confirmed is not None:
                self._on_confirmed.release()
        if self.failure:
            self._stop()
        else:
            self._fill()

    def _fill(self) -> None:
        while len(self._unconfirmed) < self._window and self._connection.is_open:
            message = next(self._messages, None)
            if message is None:
                self._exhausted = True
                break
            self._unconfirmed.add(self.sent)
            self.sent += 1
            self._channel.basic_publish(
                message.exchange, message.routing_key, message.body, PERSISTENT
            )
        self.most_outstanding = max(self.most_outstanding, len(self._unconfirmed))
        if self._exhausted and not self._unconfirmed and self._connection.is_open:
            self.confirmed.sort()
            self._connection.close()
