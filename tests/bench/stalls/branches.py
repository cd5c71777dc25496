"""Disturbances by branches of distributed transactions: an extension of amqpstore."""

import struct

from amqpstore_tools.client import wire
from tests.bench.stalls.disturbance import Disturbance
from tests.bench.stalls.settling import ScatteredAcks

DTX_SELECT, DTX_SELECT_OK = (100, 10), (100, 11)
DTX_START, DTX_START_OK = (100, 20), (100, 21)
DTX_END, DTX_END_OK = (100, 30), (100, 31)
DTX_PREPARE, DTX_PREPARE_OK = (100, 40), (100, 41)
DTX_COMMIT, DTX_COMMIT_OK = (100, 50), (100, 51)
DTX_ROLLBACK, DTX_ROLLBACK_OK = (100, 60), (100, 61)

_NO_BITS = b"\0"


class Branch(Disturbance):
    """A branch with many publishes is prepared and committed."""

    about = "persistent publishes of one branch (dtx), its prepare and its commit"
    count = 100_000

    def prepare(self) -> None:
        """Start the branch."""
        self.client.connection.declare_queue(self.name, {})
        self.start()

    def start(self) -> None:
        """Start a branch."""
        self.client.connection.call(DTX_SELECT, b"", DTX_SELECT_OK)
        self.ask(DTX_START, DTX_START_OK, _NO_BITS)

    def ask(self, method: wire.MethodId, answer: wire.MethodId, bits: bytes = b"") -> None:
        """Call a method for the branch."""
        xid = struct.pack(">I", 1) + wire.short_string(self.name[:64]) + wire.short_string("")
        self.client.connection.call(method, xid + bits, answer)

    def disturb(self) -> None:
        """Publish, prepare and commit."""
        self.client.publish(self.times, ("", self.name), confirm=False)
        self.ask(DTX_END, DTX_END_OK, _NO_BITS)
        self.ask(DTX_PREPARE, DTX_PREPARE_OK)
        self.ask(DTX_COMMIT, DTX_COMMIT_OK, _NO_BITS)

    def clean(self) -> None:
        """Delete the queue, and roll the branch back, should it still be prepared."""
        super().clean()
        self.client.connection.call(DTX_SELECT, b"", DTX_SELECT_OK)
        self.ask(DTX_ROLLBACK, DTX_ROLLBACK_OK)


class AckingBranch(Branch, ScatteredAcks):
    """A branch with many acks is prepared and rolled back."""

    about = "messages acked in no order in one branch, its prepare and its rollback"

    def prepare(self) -> None:
        """Take the messages, and start the branch."""
        ScatteredAcks.prepare(self)
        self.start()

    def disturb(self) -> None:
        """Ack, prepare and roll back."""
        self.ack_scattered()
        self.ask(DTX_END, DTX_END_OK, _NO_BITS)
        self.ask(DTX_PREPARE, DTX_PREPARE_OK)
        self.ask(DTX_ROLLBACK, DTX_ROLLBACK_OK)


BRANCHES: dict[str, type[Disturbance]] = {"dtx": Branch, "dtx-acks": AckingBranch}
