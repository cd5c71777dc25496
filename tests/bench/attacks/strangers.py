"""Attacks before a login, which any client that reaches the port can make."""

import contextlib
import os
import resource
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import wait

from amqpstore_tools.client import wire
from amqpstore_tools.client.errors import BenchError
from tests.bench.attacks.attack import MIB, Attack, push, push_all

_SPARE_DESCRIPTORS = 100
_OPENED_AT_ONCE = 32
_TABLE_BYTES = 100 * MIB


class SlowHandshakes(Attack):
    """Slow-loris."""

    about = "connections that send their first bytes one by one, now and then"
    count = 200

    def step(self) -> None:
        """Send one byte on each connection."""
        place = int(time.monotonic() * 2) % len(wire.PROTOCOL_HEADER)
        for sock in self.keep_open(self.stranger, self.times):
            with contextlib.suppress(OSError):
                sock.send(wire.PROTOCOL_HEADER[place : place + 1] if place < 7 else b"A")
        time.sleep(0.2)


class Flood(Attack):
    """Connections without a word."""

    about = "connections that are opened and reset again, all the time"
    count = 50

    def step(self) -> None:
        """Open some, and reset them."""
        for sock in [self.stranger() for _ in range(self.times)]:
            self.drop(sock)


class Idle(Attack):
    """Many connections that are just there."""

    about = "idle connections, each with a channel"
    count = 10_000

    def prepare(self) -> None:
        """Open the connections. Raises: BenchError, if this process may not have enough files
        open.
        """
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most < self.times + _SPARE_DESCRIPTORS:
            raise BenchError(f"only {most} files may be open here (ulimit -n): try a lower --scale")
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        with ThreadPoolExecutor(_OPENED_AT_ONCE) as opening:
            for _ in opening.map(lambda _: self.member(), range(self.times)):
                pass

    def step(self) -> None:
        """Do nothing."""
        time.sleep(0.1)


class WrongLogins(Attack):
    """Passwords are tried."""

    about = "logins at a time with wrong passwords, each another one"
    count = 40

    _tried = 0

    def step(self) -> None:
        """Have that many under way: each that was answered is followed by another."""
        self.keep_open(self._log_in, self.times)
        wait(self._open, 0.05)

    def _log_in(self) -> socket.socket:
        self._tried += 1
        sock = self.greeted()
        user = self.address.user.encode()
        response = b"\0%b\0wrong %d %d" % (user, os.getpid(), self._tried)
        arguments = wire.table({}) + wire.short_string("PLAIN") + wire.long_string(response)
        sock.sendall(
            wire.method(0, wire.CONNECTION_START_OK, arguments + wire.short_string("en_US"))
        )
        return sock


class RandomBytes(Attack):
    """Bytes without any meaning, before a login and after it."""

    about = "random bytes, before a login and after it, in connections of 64 KiB"
    count = 1

    def step(self) -> None:
        """Send some to two connections."""
        for _ in range(self.times):
            for sock in (self.greeted(), self.member()):
                push(sock, os.urandom(1 << 16))
                self.drop(sock)


class HugeTable(Attack):
    """A field table of 100 MB: as properties of a client, and of a message."""

    about = "header tables of 100 MB announced, and their bytes sent as long as they are taken"
    count = 1

    def step(self) -> None:
        """Announce two, and send what is taken of them."""
        size = _TABLE_BYTES.to_bytes(4, "big")
        for sock, start in (
            (self.greeted(), b"\x01\0\0" + size),
            (self.member(), b"\x02\0\x01" + size),
        ):
            push_all(sock, [start, *[bytes(MIB)] * 100])
            self.drop(sock)


class BodiesBeforeLogin(Attack):
    """Publishes of a client that has not logged in."""

    about = "publishes with large bodies before a login"
    count = 1

    def step(self) -> None:
        """Send what is taken of one."""
        sock = self.greeted()
        frames = wire.frame(wire.BODY, 1, bytes(8000)) * 100
        content = wire.publish(
            1, "", "nowhere", b"", properties=bytes(2), frame_max=wire.FRAME_OVERHEAD_BYTES + 1
        )
        push_all(sock, [content, *[frames] * 100])
        self.drop(sock)
