"""The client that makes small requests, in a process of its own, and records how long it waits.

It publishes a message every 5 ms on one connection, and on another asks for a `basic.qos-ok`, which
needs no disk: that time is how long the broker's loop was busy with others. Both are timed from
when they were due, whether or not earlier ones were answered, so that a stall counts for all that
fall into it.
"""

import signal
import socket
import struct
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait

from amqpstore_tools.bench.board import now_ns
from amqpstore_tools.bench.histogram import Histogram
from amqpstore_tools.bench.messages import VariedBlock
from amqpstore_tools.client import frames, wire
from amqpstore_tools.client.confirms import ConfirmLedger
from amqpstore_tools.client.connection import CHANNEL, Address, Connection, receive
from amqpstore_tools.client.errors import BenchError
from tests.bench.forked import ForkedProcess

INTERVAL_NS = 5_000_000
_BODY_BYTES = 100
_SETUP_LIMIT_S = 30.0

Sample = tuple[int, int]
"""The time when a request was due, and how long it took, in nanoseconds."""


@dataclass
class Waits:
    """Everything that the quiet client waited for."""

    confirms: list[Sample] = field(default_factory=list)
    answers: list[Sample] = field(default_factory=list)


def histogram(samples: list[Sample], since_ns: int, until_ns: int) -> Histogram:
    """Return a histogram of the samples that were due between two moments."""
    counted = Histogram()
    for due_ns, took_ns in samples:
        if since_ns <= due_ns < until_ns:
            counted.record(took_ns)
    return counted


class QuietClient(ForkedProcess):
    """Runs the process. Leaving the context ends it."""

    def __init__(self, address: Address, queue: str, limit_s: float) -> None:
        self._limit_s = limit_s

        def work(pipe: Pipe) -> None:
            signal.alarm(int(limit_s) + 60)  # if the parent is killed
            pipe.send(_stay(address, queue, pipe))

        super().__init__("quiet client", work)

    def wait_until_ready(self) -> None:
        """Return when the client publishes. Raises: BenchError."""
        self.receive(_SETUP_LIMIT_S)

    def finish(self) -> Waits:
        """Stop it, and return its waits. Raises: BenchError."""
        self.send("stop")
        waits = self.receive(self._limit_s)
        if not isinstance(waits, Waits):
            raise BenchError(f"the quiet client reported {waits!r}")
        return waits


def _stay(address: Address, queue: str, pipe: Pipe) -> Waits:
    publishing, asking = Connection(address), Connection(address)
    publishing.declare_queue(queue, {})
    publishing.select_confirms()
    block = VariedBlock(
        [("", queue)], size=_BODY_BYTES, persistent=True, frame_max=publishing.frame_max
    )
    question = wire.method(CHANNEL, wire.BASIC_QOS, struct.pack(">IHB", 0, 0, 0))
    for connection in (publishing, asking):
        connection.socket.settimeout(None)
    waits = Waits()
    publishes: list[int] = []
    questions: deque[int] = deque()

    def settled(first: int, last: int) -> None:
        now = now_ns()
        for due_ns in publishes[first - 1 : last]:
            waits.confirms.append((due_ns, now - due_ns))

    ledger = ConfirmLedger(settled)
    unread = bytearray()
    pipe.send("ready")
    due_ns = now_ns()
    stopping = False
    while not stopping or questions or ledger.confirmed < len(publishes):
        while not stopping and due_ns <= now_ns():
            publishing.socket.sendall(block.take(1))
            publishes.append(due_ns)
            asking.socket.sendall(question)
            questions.append(due_ns)
            due_ns += INTERVAL_NS
        wait_s = 0.05 if stopping else max(0, due_ns - now_ns()) / 1e9
        watched: list[socket.socket | Pipe] = [publishing.socket, asking.socket, pipe]
        readable = wait(watched, wait_s)
        if publishing.socket in readable:
            ledger.received(receive(publishing.socket))
        if asking.socket in readable:
            unread += receive(asking.socket)
            for _ in range(_answers(unread)):
                asked_ns = questions.popleft()
                waits.answers.append((asked_ns, now_ns() - asked_ns))
        if pipe in readable:
            pipe.recv()
            stopping = True
    publishing.delete_queue(queue)
    publishing.close()
    asking.close(bytes(unread))
    return waits


def _answers(unread: bytearray) -> int:
    """Remove the whole frames; returns how many were answers."""
    answers = end = 0
    for frame in frames.whole_frames(unread, 0, len(unread)):
        frames.raise_if_fatal(unread, frame)
        answers += frames.method_of(unread, frame) == wire.BASIC_QOS_OK
        end = frame.end
    del unread[:end]
    return answers
