"""Clients that followers pass on, as the leader sees them: like those that connect to it, with
their own addresses.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from amqpstore_server.replication.handshake import DEADLINE_S
from amqpstore_server.replication.proxy_header import ClientAddress, Door, read_header

UNREAD_MS = 300_000
"""Who takes nothing for this long is disconnected, on either side of a follower. Until then, a side
that does not read only holds the other one back.
"""
_MAX_WAITING = 1024
"""Clients that no event loop has accepted yet; further ones are closed."""


class ProxiedSocket(socket.socket):
    """The socket of a client's connection that a follower passes on. `client` says who it is."""

    client: ClientAddress

    @classmethod
    def of(cls, connection: socket.socket) -> ProxiedSocket:
        """Read who the client is, and take the connection over, which is closed if that fails.

        Raises: ProxyHeaderError, EOFError, OSError.
        """
        try:
            connection.settimeout(DEADLINE_S)
            client = read_header(lambda size: _read(connection, size))
            bear(connection)
        except BaseException:
            connection.close()
            raise
        made = cls(fileno=connection.detach())
        made.client = client
        made.setblocking(False)
        return made

    def getpeername(self) -> Any:
        return self.client.host, self.client.port

    def getsockname(self) -> Any:
        return self.client.to_host, self.client.to_port


def bear(connection: socket.socket) -> None:
    """Keep a connection on which a client is passed on while its peer does not read."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)


def _read(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        piece = connection.recv(size - len(received))
        if not piece:
            raise EOFError("the connection has ended within its header")
        received += piece
    return received


class ProxiedListener(socket.socket):
    """Stands where a listening socket does: clients are put into it by threads, and accepted from
    it in the event loop. It is readable while somebody waits.
    """

    @classmethod
    def open(cls, on_close: Callable[[], None]) -> ProxiedListener:
        """Args: on_close, called once it is closed."""
        ours, theirs = socket.socketpair()
        made = cls(fileno=ours.detach())
        made.setblocking(False)
        theirs.setblocking(False)
        made._signal = theirs
        made._waiting = deque()
        made._lock = threading.Lock()
        made._on_close = on_close
        return made

    _signal: socket.socket
    _waiting: deque[ProxiedSocket]
    _lock: threading.Lock
    _on_close: Callable[[], None]

    def put(self, client: ProxiedSocket) -> None:
        """Have a client accepted; it is closed if nobody accepts any longer, or too many wait."""
        with self._lock:
            if self._signal.fileno() >= 0 and len(self._waiting) < _MAX_WAITING:
                with suppress(BlockingIOError):
                    self._signal.send(b"c")
                    self._waiting.append(client)
                    return
        client.close()

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next client. Raises: BlockingIOError, if there is none."""
        self.recv(1)
        with self._lock:
            client = self._waiting.popleft()
        return client, client.getpeername()

    def close(self) -> None:
        self._on_close()
        with self._lock:
            self._signal.close()
            waiting, self._waiting = self._waiting, deque()
        for client in waiting:
            client.close()
        super().close()


class ProxiedDoors:
    """The doors of a leader for clients that followers pass on; closed while it does not lead."""

    def __init__(self) -> None:
        self._open: dict[Door, ProxiedListener] = {}

    def open(self, door: Door) -> ProxiedListener:
        """Return a listener for those who come through a door, until it is closed."""
        listener = ProxiedListener.open(lambda: self._closed(door))
        self._open[door] = listener
        return listener

    def _closed(self, door: Door) -> None:
        self._open.pop(door, None)

    def enter(self, client: ProxiedSocket) -> None:
        """Have a client accepted, or close its connection."""
        listener = self._open.get(client.client.door)
        if listener is None:
            client.close()
        else:
            listener.put(client)
