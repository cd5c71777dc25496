"""The sockets of the management door: hypercorn serves them, in the nursery of the broker.

Its connections count as those of AMQP clients do (`doors`), so that neither can take the last file
descriptor. During a stop no connection is accepted, event streams end, requests that are being
answered may finish, and what is left is closed.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import trio
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState, Framework
from hypercorn.utils import wrap_app

from amqpstore_server.listening.doors import Doors, Visitor
from amqpstore_server.listening.listening import Acceptor
from amqpstore_server.management.app import ManagementApp
from amqpstore_server.management.call import PASSED_ON
from amqpstore_server.management.http_server import HttpServer, server_config
from amqpstore_server.management.pages.render import compile_templates
from amqpstore_server.management.resources import ROUTES
from amqpstore_server.management.resources.metrics import OPEN_ROUTES
from amqpstore_server.process.ticking import in_time

if TYPE_CHECKING:
    from amqpstore_server.listening.management_sockets import ManagementSockets
    from amqpstore_server.logins.certificates import Certificates
    from amqpstore_server.loop.sockets import Sockets
    from amqpstore_server.management.context import ManagementContext
    from amqpstore_server.management.routes import ApiRoute

_log = logging.getLogger(__name__)

_HANDSHAKE_S = 5.0
_SEND_S = 30.0
"""A client that takes nothing of what it is sent for this long is disconnected."""
_SENT_AT_ONCE = 256 << 10
_GONE = (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError)
_FINISH_S = 3.0
"""How long requests may take to finish when the broker stops."""


class _Listener(NamedTuple):
    """A socket on which requests come, with TLS if there are certificates."""

    socket: socket.socket
    certificates: Certificates | None
    app: AppWrapper
    is_passed_on: bool = False


class ManagementDoor:
    """Serves requests on listening sockets.

    Args: sockets, those of this broker; passed_on, those on which it gets the requests that its
    followers pass on; doors, which limit all clients.
    """

    def __init__(
        self,
        context: ManagementContext,
        sockets: ManagementSockets,
        passed_on: ManagementSockets,
        doors: Doors,
    ) -> None:
        self._context = context
        self._doors = doors
        served = self._application(ROUTES, has_pages=True)
        metered = self._application(OPEN_ROUTES, has_pages=False)
        self._listeners = [
            *(_Listener(one, None, served) for one in sockets.plain),
            *(_Listener(one, context.certificates, served) for one in sockets.tls),
            *(_Listener(one, None, metered) for one in sockets.metrics),
            *(_Listener(one, None, served, True) for one in passed_on.plain),
            *(_Listener(one, context.certificates, served, True) for one in passed_on.tls),
        ]
        self._config = server_config(_log)
        self._worker = WorkerContext(None)
        self._streams: dict[_Stream, Visitor] = {}
        """In the order in which they came."""
        self._error: BaseException | None = None
        self._failed = trio.Event()
        self._accepting = trio.CancelScope()
        self._has_none = trio.Event()

    def _application(self, routes: Iterable[ApiRoute], *, has_pages: bool) -> AppWrapper:
        app = ManagementApp(
            self._context, routes, _logged_in, _abort, self._fail, has_pages=has_pages
        )
        return wrap_app(_as_framework(app), 0, "asgi")

    async def run(self) -> None:
        """Serve until cancelled. Raises: what a request has to end the broker with."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            await trio.to_thread.run_sync(compile_templates)
            with self._accepting:
                async with trio.open_nursery() as accepting:
                    for listener in self._listeners:
                        accepting.start_soon(self._accept, listener, nursery)

    async def stop(self) -> None:
        """Stop accepting connections, and end what may take long; requests may finish."""
        self._accepting.cancel()
        self._context.stopping.set()
        await self._worker.terminated.set()

    async def finish(self) -> None:
        """Wait some seconds for requests to finish, and close what is left."""
        with trio.move_on_after(_FINISH_S):
            while self._streams:
                self._has_none = trio.Event()
                await self._has_none.wait()
        for stream in list(self._streams):
            stream.close_now()

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._failed.set()

    async def _watch(self) -> None:
        await self._failed.wait()
        if self._error is not None:
            raise self._error

    async def _accept(self, listener: _Listener, clients: trio.Nursery) -> None:
        def admit(client: socket.socket, host: str) -> bool:
            had_room = self._doors.has_room and not self._is_full
            self._admit(client, host, listener, clients)
            return had_room

        await Acceptor(listener.socket, self._doors.admission, admit).run()

    def _admit(
        self, accepted: socket.socket, host: str, listener: _Listener, clients: trio.Nursery
    ) -> None:
        """Start serving a client, or refuse it."""
        try:
            names = _Names(accepted.family, accepted.getpeername(), accepted.getsockname())
        except OSError:
            accepted.close()  # it closed before it was served
            return
        # Trio takes no subclass, such as that of a client that a follower passes on.
        plain = socket.socket(fileno=accepted.detach())
        plain.setblocking(False)
        client = trio.socket.from_stdlib_socket(plain)
        try:
            stream = _Stream(client, names, self._context.sockets)
        except OSError:
            client.close()  # it closed before it was served
            return
        now = trio.current_time()
        if self._is_full:
            self._doors.note(host, now)
            self._make_room()
        visitor = None if self._is_full else self._doors.enter(host, stream, now)
        if visitor is None:
            stream.close_now()
            return
        self._streams[stream] = visitor
        clients.start_soon(self._serve, stream, listener, visitor)

    @property
    def _is_full(self) -> bool:
        return len(self._streams) >= self._context.config().management_max_connections

    def _make_room(self) -> None:
        """Turn away the oldest of those that have not logged in, of the peer that has most of them:
        whoever comes with a login is let in, however many there are.
        """
        # A visitor who has logged in is never put out for a newcomer.
        strangers = [found for found in self._streams.items() if found[1].is_stranger]
        if not strangers:
            return
        peer = Counter(visitor.peer for _, visitor in strangers).most_common(1)[0][0]
        stream, visitor = next(found for found in strangers if found[1].peer == peer)
        del self._streams[stream]
        visitor.evict()

    async def _serve(self, stream: _Stream, listener: _Listener, visitor: Visitor) -> None:
        serving = trio.CancelScope()
        about = {"visitor": visitor, "serving": serving, PASSED_ON: listener.is_passed_on}
        state: Any = ConnectionState(about)
        served: Any = stream
        if listener.certificates is not None:
            tls = listener.certificates.context
            # Many clients end TLS without a close_notify.
            served = trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
        try:
            with serving:
                if listener.certificates is not None:
                    await in_time(_HANDSHAKE_S, served.do_handshake)
                server = HttpServer(listener.app, self._config, self._worker, state, served)
                server.on_idle = stream.rest
                await server.run()
        except* _GONE:
            pass  # the client has gone, or does not shake hands
        except* Exception:  # noqa: BLE001
            # One client must not end the broker.
            _log.exception("management connection failed")
        finally:
            stream.close_now()
            visitor.disconnected()
            self._streams.pop(stream, None)
            if not self._streams:
                self._has_none.set()


class _Names(NamedTuple):
    """The two ends of a connection, as a server asks a socket: a follower may be in between."""

    family: int
    peer: Any
    own: Any

    def getpeername(self) -> Any:
        return self.peer

    def getsockname(self) -> Any:
        return self.own


class _Stream(trio.abc.HalfCloseableStream):
    """The stream of a client. What it is sent has to move on: neither a client that does not read,
    nor a stop, waits for ever.
    """

    def __init__(self, client: trio.socket.SocketType, names: _Names, sockets: Sockets) -> None:
        self._stream = trio.SocketStream(client)
        self._client = client
        self._sockets = sockets
        self.socket = names
        sockets.hurry(self)

    def rest(self) -> None:
        """Note that what was asked for is answered."""
        self._sockets.end_hurry(self)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send some bytes. Raises: trio.BrokenResourceError."""
        unsent = memoryview(data)
        while unsent:
            try:
                # The limit is for each piece, not for all: a large answer over a slow link takes
                # longer than that.
                await in_time(_SEND_S, partial(self._stream.send_all, unsent[:_SENT_AT_ONCE]))
            except trio.TooSlowError:
                self.close_now()
                raise trio.BrokenResourceError from None
            unsent = unsent[_SENT_AT_ONCE:]

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until something can be sent."""
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """Send nothing more."""
        await self._stream.send_eof()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Return what has arrived; nothing at the end."""
        received = await self._stream.receive_some(max_bytes)
        self._sockets.hurry(self)
        return received

    async def aclose(self) -> None:
        """Close the socket."""
        await self._stream.aclose()

    def close_now(self) -> None:
        """Close the socket; whoever waits for it is told."""
        self.rest()
        self._client.close()

    evict = close_now

    def has_unread(self) -> bool:
        """Whether the client has sent what was not read yet: it is read as it comes."""
        return False


def _logged_in(state: Any) -> None:
    visitor = (state or {}).get("visitor")
    if visitor is not None:
        visitor.logged_in()


def _abort(state: Any) -> None:
    serving = (state or {}).get("serving")
    if serving is not None:
        serving.cancel()


def _as_framework(app: Callable[..., Any]) -> Framework:
    return app
