"""Passes the clients of a follower on to the leader, byte by byte, for as long as that leads.

TLS of clients is between them and the leader, whose certificate they see. Nothing is kept but what
is read at once: a side that does not read holds the other one back. What one side has ended, the
other side still answers.

Whether this process lives, and whether clients should come here, it answers itself: an orchestrator
that hears the leader's answer, or none during a failover, would restart members that are well.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import trio

from amqpstore_server.cluster.keys import EtcdRow
from amqpstore_server.replication.handshake import HandshakeError
from amqpstore_server.replication.proxied_clients import UNREAD_MS, bear
from amqpstore_server.replication.proxy_header import ClientAddress, Scheme, encode_header

_log = logging.getLogger(__name__)

_READ_BYTES = 128 << 10
_MAX_CLIENTS = 4096
"""Each takes two descriptors; further ones are closed."""
_DIALS = 16
_LOOK_S = 0.1
_ACCEPT_AGAIN_S = 1.0
_REQUEST_S = 10.0
"""How long a client of the management API may take to begin its request."""
_REQUEST_BYTES = 4096
_LIVE, _READY = b"/health/live", b"/health/ready"


class KnownLeader(NamedTuple):
    """The leader, as far as this member knows, and where it replicates."""

    address: str
    incarnation: str
    term: int

    @classmethod
    def of(cls, row: EtcdRow) -> KnownLeader:
        """Return whom the leader's key names."""
        value = row.value
        return cls(str(value["replicate"]), str(value["incarnation"]), int(value["term"]))


class Proxy:
    """The clients of one follower.

    Args: leader, returns the address of the leader; None while none is known. connect, returns a
    connection to that address on which a member has proved to be one; called in threads.
    """

    def __init__(
        self,
        leader: Callable[[], KnownLeader | None],
        connect: Callable[[str], socket.socket],
    ) -> None:
        self._leader = leader
        self._connect = connect
        self._dials = trio.CapacityLimiter(_DIALS)
        self._passing: dict[trio.CancelScope, KnownLeader | None] = {}
        self._is_unreachable = False

    async def run(self, listeners: Sequence[tuple[Scheme, socket.socket]]) -> None:
        """Take clients on listening sockets, which are closed in the end, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            for scheme, listener in listeners:
                nursery.start_soon(self._accept, scheme, listener, nursery)

    async def _accept(self, scheme: Scheme, listener: socket.socket, clients: trio.Nursery) -> None:
        with trio.socket.from_stdlib_socket(listener) as accepting:
            while True:
                try:
                    client, address = await accepting.accept()
                except OSError as error:
                    # Usually too many open files: wait for some to be closed.
                    _log.error("cannot accept", extra={"reason": str(error)})
                    await trio.sleep(_ACCEPT_AGAIN_S)
                    continue
                leader = self._leader()
                # Requests in plain HTTP may be about this process itself; anything else cannot be
                # answered, and a closed connection tells clients to try the next address of
                # their list.
                is_wanted = leader is not None or scheme == "http"
                if not is_wanted or len(self._passing) >= _MAX_CLIENTS:
                    client.close()
                    continue
                scope = trio.CancelScope()
                self._passing[scope] = leader
                clients.start_soon(self._serve, scheme, client, address, leader, scope)

    async def _watch(self) -> None:
        """Disconnect clients of a leader that another one has followed. Without its key in etcd it
        may go on: only another one ends it.
        """
        while True:
            leader = self._leader()
            if leader is not None:
                for scope, former in list(self._passing.items()):
                    # A deposed leader that is paused would hold its clients for as long as TCP
                    # does.
                    if former not in (leader, None):
                        scope.cancel()
            await trio.sleep(_LOOK_S)

    async def _serve(
        self,
        scheme: Scheme,
        client: trio.socket.SocketType,
        address: tuple[str, int],
        to: KnownLeader | None,
        scope: trio.CancelScope,
    ) -> None:
        try:
            with client, scope, suppress(OSError):
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
                first = await _first_line(client) if scheme == "http" else b""
                answer = self._health(first)
                if not answer and first and to is None:
                    answer = _UNAVAILABLE
                if answer or to is None:
                    await _send(client, memoryview(answer))
                    return
                # The address on the follower that the client has connected to: the leader cannot
                # know it.
                there = client.getsockname()
                known = ClientAddress(address[0], address[1], there[0], there[1], scheme)
                connection = await self._dial(to)
                if connection is not None:
                    with connection:
                        await _send(connection, memoryview(encode_header(known) + first))
                        async with trio.open_nursery() as ways:
                            ways.start_soon(_copy, client, connection, scope)
                            ways.start_soon(_copy, connection, client, scope)
        finally:
            del self._passing[scope]

    def _health(self, request: bytes) -> bytes:
        """Return the answer to a request about this process; empty if it is about another thing."""
        method, _, rest = request.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method != b"GET" or path not in (_LIVE, _READY):
            return b""
        if path == _LIVE or self._leader() is not None:
            return _http_answer(b"200 OK", b'{"status": "ok"}')
        return _UNAVAILABLE

    async def _dial(self, to: KnownLeader) -> trio.socket.SocketType | None:
        is_abandoned = False

        def dial() -> socket.socket:
            found = self._connect(to.address)
            # The client has left, and its task with it; this thread could not be stopped.
            if is_abandoned:
                found.close()
            return found

        try:
            connection = await trio.to_thread.run_sync(
                dial, abandon_on_cancel=True, limiter=self._dials
            )
        except (OSError, HandshakeError) as error:
            # The line is written once an outage: each client that tries would otherwise write one.
            if not self._is_unreachable:
                self._is_unreachable = True
                _log.warning(
                    "clients cannot be passed on to the leader",
                    extra={"leader": to.address, "reason": str(error)},
                )
            return None
        except trio.Cancelled:
            is_abandoned = True
            raise
        self._is_unreachable = False
        bear(connection)
        connection.setblocking(False)
        return trio.socket.from_stdlib_socket(connection)


async def _copy(
    source: trio.socket.SocketType, sink: trio.socket.SocketType, scope: trio.CancelScope
) -> None:
    """Pass on what one side sends, and then that it has ended."""
    try:
        while received := await source.recv(_READ_BYTES):
            await _send(sink, memoryview(received))
        # Half closed: a client may end its side and still wait for close-ok.
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        # A reset on one side has to end the other one too, or a client would wait for a leader
        # that is gone.
        scope.cancel()


async def _send(sink: trio.socket.SocketType, content: memoryview) -> None:
    while content:
        content = content[await sink.send(content) :]


async def _first_line(client: trio.socket.SocketType) -> bytes:
    """Return the beginning of a request, with its first line, if it comes soon."""
    received = b""
    with trio.move_on_after(_REQUEST_S):
        while b"\n" not in received and len(received) < _REQUEST_BYTES:
            piece = await client.recv(_REQUEST_BYTES)
            if not piece:
                break
            received += piece
    return received


def _http_answer(status: bytes, body: bytes) -> bytes:
    return (
        b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
        b"Connection: close\r\n\r\n%s" % (status, len(body), body)
    )


_UNAVAILABLE = _http_answer(
    b"503 Service Unavailable",
    b'{"status": "failed", "reason": "nobody leads, as far as this member knows"}',
)
