"""A TCP relay between a client and the broker, so that a test can cut or move the connection.

A broker that is started again gets another port; clients that reconnect by themselves know one
address only. They are given the relay's.
"""

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self
from urllib.parse import urlsplit, urlunsplit

READ_BYTES = 65536

Change = Callable[[bytes], bytes]


class Relay:
    """Listens on a port of its own and copies bytes to and from the broker of a URL.

    What the broker sends goes through `from_broker`, which may change it, piece by piece as it is
    read. When it returns nothing, the connection is cut there.
    """

    def __init__(self, url: str, from_broker: Change | None = None) -> None:
        self.accepted = 0
        self._from_broker = from_broker
        self._target = _address(url)
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        parts = urlsplit(url)
        self.port = self._listener.getsockname()[1]
        user = parts.netloc.rpartition("@")[0]
        self.url = urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{self.port}"))
        self._threads = [threading.Thread(target=self._accept, name="relay accept")]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def target(self, url: str) -> None:
        """Send the connections that come from now on to this broker."""
        with self._lock:
            self._target = _address(url)

    def cut(self) -> None:
        """End every connection at once, without a word of AMQP."""
        with self._lock:
            sockets = list(self._sockets)
        for end in sockets:
            _shut(end)

    def close(self) -> None:
        """End it all and wait for it."""
        _shut(self._listener)
        self._listener.close()
        self._threads[0].join()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                address = self._target
            try:
                broker = socket.create_connection(address)
            except OSError:
                client.close()
                continue
            for end in (client, broker):
                # As clients and the broker have it: small pieces wait for nothing.
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self.accepted += 1
                self._sockets |= {client, broker}
            thread = threading.Thread(target=self._serve, args=(client, broker), name="relay")
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket, broker: socket.socket) -> None:
        back = threading.Thread(
            target=_copy, args=(broker, client, self._from_broker), name="relay back"
        )
        back.start()
        _copy(client, broker)
        back.join()
        with self._lock:
            self._sockets -= {client, broker}
        client.close()
        broker.close()


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "127.0.0.1", parts.port or 5672


def _copy(source: socket.socket, destination: socket.socket, change: Change | None = None) -> None:
    """Copy until either end closes, or nothing is left of a piece; then close both ways."""
    with contextlib.suppress(OSError):
        while read := source.recv(READ_BYTES):
            if change is not None and not (read := change(read)):
                break
            destination.sendall(read)
    _shut(source)
    _shut(destination)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
