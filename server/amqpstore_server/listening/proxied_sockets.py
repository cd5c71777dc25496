"""Sockets of clients that a proxy passes on, and what they are accepted from."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_MAX_WAITING = 1024
"""Clients that no event loop has accepted yet; further ones are closed."""


class AddressedSocket(socket.socket):
    """The socket of a client, with the addresses that a proxy names: `peer`, its own, and `local`,
    what it connected to. Both are a host and a port.
    """

    peer: tuple[str, int]
    local: tuple[str, int]

    def getpeername(self) -> Any:
        return self.peer

    def getsockname(self) -> Any:
        return self.local


class ProxiedListener(socket.socket):
    """Stands where a listening socket does: clients are put into it, by any thread, and accepted
    from it in the event loop. It is readable while somebody waits.
    """

    @classmethod
    def open(cls, on_close: Callable[[], None] = lambda: None) -> ProxiedListener:
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
    _waiting: deque[AddressedSocket]
    _lock: threading.Lock
    _on_close: Callable[[], None]

    def put(self, client: AddressedSocket) -> None:
        """Have a client accepted; it is closed if accepting has ended, or too many wait."""
        with self._lock:
            if self._signal.fileno() >= 0 and len(self._waiting) < _MAX_WAITING:
                with suppress(BlockingIOError):
                    # `accept` may read this byte at once, and then waits for the lock until its
                    # client is in the line. If the pair's buffer is full, there is no byte, and no
                    # client.
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
        # Another thread may be in `put`: it finds the pair open and its client in the line, or
        # closes it.
        with self._lock:
            self._signal.close()
            waiting, self._waiting = self._waiting, deque()
        for client in waiting:
            client.close()
        super().close()
