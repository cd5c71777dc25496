"""Clients that log in by raw sockets: some at a time, or thousands at once."""

import contextlib
import errno
import resource
import select
import socket
import time
from collections import Counter
from typing import NamedTuple

from tests.conformance.wire_client import PROTOCOL_HEADER, connection_open, start_ok, tune_ok

_ADDRESS = "127.0.0.1"
_ANSWERS = start_ok(), tune_ok(10, 131_072, 0) + connection_open("/")
"""The client's answers to connection.start and to connection.tune, after which connection.open-ok
comes.
"""

_PATIENCE_S = 60.0


class Stampede(NamedTuple):
    """The result of many logins at once: how long it took until the last client was served, and how
    often one was thrown out.
    """

    seconds: float
    thrown_out: Counter[str]


def raise_descriptors(count: int) -> bool:
    """Let this process, and those that it starts, open `count` files. Returns whether it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        return False
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    return True


def logins_per_second(port: int, count: int, at_a_time: int) -> float:
    """Log in and close the socket `count` times, from connect to open-ok."""
    began = time.perf_counter()
    with select.epoll() as selector, contextlib.ExitStack() as sockets:
        clients: dict[int, _Client] = {}
        begun = done = 0
        while done < count:
            while begun < count and len(clients) < at_a_time:
                client = _Client(port)
                sockets.callback(client.sock.close)
                clients[client.sock.fileno()] = client
                selector.register(client.sock, select.EPOLLOUT)
                begun += 1
            for descriptor, _ in selector.poll(_PATIENCE_S):
                client = clients[descriptor]
                if client.goes_on(selector):
                    del clients[descriptor]
                    selector.unregister(descriptor)
                    client.sock.close()
                    done += 1
    return count / (time.perf_counter() - began)


def stampede(port: int, count: int) -> Stampede:
    """Have `count` clients connect at once, and stay; one that is thrown out connects again."""
    thrown_out: Counter[str] = Counter()
    clients: dict[int, _Client] = {}
    served: list[_Client] = []
    began = time.perf_counter()
    with select.epoll() as selector:

        def begin() -> None:
            client = _Client(port)
            clients[client.sock.fileno()] = client
            selector.register(client.sock, select.EPOLLOUT)

        for _ in range(count):
            begin()
        while len(served) < count and time.perf_counter() - began < _PATIENCE_S:
            for descriptor, _ in selector.poll(1.0, 2000):
                client = clients[descriptor]
                try:
                    is_served = client.goes_on(selector)
                except OSError as error:
                    thrown_out[errno.errorcode[error.errno or 0]] += 1
                    selector.unregister(descriptor)
                    clients.pop(descriptor).sock.close()
                    begin()
                    continue
                if is_served:
                    served.append(client)
        seconds = time.perf_counter() - began
    for client in clients.values():
        client.sock.close()
    assert len(served) == count, f"{len(served)} of {count} were served; {thrown_out}"
    return Stampede(seconds, thrown_out)


class _Client:
    """One that connects and logs in, as far as its socket lets it."""

    def __init__(self, port: int) -> None:
        self.sock = socket.socket()
        self.sock.setblocking(False)
        self._answers = list(_ANSWERS)
        self._is_connected = False
        self.sock.connect_ex((_ADDRESS, port))

    def goes_on(self, selector: select.epoll) -> bool:
        """Take the next step. Returns whether it was the last. Raises: OSError."""
        if not self._is_connected:
            if number := self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(number, "not connected")
            self.sock.send(PROTOCOL_HEADER)
            self._is_connected = True
            selector.modify(self.sock, select.EPOLLIN)
            return False
        if not self.sock.recv(4096):
            raise OSError(errno.ECONNRESET, "closed by the broker")
        if self._answers:
            self.sock.send(self._answers.pop(0))
            return False
        return True
