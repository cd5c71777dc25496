"""The HTTP server of a connection: hypercorn's, with what it leaves out.

- Reason phrases: `HTTP/1.1 204 No Content`. They mean nothing, but clients show them, compare them,
  and some read no status line without one.
- The end of a connection that its client has closed while it was idle: hypercorn waits for the end
  of the time that it might have stayed idle, and until then it would count as one that is open.
- That a broker which stood still has not read what its clients asked for: see `ticking`.
- HTTP/2, which hypercorn would speak with whoever begins with it: the cost of its streams is not
  bounded, before a login too, and no browser uses it here, as ALPN is not offered.
- The end of one that its client has closed without reading an answer, while its next request was
  there already: hypercorn waits for ever until that request has its turn.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, LifespanState

from amqpstore_server.process.ticking import in_time

_HEAD = b"HTTP/1.1 "
_CODE = slice(len(_HEAD), len(_HEAD) + 3)
_NO_PHRASE = b" \r\n"

_IDLE_S = 15.0


def server_config(log: logging.Logger) -> Config:
    """Return what all connections have in common. Args: log, for errors."""
    config = Config()
    config.accesslog = None
    config.errorlog = log
    config.include_server_header = False
    config.keep_alive_timeout = _IDLE_S
    # Parts of a body that wait to be read: a stranger may fill this.
    config.max_app_queue_size = 4
    return config


class HttpServer(TCPServer):
    """Serves a connection."""

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        state: LifespanState,
        stream: Any,
    ) -> None:
        super().__init__(app, config, context, state, stream)
        self._reading = trio.CancelScope()
        self._is_over = False
        self.on_idle: Callable[[], None] = lambda: None
        """Called when a request is answered."""
        self._is_head_due = True
        """Whether the next answer has not begun: what a body begins with is no head."""

    async def run(self) -> None:
        """Serve until the connection ends."""
        try:
            await super().run()
        finally:
            # The protocol sends through this server, which has it: only a collection would free
            # them, and it comes seldom. (What h11 refuses stays until then all the same, as its
            # error refers to itself: it keeps little.)
            vars(self).clear()

    async def protocol_send(self, event: Event) -> None:
        """Send what the protocol has made."""
        if isinstance(event, RawData):
            await self._send(self._phrased(event.data) if self._is_head_due else event.data)
            return
        if isinstance(event, Updated):
            if event.idle:
                self.on_idle()
            self._is_head_due = True
            if self._is_over:
                return  # there is no next request to wait for
        await super().protocol_send(event)

    async def _send(self, data: bytes) -> None:
        """Send bytes, whoever is cancelled: half of a frame would be none."""
        async with self.send_lock:
            try:
                with trio.CancelScope(shield=True):
                    await self.stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                await self.protocol.handle(Closed())
                self._reading.cancel()

    async def _read_data(self) -> None:
        """Read until the client, or this side, has closed the connection."""
        found = self.protocol
        self.protocol = _Http1(  # type: ignore[assignment] # it is asked for nothing else
            found.app,
            found.config,
            found.context,
            found.task_group,
            found.state,
            found.ssl,
            found.client,
            found.server,
            found.send,
        )
        with self._reading:
            await super()._read_data()
        self._is_over = True
        await self.idle_task.stop()

    async def _idle_timeout(self) -> None:
        """Close the connection when nothing was asked in time, or when the broker stops."""
        with contextlib.suppress(trio.TooSlowError):
            await in_time(self.config.keep_alive_timeout, self.context.terminated.wait)
        with trio.CancelScope(shield=True):
            await self._initiate_server_close()

    def _phrased(self, data: bytes) -> bytes:
        """Return the head of an answer with its phrase."""
        code = data[_CODE]
        if not (data.startswith(_HEAD) and data[_CODE.stop :].startswith(_NO_PHRASE)):
            return data
        # `100 Continue` comes before the answer.
        self._is_head_due = code.startswith(b"1")
        try:
            phrase = HTTPStatus(int(code)).phrase.encode()
        except ValueError:
            return data
        return _HEAD + code + b" " + phrase + data[_CODE.stop + 1 :]


class _OtherProtocolError(Exception):
    """A client has begun with HTTP/2."""


class _Http1(H11Protocol):
    """HTTP/1.1, and nothing else: who asks for an upgrade to HTTP/2 is answered without."""

    async def handle(self, event: Event) -> None:
        """Handle what has arrived."""
        try:
            await super().handle(event)
        except _OtherProtocolError:
            await self._send_error_response(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
            await self.send(Closed())

    async def _check_protocol(self, event: Any) -> None:
        # The preface of HTTP/2, which a client may send without asking first.
        if event.method == b"PRI" and event.http_version == b"2.0":
            raise _OtherProtocolError
