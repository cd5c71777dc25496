"""Disturbances by the order in which a client settles its messages, and by limits in bytes."""

import socket
import struct
import time
from collections.abc import Iterable

from amqpstore_tools.client import wire
from amqpstore_tools.client.connection import CHANNEL
from amqpstore_tools.client.errors import BenchError
from tests.bench.interference.dialogue import Dialogue
from tests.bench.stalls.disturbance import Disturbance
from tests.bench.stalls.disturbances import Purge, Requeue

_STRIDE = 7919  # a prime
_POLL_S = 0.02
_QOS = wire.method(CHANNEL, wire.BASIC_QOS, struct.pack(">IHB", 0, 0, 0))


class ScatteredAcks(Requeue):
    """A consumer acks its messages one by one, in no order."""

    about = "messages acked one by one, in another order than they came"
    count = 100_000

    def ack_scattered(self, last: bytes = _QOS, answer: wire.MethodId = wire.BASIC_QOS_OK) -> None:
        """Ack all of them, then send the last method, and wait for its answer."""
        # Neighbours are far from each other, and none comes twice.
        step = _STRIDE if self.times % _STRIDE else 1
        tags = (number * step % self.times + 1 for number in range(self.times))
        self.client.say(_acks(tags) + last, answer, 1)

    def disturb(self) -> None:
        """Ack."""
        self.ack_scattered()


class ScatteredTx(ScatteredAcks):
    """Scattered acks in a transaction."""

    about = "messages acked in no order in one tx, and its commit"
    end = wire.TX_COMMIT, wire.TX_COMMIT_OK

    def prepare(self) -> None:
        """Select tx, and take the messages."""
        Purge.prepare(self)
        self.take_all(transacted=True)

    def disturb(self) -> None:
        """Ack, and commit or roll back."""
        method, answer = self.end
        self.ack_scattered(wire.method(CHANNEL, method), answer)


class ScatteredRollback(ScatteredTx):
    """Scattered acks in a transaction that is rolled back."""

    about = "messages acked in no order in one tx, and its rollback"
    end = wire.TX_ROLLBACK, wire.TX_ROLLBACK_OK


class Gaps(ScatteredAcks):
    """A consumer that has acked every other message disconnects."""

    about = "unacked messages, every other one of which was acked, as the socket is closed"

    def prepare(self) -> None:
        """Take the messages, and ack every other one."""
        super().prepare()
        self.client.say(_acks(range(1, self.times + 1, 2)) + _QOS, wire.BASIC_QOS_OK, 1)

    def disturb(self) -> None:
        """Close the socket without a close method, and wait until the others are ready."""
        self.client.connection.socket.shutdown(socket.SHUT_RDWR)
        self.client.connection.abandon()
        self.client = Dialogue(self._address, self._timeout_s)
        deadline_s = time.monotonic() + self._timeout_s
        while self.client.connection.count_ready(self.name) < self.times // 2:
            if time.monotonic() > deadline_s:
                raise BenchError(f"{self.times // 2} messages were not ready in time")
            time.sleep(_POLL_S)


class BytesTaken(Purge):
    """A consumer with a limit in bytes takes a long queue: RabbitMQ refuses prefetch-size."""

    about = "messages taken by a consumer with a prefetch-size"
    count = 200_000

    def disturb(self) -> None:
        """Take everything."""
        self.client.close()
        self.client = Dialogue(self._address, self._timeout_s)
        limit = struct.pack(">IHB", self.times * 200, 0, 0)
        self.client.connection.call(wire.BASIC_QOS, limit, wire.BASIC_QOS_OK)
        self.client.take(self.name, self.times)


def _acks(tags: Iterable[int]) -> bytes:
    """Return an ack of each tag alone."""
    return b"".join(
        wire.method(CHANNEL, wire.BASIC_ACK, struct.pack(">QB", tag, 0)) for tag in tags
    )


SETTLING: dict[str, type[Disturbance]] = {
    "acks": ScatteredAcks,
    "tx-scattered": ScatteredTx,
    "tx-scattered-back": ScatteredRollback,
    "gaps": Gaps,
    "prefetch-size": BytesTaken,
}
