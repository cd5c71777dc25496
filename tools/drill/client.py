"""The clients of the kill drill, one thread each, on the load generator's own wire client."""

from __future__ import annotations

import random
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tools.bench import frames, wire
from tools.bench.connection import CHANNEL, Address, Connection
from tools.bench.errors import ConnectError, PeerError

_KEY = struct.Struct(">QII")
_LARGEST_BODY = 20 << 10
_RECEIVE_BYTES = 1 << 16
_TIMEOUT_S = 30.0

QUEUES = ("drill-left", "drill-right")
FANOUT = "drill-both"


class Key(NamedTuple):
    """Names a message: the number of the run, the publisher, and its place in what that sent."""

    run: int
    publisher: int
    place: int


def body_of(key: Key) -> bytes:
    """A body that tells its key, and can be made again from it."""
    rng = random.Random(repr(tuple(key)))  # noqa: S311 (no secret)
    return _KEY.pack(*key) + rng.randbytes(rng.choice([0, 50, 600, rng.randint(0, _LARGEST_BODY)]))


def key_of(body: bytes) -> Key | None:
    """What a body says of itself; None where it is too short to say it."""
    return Key(*_KEY.unpack_from(body)) if len(body) >= _KEY.size else None


def routes_of(key: Key) -> tuple[str, ...]:
    """The queues that the message goes to: one of them, or both by the fanout exchange."""
    return random.Random(f"route {tuple(key)}").choice([QUEUES[:1], QUEUES[1:], QUEUES])  # noqa: S311 (no secret)


class Client(threading.Thread):
    """A connection, in use until the broker is gone; `failure` says what else went wrong."""

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
            # The broker may be killed at any moment, this one too.
            return
        try:
            connection.socket.settimeout(_TIMEOUT_S)
            self.work(connection)
        except TimeoutError:
            self.failure = f"{type(self).__name__}: the broker was silent for {_TIMEOUT_S:.0f} s"
        except PeerError as error:
            if "closed the socket" not in str(error):
                self.failure = str(error)
        except OSError:
            pass
        finally:
            connection.abandon()

    def work(self, connection: Connection) -> None:
        """Raises: PeerError, OSError, when the connection is lost."""
        raise NotImplementedError

    def frames(self, connection: Connection) -> Iterator[frames.Frame]:
        """The frames of one read; they are in `buffer` until the next."""
        chunk = connection.socket.recv(_RECEIVE_BYTES)
        if not chunk:
            raise PeerError("the broker closed the socket")
        self._received += chunk
        at = 0
        for frame in frames.whole_frames(self._received, 0, len(self._received)):
            at = frame.end
            frames.raise_if_fatal(self._received, frame)
            yield frame
        del self._received[:at]


class Publisher(Client):
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
                self.sent.append(key)
                waiting[len(self.sent)] = key
                octets.append(self._encoded(key, connection.frame_max))
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

    @staticmethod
    def _encoded(key: Key, frame_max: int) -> bytes:
        routes = routes_of(key)
        exchange, routing_key = (FANOUT, "") if routes == QUEUES else ("", routes[0])
        return wire.publish(
            CHANNEL, exchange, routing_key, body_of(key), persistent=True, frame_max=frame_max
        )


@dataclass
class _Coming:
    """A delivery of which the body is not all there yet."""

    tag: int = 0
    missing_bytes: int = 0
    parts: list[bytes] = field(default_factory=list)


class Consumer(Client):
    """Takes from a queue; acks some at once, and holds the others until the end."""

    def __init__(self, address: Address, queue: str, rng: random.Random) -> None:
        super().__init__(address)
        self.queue = queue
        self.acked: set[Key] = set()
        self.taken = 0
        self._rng = rng

    def work(self, connection: Connection) -> None:
        connection.set_prefetch(64)
        connection.send_consume(self.queue, "drill", auto_ack=False)
        coming = _Coming()
        while True:
            answer: list[bytes] = []
            for frame in self.frames(connection):
                if self._is_whole(frame, coming):
                    answer += self._settled(coming)
            if answer:
                connection.socket.sendall(b"".join(answer))

    def _is_whole(self, frame: frames.Frame, coming: _Coming) -> bool:
        """Add a frame to a delivery; whether that is complete now."""
        received = self._received
        if frames.method_of(received, frame) == wire.BASIC_DELIVER:
            arguments = frames.arguments_of(received, frame)
            _, at = wire.read_short_string(arguments, 0)
            coming.tag = int.from_bytes(arguments[at : at + 8], "big")
            return False
        if frame.kind == wire.HEADER:
            coming.missing_bytes = int.from_bytes(
                received[frame.payload + 4 : frame.payload + 12], "big"
            )
            coming.parts = []
        elif frame.kind == wire.BODY:
            part = bytes(received[frame.payload : frame.end - 1])
            coming.parts.append(part)
            coming.missing_bytes -= len(part)
        else:
            return False
        return coming.missing_bytes == 0

    def _settled(self, coming: _Coming) -> list[bytes]:
        self.taken += 1
        key = key_of(b"".join(coming.parts))
        draw = self._rng.random()
        if key is not None and draw < 0.6:
            # Noted first: from now on it may be gone.
            self.acked.add(key)
            return [wire.method(CHANNEL, wire.BASIC_ACK, struct.pack(">QB", coming.tag, 0))]
        if draw < 0.9:
            requeue = struct.pack(">QB", coming.tag, 2)
            return [wire.method(CHANNEL, wire.BASIC_NACK, requeue)]
        return []
