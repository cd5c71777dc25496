"""The steps that all attacks have in common: each begins, goes on in small steps and ends, as often
as asked.
"""

import contextlib
import select
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import ClassVar

from amqpstore_tools.client import wire
from amqpstore_tools.client.connection import Address, Connection, receive
from amqpstore_tools.client.errors import BenchError, PeerError

MIB = 1 << 20
_PATIENCE_S = 0.2
_RESET = struct.pack("ii", 1, 0)
_SILENCE_S = 10.0


class Attack(ABC):
    """One attack, from one process.

    Args: name, of queues and exchanges: begins with it; count, of whatever there is much of.
    """

    about: ClassVar[str]
    count: ClassVar[int]

    def __init__(self, address: Address, name: str, count: int) -> None:
        self.address = address
        self.name = name
        self.times = count
        self._open: list[socket.socket] = []

    def prepare(self) -> None:  # noqa: B027 - most need nothing
        """Do what is not measured. Raises: BenchError, OSError."""

    @abstractmethod
    def step(self) -> None:
        """Do a little of it, for some tenths of a second at most. Raises: BenchError, OSError."""

    def clean(self) -> None:  # noqa: B027 - most leave nothing
        """Remove what is left in the broker."""

    def finish(self) -> None:
        """Close all sockets and clean up, whatever has failed."""
        for sock in self._open:
            reset(sock)
        self._open.clear()
        with contextlib.suppress(BenchError, OSError):
            self.clean()

    # Sockets, which `finish` closes.

    def stranger(self) -> socket.socket:
        """Connect a socket, and say nothing."""
        sock = socket.create_connection((self.address.host, self.address.port), _SILENCE_S)
        self._open.append(sock)
        return sock

    def greeted(self) -> socket.socket:
        """Connect a socket, and read connection.start. Raises: PeerError."""
        sock = self.stranger()
        sock.sendall(wire.PROTOCOL_HEADER)
        receive(sock)
        return sock

    def member(self) -> socket.socket:
        """Log in, and open a channel. Raises: BenchError."""
        sock = Connection(self.address, _SILENCE_S).socket
        self._open.append(sock)
        return sock

    def drop(self, sock: socket.socket) -> None:
        """Close a socket with a reset, so that nothing is left of it here."""
        self._open.remove(sock)
        reset(sock)

    def keep_open(self, open_one: Callable[[], socket.socket], count: int) -> list[socket.socket]:
        """Return this many sockets: those that the broker has closed are replaced."""
        for sock in [sock for sock in self._open if is_closed(sock)]:
            self.drop(sock)
        while len(self._open) < count:
            with contextlib.suppress(PeerError, OSError):
                open_one()
        return list(self._open)


def push(sock: socket.socket, octets: bytes, patience_s: float = _PATIENCE_S) -> bool:
    """Send until all is sent, or the broker takes nothing for a moment. Reads nothing.

    Returns whether the connection still stands.
    """
    waiting = memoryview(octets)
    sock.setblocking(False)
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    while waiting:
        if not poll.poll(patience_s * 1000):
            return True
        try:
            waiting = waiting[sock.send(waiting) :]
        except OSError:
            return False
    return True


def push_all(sock: socket.socket, parts: Iterable[bytes], seconds: float = 0.5) -> bool:
    """Push parts until all are sent, or the time is over. Returns as `push`."""
    ends_at = time.monotonic() + seconds
    for part in parts:
        if not push(sock, part):
            return False
        if time.monotonic() > ends_at:
            break
    return True


def is_closed(sock: socket.socket) -> bool:
    """Whether the broker has closed its side. What it sent is thrown away."""
    sock.setblocking(False)
    try:
        while octets := sock.recv(1 << 16):
            if b"\x00\x0a\x00\x32" in octets[:64]:  # connection.close
                return True
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def reset(sock: socket.socket) -> None:
    """Close a socket with a reset."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    sock.close()
