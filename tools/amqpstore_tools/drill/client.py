"""The clients of the kill drill, one thread each, on the load generator's client."""

from __future__ import annotations

import contextlib
import random
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from amqpstore_tools.client import frames, wire
from amqpstore_tools.client.connection import CHANNEL, Address, Connection, receive
from amqpstore_tools.client.errors import ConnectError, PeerError

_KEY = struct.Struct(">QII")
_LARGEST_BODY = 20 << 10
_REQUEUE = 2
"""The requeue bit in basic.nack."""

_MULTIPLE = 1
"""The bit in basic.ack for all deliveries up to this one."""

_TIMEOUT_S = 30.0
_TRANSACTION = 5
"""How many messages are published, or moved, in one transaction."""

QUEUES = ("drill-left", "drill-right")
"""Publishers fill them, directly and in transactions; consumers take from them."""

FANOUT = "drill-both"
MOVES = ("drill-source", "drill-target")
"""Messages move from the first to the second, in transactions."""

REJECTS = ("drill-rejecting", "drill-dead")
"""Messages in the first are rejected, and dead-lettered to the second."""

MARKS = "drill-marks"
"""Keeps the last message only: it is published to learn how far the log has come."""

TRANSACTED = 2
"""The number of the publisher that uses transactions."""

_TO_MOVE, _TO_REJECT = 3, 4
PUBLISHERS = (0, 1, _TO_MOVE, _TO_REJECT)
"""The numbers of the publishers that use confirms."""


class Key(NamedTuple):
    """Names a message: the number of the run, the publisher, and its place in what that publisher
    sent.
    """

    run: int
    publisher: int
    number: int


def body_of(key: Key) -> bytes:
    """Return a body that contains its key, and can be reproduced from it."""
    rng = random.Random(repr(tuple(key)))  # noqa: S311 (no secret)
    return _KEY.pack(*key) + rng.randbytes(rng.choice([0, 50, 600, rng.randint(0, _LARGEST_BODY)]))


def key_of(body: bytes) -> Key | None:
    """Return the key in a body; None if the body is too short."""
    return Key(*_KEY.unpack_from(body)) if len(body) >= _KEY.size else None


def routes_of(key: Key) -> tuple[str, ...]:
    """Return the queues that the message goes to: one of them, or both by the fanout exchange."""
    if key.publisher == _TO_MOVE:
        return MOVES[:1]
    if key.publisher == _TO_REJECT:
        return REJECTS[:1]
    return random.Random(f"route {tuple(key)}").choice([QUEUES[:1], QUEUES[1:], QUEUES])  # noqa: S311 (no secret)


def homes_of(key: Key) -> tuple[str, ...]:
    """Return the queues where the message may be, now or later."""
    return {_TO_MOVE: MOVES, _TO_REJECT: REJECTS}.get(key.publisher) or routes_of(key)


def transaction_of(key: Key) -> tuple[int, int] | None:
    """Return the transaction it was published in: the run and a number."""
    return (key.run, key.number // _TRANSACTION) if key.publisher == TRANSACTED else None


class Client(threading.Thread):
    """A connection that is used until the broker is gone; `failure` says what else went wrong."""

    def __init__(self, address: Address) -> None:
        super().__init__(daemon=True)
        self.failure = ""
        self._address = address
        self._received = bytearray()

    def run(self) -> None:
        """Work until the connection is lost."""
        try:
            connection = Connection(self._address)
        except ConnectError:
            # The broker may be killed at any moment, including this one.
            return
        try:
            connection.socket.settimeout(_TIMEOUT_S)
            self.work(connection)
        except TimeoutError:
            self.failure = f"{type(self).__name__}: the broker was silent for {_TIMEOUT_S:.0f} s"
        except PeerError as error:
            # A killed broker looks like this from here.
            if "closed the socket" not in str(error):
                self.failure = str(error)
        except OSError:
            pass
        finally:
            connection.abandon()

    def work(self, connection: Connection) -> None:
        """Raises: PeerError, OSError, when the connection is lost."""
        raise NotImplementedError

    @staticmethod
    def encoded(key: Key, frame_max: int) -> bytes:
        """Encode a publish of the message to its queues."""
        routes = routes_of(key)
        exchange, routing_key = (FANOUT, "") if routes == QUEUES else ("", routes[0])
        return wire.publish(
            CHANNEL,
            exchange,
            routing_key,
            body_of(key),
            properties=wire.delivery_mode(persistent=True),
            frame_max=frame_max,
        )

    def frames(self, connection: Connection) -> Iterator[frames.Frame]:
        """Yield the frames of one read; they are in `buffer` until the next."""
        self._received += receive(connection.socket)
        at = 0
        for frame in frames.whole_frames(self._received, 0, len(self._received)):
            at = frame.end
            frames.raise_if_fatal(self._received, frame)
            yield frame
        del self._received[:at]


class DrillPublisher(Client):
    """Sends persistent messages, at most `window` of them unconfirmed."""

    def __init__(
        self, address: Address, run: int, number: int, window: int, confirms: threading.Semaphore
    ) -> None:
        super().__init__(address)
        self.sent: list[Key] = []
        self.confirmed: set[Key] = set()
        self._run = run
        self._number = number
        self._window = window
        self._confirms = confirms

    def work(self, connection: Connection) -> None:
        connection.select_confirms()
        waiting: dict[int, Key] = {}
        while True:
            octets = []
            while len(waiting) < self._window:
                key = Key(self._run, self._number, len(self.sent))
                # The message is noted before it is sent: it may arrive even if the send fails.
                self.sent.append(key)
                waiting[len(self.sent)] = key
                octets.append(self.encoded(key, connection.frame_max))
            connection.socket.sendall(b"".join(octets))
            for frame in self.frames(connection):
                method = frames.method_of(self._received, frame)
                if method not in (wire.BASIC_ACK, wire.BASIC_NACK):
                    continue
                tag, flags = struct.unpack_from(">QB", self._received, frame.payload + 4)
                tags = [one for one in waiting if one <= tag] if flags & 1 else [tag]
                settled = [waiting.pop(one) for one in tags]
                if method == wire.BASIC_ACK:
                    self.confirmed.update(settled)
                    self._confirms.release(len(settled) or 1)


class Transactor(Client):
    """Publishes some messages in each transaction, one transaction after the other."""

    def __init__(self, address: Address, run: int) -> None:
        super().__init__(address)
        self.sent: list[Key] = []
        self.confirmed: set[Key] = set()
        self._run = run

    def work(self, connection: Connection) -> None:
        connection.call(wire.TX_SELECT, b"", wire.TX_SELECT_OK)
        while True:
            keys = [
                Key(self._run, TRANSACTED, len(self.sent) + number)
                for number in range(_TRANSACTION)
            ]
            self.sent += keys
            connection.socket.sendall(
                b"".join(self.encoded(key, connection.frame_max) for key in keys)
            )
            connection.call(wire.TX_COMMIT, b"", wire.TX_COMMIT_OK)
            self.confirmed.update(keys)


@dataclass
class _Coming:
    """A delivery whose body is not complete yet."""

    tag: int = 0
    is_redelivered: bool = False
    missing_bytes: int = 0
    chunks: list[bytes] = field(default_factory=list)


class Taker(Client):
    """Takes from a queue. `unflagged`: delivered without the redelivered flag."""

    def __init__(self, address: Address, queue: str) -> None:
        super().__init__(address)
        self.queue = queue
        self.taken = 0
        self.unflagged: set[Key] = set()

    def answer(self, tag: int, key: Key | None) -> list[bytes]:
        """Return the answer to a message."""
        raise NotImplementedError

    def work(self, connection: Connection) -> None:
        connection.set_prefetch(64)
        connection.send_consume(self.queue, "drill", auto_ack=False)
        coming = _Coming()
        while True:
            answer: list[bytes] = []
            for frame in self.frames(connection):
                if self._is_whole(frame, coming):
                    self.taken += 1
                    key = key_of(b"".join(coming.chunks))
                    if key is not None and not coming.is_redelivered:
                        self.unflagged.add(key)
                    answer += self.answer(coming.tag, key)
                elif frames.method_of(self._received, frame) == wire.TX_COMMIT_OK:
                    answer += self.committed()
            if answer:
                connection.socket.sendall(b"".join(answer))

    def committed(self) -> list[bytes]:
        """Return what to send after a transaction was committed."""
        return []

    def _is_whole(self, frame: frames.Frame, coming: _Coming) -> bool:
        """Add a frame to a delivery. Returns whether that is complete now."""
        received = self._received
        if frames.method_of(received, frame) == wire.BASIC_DELIVER:
            arguments = frames.arguments_of(received, frame)
            _, at = wire.read_short_string(arguments, 0)
            coming.tag = int.from_bytes(arguments[at : at + 8], "big")
            coming.is_redelivered = bool(arguments[at + 8] & 1)
            return False
        if frame.kind == wire.HEADER:
            coming.missing_bytes = int.from_bytes(
                received[frame.payload + 4 : frame.payload + 12], "big"
            )
            coming.chunks = []
        elif frame.kind == wire.BODY:
            chunk = bytes(received[frame.payload : frame.end - 1])
            coming.chunks.append(chunk)
            coming.missing_bytes -= len(chunk)
        else:
            return False
        return coming.missing_bytes == 0


class Drainer(Taker):
    """Takes all messages that are in a queue, with their redelivered flags, and acks them at the
    end.

    A broker delivers before its log says so on disk, or on enough members of a group; that it does
    is known once a message is confirmed that was published later: `is_logged`.
    """

    def __init__(self, address: Address, queue: str) -> None:
        super().__init__(address, queue)
        self.bodies: list[tuple[bytes, bool]] = []
        self.is_done = False
        self.is_logged = False

    def work(self, connection: Connection) -> None:
        connection.select_confirms()
        left = connection.count_ready(self.queue)
        connection.send_consume(self.queue, "drill", auto_ack=False)
        coming = _Coming()
        while left:
            for frame in self.frames(connection):
                if self._is_whole(frame, coming):
                    self.bodies.append((b"".join(coming.chunks), coming.is_redelivered))
                    left -= 1
        all_of_them = struct.pack(">QB", coming.tag, _MULTIPLE)
        connection.socket.sendall(wire.method(CHANNEL, wire.BASIC_ACK, all_of_them))
        self.is_done = True
        # If the broker is lost now, so may be what it has not logged: that is no fault.
        with contextlib.suppress(PeerError, OSError):
            self._wait_until_logged(connection)
            connection.close(bytes(self._received))

    def _wait_until_logged(self, connection: Connection) -> None:
        persistent = wire.delivery_mode(persistent=True)
        connection.socket.sendall(
            wire.publish(
                CHANNEL, "", MARKS, b"", properties=persistent, frame_max=connection.frame_max
            )
        )
        while not self.is_logged:
            for frame in self.frames(connection):
                self.is_logged |= frames.method_of(self._received, frame) == wire.BASIC_ACK


class DrillConsumer(Taker):
    """Acks some messages at once, requeues some, and keeps the others unacked until the end.

    `given_back` are those that it requeued, and then received again unflagged.
    """

    def __init__(self, address: Address, queue: str, rng: random.Random) -> None:
        super().__init__(address, queue)
        self.acked: set[Key] = set()
        self.given_back: set[Key] = set()
        self._requeued: set[Key] = set()
        self._rng = rng

    def answer(self, tag: int, key: Key | None) -> list[bytes]:
        if key is not None and key in self._requeued and key in self.unflagged:
            self.given_back.add(key)
        draw = self._rng.random()
        if key is not None and draw < 0.6:
            # Noted first: from now on it may be gone.
            self.acked.add(key)
            return [wire.method(CHANNEL, wire.BASIC_ACK, struct.pack(">QB", tag, 0))]
        if key is not None and draw < 0.9:
            self._requeued.add(key)
            self.unflagged.discard(key)
            return [wire.method(CHANNEL, wire.BASIC_NACK, struct.pack(">QB", tag, _REQUEUE))]
        return []


class Rejecter(Taker):
    """Rejects most messages, which are then dead-lettered, and keeps the others unacked until the
    end.
    """

    def __init__(self, address: Address, rng: random.Random) -> None:
        super().__init__(address, REJECTS[0])
        self._rng = rng

    def answer(self, tag: int, key: Key | None) -> list[bytes]:
        if key is not None and self._rng.random() < 0.9:
            return [wire.method(CHANNEL, wire.BASIC_NACK, struct.pack(">QB", tag, 0))]
        return []


class Mover(Taker):
    """Moves messages: each transaction publishes some to the target, and acks them.

    `moved` are those whose commit was answered; `delivered` arrived before a commit was sent that
    was answered, so that their delivery is durable.
    """

    def __init__(self, address: Address) -> None:
        super().__init__(address, MOVES[0])
        self.moved: set[Key] = set()
        self.delivered: set[Key] = set()
        self._waiting: list[tuple[int, Key]] = []
        self._came: set[Key] = set()
        self._committing: list[Key] = []
        self._came_before: set[Key] = set()
        self._frame_max = 0

    def work(self, connection: Connection) -> None:
        self._frame_max = connection.frame_max
        connection.call(wire.TX_SELECT, b"", wire.TX_SELECT_OK)
        super().work(connection)

    def answer(self, tag: int, key: Key | None) -> list[bytes]:
        if key is None:
            return []
        self._waiting.append((tag, key))
        self._came.add(key)
        return [] if self._committing else self._commit()

    def committed(self) -> list[bytes]:
        self.moved.update(self._committing)
        self.delivered |= self._came_before
        self._committing = []
        return self._commit()

    def _commit(self) -> list[bytes]:
        if len(self._waiting) < _TRANSACTION:
            return []
        some, self._waiting = self._waiting[:_TRANSACTION], self._waiting[_TRANSACTION:]
        self._committing = [key for _, key in some]
        self._came_before = set(self._came)
        octets: list[bytes] = []
        for tag, key in some:
            octets.append(
                wire.publish(
                    CHANNEL,
                    "",
                    MOVES[1],
                    body_of(key),
                    properties=wire.delivery_mode(persistent=True),
                    frame_max=self._frame_max,
                )
            )
            octets.append(wire.method(CHANNEL, wire.BASIC_ACK, struct.pack(">QB", tag, 0)))
        return [*octets, wire.method(CHANNEL, wire.TX_COMMIT)]
