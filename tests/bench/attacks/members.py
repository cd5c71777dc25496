"""Attacks of clients that have logged in, and want too much of what they may."""

import os
import socket
import struct
import time

from amqpstore_tools.client import wire
from amqpstore_tools.client.connection import CHANNEL, Connection
from tests.bench.attacks.attack import MIB, Attack, push, push_all
from tests.bench.interference.dialogue import Dialogue

_HEADER = struct.Struct(">HHQ")
_BASIC_GET = (60, 70)
_RECOVER_ASYNC = (60, 100)
_TIMEOUT_S = 60.0
_NOWHERE = "amqpstore-bench-nowhere"
_FRAME_BYTES = 100_000


def _start(key: str, size: int, *, mandatory: bool = False, table: bytes = b"") -> bytes:
    """Encode a publish up to its body. Args: table, encoded headers."""
    names = wire.short_string("") + wire.short_string(key)
    flags = b"\x01" if mandatory else b"\0"
    method = wire.method(CHANNEL, wire.BASIC_PUBLISH, b"\0\0" + names + flags)
    properties = b"\x20\0" + table if table else b"\0\0"
    return method + wire.frame(wire.HEADER, CHANNEL, _HEADER.pack(60, 0, size) + properties)


def _body(size: int) -> bytes:
    parts = (min(_FRAME_BYTES, size - at) for at in range(0, size, _FRAME_BYTES))
    return b"".join(wire.frame(wire.BODY, CHANNEL, bytes(part)) for part in parts)


def _words(choices: str, count: int) -> str:
    return ".".join(choices[octet % len(choices)] for octet in os.urandom(count))


class _QueueAttack(Attack):
    """An attack with a queue of its own, filled before."""

    size = MIB

    def prepare(self) -> None:
        """Fill the queue."""
        dialogue = Dialogue(self.address, _TIMEOUT_S)
        dialogue.connection.declare_queue(self.name, {})
        dialogue.publish(self.times, ("", self.name), size=self.size)
        dialogue.close()

    def clean(self) -> None:
        """Delete the queue."""
        connection = Connection(self.address, _TIMEOUT_S)
        connection.delete_queue(self.name)
        connection.close()

    def consumer(self) -> socket.socket:
        """Consume the queue without a prefetch."""
        sock = self.member()
        names = wire.short_string(self.name) + wire.short_string("attack")
        sock.sendall(wire.method(CHANNEL, wire.BASIC_CONSUME, b"\0\0" + names + b"\x08" + bytes(4)))
        return sock


class UnreadReturns(Attack):
    """Clients that never read."""

    about = "clients that publish what is returned to them, and never read"
    count = 4

    def prepare(self) -> None:
        """Connect them."""
        self._returned = (_start(_NOWHERE, 60_000, mandatory=True) + _body(60_000)) * 10
        for _ in range(self.times):
            self.member()

    def step(self) -> None:
        """Publish as much as the broker takes."""
        for sock in list(self._open):
            if not push(sock, self._returned, 0.02):
                self.drop(sock)
                self.member()


class UnreadDeliveries(_QueueAttack):
    """A consumer that never reads."""

    about = "MiB in a queue, whose consumer never reads"
    count = 200

    def prepare(self) -> None:
        """Fill the queue, and consume it."""
        super().prepare()
        self.consumer()

    def step(self) -> None:
        """Read nothing."""
        time.sleep(0.1)


class UnreadGets(_QueueAttack):
    """Gets of large messages whose answers are not read."""

    about = "messages of 1 MiB, asked for by 2,000 gets at a time, and not read"
    count = 100

    def step(self) -> None:
        """Ask, and go."""
        sock = self.member()
        get = wire.method(CHANNEL, _BASIC_GET, b"\0\0" + wire.short_string(self.name) + b"\0")
        push(sock, get * 2000)
        time.sleep(0.1)
        self.drop(sock)


class Recovers(_QueueAttack):
    """Everything unacked, again and again."""

    about = "unacked messages, redelivered by one basic.recover-async after the other"
    count = 20_000
    size = 100

    def prepare(self) -> None:
        """Take the messages."""
        super().prepare()
        self._client = Dialogue(self.address, _TIMEOUT_S)
        self._open.append(self._client.connection.socket)
        self._client.take(self.name, self.times)

    def step(self) -> None:
        """Have them redelivered; the answers are not read."""
        push(self._client.connection.socket, wire.method(CHANNEL, _RECOVER_ASYNC, b"\0") * 10)


class Channels(Attack):
    """All channels that there are."""

    about = "channels of a connection, opened one by one"
    count = 65_535

    def prepare(self) -> None:
        """Encode their methods."""
        channels = range(1, self.times + 1)
        opens = [wire.method(channel, wire.CHANNEL_OPEN, b"\0") for channel in channels]
        self._opens = b"".join(opens[1:])

    def step(self) -> None:
        """Open those that may be opened."""
        sock = self.member()
        push(sock, self._opens)
        self.drop(sock)


class HalfBodies(Attack):
    """Publishers that stop in mid-body."""

    about = "publishers that announce 100 MiB, send 15 MiB and stop"
    count = 8

    def prepare(self) -> None:
        """Encode the first part."""
        self._half = _start(_NOWHERE, 100 * MIB) + _body(15 * MIB)

    def step(self) -> None:
        """Have that many; those that the broker has closed are replaced."""
        self.keep_open(self._publisher, self.times)
        time.sleep(0.1)

    def _publisher(self) -> socket.socket:
        sock = self.member()
        push(sock, self._half)
        return sock


class SmallFrames(Attack):
    """A body in the smallest frames."""

    about = "frames of two bytes in a row, for a body of 8 MiB"
    count = 50_000

    def step(self) -> None:
        """Send some of one body."""
        sock = self.member()
        frames = wire.frame(wire.BODY, CHANNEL, b"ab") * self.times
        push_all(sock, [_start(_NOWHERE, 8 * MIB), *[frames] * 20])
        self.drop(sock)


class OpenTransactions(Attack):
    """Transactions that are never committed."""

    about = "messages of 100 kB in a transaction that is never committed"
    count = 3000

    def step(self) -> None:
        """Publish in a transaction until the broker has enough of it."""
        sock = self.member()
        message = _start(_NOWHERE, _FRAME_BYTES) + _body(_FRAME_BYTES)
        push_all(sock, [wire.method(CHANNEL, wire.TX_SELECT), *[message] * self.times], 2.0)
        self.drop(sock)


class DifferentHeaders(Attack):
    """Headers that nothing is gained from remembering."""

    about = "headers of 60 kB in a row, no two alike, with empty bodies"
    count = 50

    def prepare(self) -> None:
        """Connect, and encode them."""
        self._table = bytearray(wire.table({"h": "x" * 60_000, "n": 0}))
        self.member()

    def step(self) -> None:
        """Publish some."""
        parts = []
        for _ in range(self.times):
            self._table[-4:] = os.urandom(4)
            parts.append(_start(_NOWHERE, 0, table=bytes(self._table)))
        if not push(self._open[0], b"".join(parts)):
            self.drop(self._open[0])
            self.member()


class CarbonCopies(DifferentHeaders):
    """Publishes with very many routing keys."""

    about = "publishes in a row to 240 CC keys each, no two alike"
    count = 20

    def prepare(self) -> None:
        """Connect, and encode one."""
        super().prepare()
        keys = b"".join(b"S" + wire.long_string(b"k" * 240) for _ in range(240))
        cc = b"\x02CCA" + wire.long_string(keys) + b"\x01nI" + bytes(4)
        self._table = bytearray(wire.long_string(cc))


class Wildcards(Attack):
    """Routing that takes long."""

    about = "bindings of 120 words of # and *, and keys of 120 words, no two alike"
    count = 1000

    def prepare(self) -> None:
        """Declare an exchange and bind a queue to it that many times."""
        control = Connection(self.address, _TIMEOUT_S)
        control.declare_exchange(self.name, "topic")
        control.declare_queue(self.name, {"x-max-length": 1})
        for _ in range(self.times):
            key = _words("#*a", 120)
            control.bind_queue(self.name, self.name, key)
        control.close()
        self.member()

    def step(self) -> None:
        """Publish some."""
        parts = []
        for _ in range(5):
            key = _words("ab", 120)
            names = wire.short_string(self.name) + wire.short_string(key)
            parts.append(wire.method(CHANNEL, wire.BASIC_PUBLISH, b"\0\0" + names + b"\0"))
            parts.append(wire.frame(wire.HEADER, CHANNEL, _HEADER.pack(60, 0, 0) + b"\0\0"))
        push(self._open[0], b"".join(parts))

    def clean(self) -> None:
        """Delete the exchange and the queue."""
        connection = Connection(self.address, _TIMEOUT_S)
        connection.delete_exchange(self.name)
        connection.delete_queue(self.name)
        connection.close()


class Cascade(Attack):
    """Messages that are dead-lettered from queue to queue."""

    about = "queues in a row, each the dead-letter queue of the one before, with a TTL of 0"
    count = 300

    def prepare(self) -> None:
        """Declare the queues."""
        control = Connection(self.address, _TIMEOUT_S)
        for number in reversed(range(self.times)):
            control.declare_queue(
                f"{self.name}-{number}",
                {
                    "x-message-ttl": 0,
                    "x-dead-letter-exchange": "",
                    "x-dead-letter-routing-key": f"{self.name}-{number + 1}",
                },
            )
        control.close()
        self.member()

    def step(self) -> None:
        """Publish one message, ten times a second."""
        push(self._open[0], _start(f"{self.name}-0", 0))
        time.sleep(0.1)

    def clean(self) -> None:
        """Delete the queues."""
        connection = Connection(self.address, _TIMEOUT_S)
        for number in range(self.times):
            connection.delete_queue(f"{self.name}-{number}")
        connection.close()


class BulkDeclares(Attack):
    """Definitions in bulk."""

    about = "durable queues, declared and deleted in one write, all the time"
    count = 200

    def prepare(self) -> None:
        """Connect."""
        self._client = Dialogue(self.address, _TIMEOUT_S)
        self._open.append(self._client.connection.socket)
        names = [b"\0\0" + wire.short_string(f"{self.name}-{n}") for n in range(self.times)]
        declares = [wire.method(CHANNEL, wire.QUEUE_DECLARE, n + b"\x02" + bytes(4)) for n in names]
        deletes = [wire.method(CHANNEL, wire.QUEUE_DELETE, n + b"\0") for n in names]
        self._declares, self._deletes = b"".join(declares), b"".join(deletes)

    def step(self) -> None:
        """Declare them, and delete them."""
        self._client.say(self._declares, wire.QUEUE_DECLARE_OK, self.times)
        self._client.say(self._deletes, wire.QUEUE_DELETE_OK, self.times)

    def clean(self) -> None:
        """Delete what is left."""
        client = Dialogue(self.address, _TIMEOUT_S)
        client.say(self._deletes, wire.QUEUE_DELETE_OK, self.times)
        client.close()
