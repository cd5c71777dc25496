"""pika's asynchronous SelectConnection, driven by a test one condition at a time.

Everything of the client happens in callbacks on its own event loop. A test calls methods on the
connection's channels and then runs the loop until what it waits for has come.
"""

import time
from collections.abc import Callable
from typing import Self

import pika
from pika.adapters.select_connection import SelectConnection
from pika.channel import Channel
from pika.frame import Method
from pika.spec import Basic, BasicProperties, Confirm, Queue

from tests.interop.pika_client import WAIT_S, parameters

TICK_S = 0.02


class Client:
    """One SelectConnection: opened on entry, closed on exit, unless it was closed before."""

    def __init__(self, url: str, **settings: object) -> None:
        self.closed_by: BaseException | None = None
        self.blocked: list[str] = []
        self.unblocked = 0
        self._opened = False
        self.connection = SelectConnection(
            parameters(url, **settings),
            on_open_callback=self._on_open,
            on_open_error_callback=self._on_closed,
            on_close_callback=self._on_closed,
        )
        self.connection.add_on_connection_blocked_callback(self._on_blocked)
        self.connection.add_on_connection_unblocked_callback(self._on_unblocked)

    def __enter__(self) -> Self:
        self.wait_until(lambda: self._opened)
        return self

    def __exit__(self, *_exc: object) -> None:
        try:
            if self.closed_by is None:
                if self.connection.is_open:
                    self.connection.close()
                self.run_until(lambda: self.closed_by is not None)
        finally:
            self.connection.ioloop.close()

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
        """Run the loop until the condition holds. The connection must stay open meanwhile."""
        self.run_until(lambda: condition() or self.closed_by is not None, timeout_s)
        assert condition(), f"the connection is closed: {self.closed_by!r}"

    def run_until(self, condition: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
        """Run the loop until the condition holds."""
        loop = self.connection.ioloop
        deadline = time.monotonic() + timeout_s

        def check() -> None:
            if condition() or time.monotonic() > deadline:
                loop.stop()
            else:
                loop.call_later(TICK_S, check)

        loop.call_later(0, check)
        loop.start()
        assert condition(), f"still waiting after {timeout_s} s"

    def channel(self) -> Channel:
        """An open channel."""
        opened: list[Channel] = []
        self.connection.channel(on_open_callback=opened.append)
        self.wait_until(lambda: bool(opened))
        return opened[0]

    def declare(
        self,
        channel: Channel,
        queue: str,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        arguments: dict[str, object] | None = None,
    ) -> Queue.DeclareOk:
        """Declare a queue and wait for the answer."""
        answers: list[Method[Queue.DeclareOk]] = []
        channel.queue_declare(
            queue,
            passive=passive,
            durable=durable,
            exclusive=exclusive,
            arguments=arguments,
            callback=answers.append,
        )
        self.wait_until(lambda: bool(answers))
        return answers[0].method

    def _on_open(self, _connection: pika.connection.Connection) -> None:
        self._opened = True

    def _on_closed(self, _connection: pika.connection.Connection, reason: object) -> None:
        self.closed_by = reason if isinstance(reason, BaseException) else RuntimeError(str(reason))

    def _on_blocked(self, _connection: object, frame: Method[pika.spec.Connection.Blocked]) -> None:
        self.blocked.append(str(frame.method.reason))

    def _on_unblocked(self, _connection: object, _frame: object) -> None:
        self.unblocked += 1


class Publisher:
    """A channel in confirm mode that keeps what is not confirmed yet and what came back."""

    def __init__(self, client: Client) -> None:
        self.unconfirmed: set[int] = set()
        self.nacked: set[int] = set()
        self.returned: list[tuple[int | None, str | None, bytes]] = []
        self._client = client
        self._sent = 0
        self.channel = client.channel()
        selected: list[Method[Confirm.SelectOk]] = []
        self.channel.confirm_delivery(self._on_confirm, callback=selected.append)
        self.channel.add_on_return_callback(self._on_return)
        client.wait_until(lambda: bool(selected))

    def publish(
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        properties: BasicProperties | None = None,
        mandatory: bool = False,
    ) -> int:
        """Send without waiting. Returns the delivery tag that the confirm will name."""
        self._sent += 1
        self.unconfirmed.add(self._sent)
        self.channel.basic_publish(exchange, routing_key, body, properties, mandatory)
        return self._sent

    def wait_confirmed(self) -> None:
        self._client.wait_until(lambda: not self.unconfirmed)

    def _on_confirm(self, frame: Method[Basic.Ack | Basic.Nack]) -> None:
        tag = frame.method.delivery_tag or 0
        covered = {sent for sent in self.unconfirmed if sent <= tag}
        covered = covered if frame.method.multiple else {tag}
        assert covered <= self.unconfirmed, "confirmed twice"
        self.unconfirmed -= covered
        if isinstance(frame.method, Basic.Nack):
            self.nacked |= covered

    def _on_return(
        self, _channel: Channel, method: Basic.Return, _properties: BasicProperties, body: bytes
    ) -> None:
        self.returned.append((method.reply_code, method.routing_key, body))
