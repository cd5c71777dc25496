"""Disturbances by many queues, consumers or bindings, and by how messages are sent and taken."""

import socket

from amqpstore_tools.client import wire
from amqpstore_tools.client.connection import CHANNEL
from amqpstore_tools.client.errors import BenchError
from tests.bench.interference.dialogue import Dialogue
from tests.bench.stalls.disturbance import Disturbance, method

_LARGE_BYTES = 20_000
_LARGE = 500
_PUBLISHES = 100
_CONSUME_OK = (60, 21)


class ExclusiveQueues(Disturbance):
    """A client that has many exclusive queues disconnects."""

    about = "exclusive queues of a client whose socket is closed"
    count = 5000

    def prepare(self) -> None:
        """Declare them."""
        octets = [
            method(wire.QUEUE_DECLARE, name, b"\x04" + wire.table({})) for name in self.names()
        ]
        self.client.say(b"".join(octets), wire.QUEUE_DECLARE_OK, len(octets))

    def disturb(self) -> None:
        """Close the socket without a close method, and declare the last of them again."""
        self.client.connection.socket.shutdown(socket.SHUT_RDWR)
        self.client.connection.abandon()
        self.client = Dialogue(self._address, self._timeout_s)
        self.client.connection.declare_queue(self.names()[-1], {})

    def clean(self) -> None:
        """Delete the one that was declared again."""
        self.client.connection.delete_queue(self.names()[-1])


class Cancels(Disturbance):
    """A client cancels many consumers."""

    about = "consumers of a queue cancelled in one write"
    count = 10_000

    def prepare(self) -> None:
        """Start them."""
        self.client.connection.declare_queue(self.name, {})
        after = b"\0" + wire.table({})
        octets = [
            method(wire.BASIC_CONSUME, self.name, wire.short_string(tag) + after)
            for tag in self.names()
        ]
        self.client.say(b"".join(octets), _CONSUME_OK, len(octets))

    def disturb(self) -> None:
        """Cancel them."""
        octets = [
            wire.method(CHANNEL, wire.BASIC_CANCEL, wire.short_string(tag) + b"\0")
            for tag in self.names()
        ]
        self.client.say(b"".join(octets), wire.BASIC_CANCEL_OK, len(octets))


class HeadersBindings(Disturbance):
    """A headers exchange with many bindings routes messages."""

    about = f"bindings of a headers exchange, to which {_PUBLISHES} messages are published"
    count = 10_000

    def prepare(self) -> None:
        """Bind a queue."""
        self.client.connection.declare_exchange(self.name, "headers")
        self.client.connection.declare_queue(self.name, {})
        names = wire.short_string(self.name) + wire.short_string("") + b"\0"
        octets = [
            method(wire.QUEUE_BIND, self.name, names + wire.table({"number": name}))
            for name in self.names()
        ]
        self.client.say(b"".join(octets), wire.QUEUE_BIND_OK, len(octets))

    def disturb(self) -> None:
        """Publish."""
        self.client.publish(_PUBLISHES, (self.name, ""))

    def clean(self) -> None:
        """Delete queue and exchange."""
        super().clean()
        self.client.connection.delete_exchange(self.name)


class SmallAfterLarge(Disturbance):
    """A client that has sent large messages sends very small ones."""

    about = "transient messages of 1 byte, after large ones"
    count = 100_000

    def prepare(self) -> None:
        """Send large ones."""
        self.client.connection.declare_queue(self.name, {"x-max-length": 1})
        self.client.publish(
            _LARGE, ("", self.name), size=_LARGE_BYTES, persistent=False, confirm=False
        )

    def disturb(self) -> None:
        """Send small ones."""
        self.client.publish(
            self.times, ("", self.name), size=1, persistent=False, vary=False, confirm=False
        )
        if self.client.connection.count_ready(self.name) > 1:
            raise BenchError("the limit of the queue was not kept")


class Drain(Disturbance):
    """A consumer without a prefetch takes a long queue."""

    about = "messages taken by a consumer without a prefetch"
    count = 1_000_000

    def prepare(self) -> None:
        """Fill the queue."""
        self.client.connection.declare_queue(self.name, {})
        self.client.publish(self.times, ("", self.name))
        self.client.close()
        self.client = Dialogue(self._address, self._timeout_s)

    def disturb(self) -> None:
        """Take everything."""
        self.client.take(self.name, self.times)


CROWDS: dict[str, type[Disturbance]] = {
    "exclusive": ExclusiveQueues,
    "cancels": Cancels,
    "headers": HeadersBindings,
    "small-reads": SmallAfterLarge,
    "drain": Drain,
}
