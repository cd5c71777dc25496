"""One disturbance: work of one client that may hold up all others."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from amqpstore_tools.client import wire
from amqpstore_tools.client.connection import CHANNEL, Address
from amqpstore_tools.client.errors import BenchError
from tests.bench.interference.dialogue import Dialogue


class Disturbance(ABC):
    """One disturbance, on a connection of its own: prepared, performed once, cleaned up."""

    about: ClassVar[str]
    count: ClassVar[int]

    def __init__(self, address: Address, name: str, count: int, timeout_s: float) -> None:
        self.name = name  # of queues and exchanges: begins with it
        self.times = count
        self._address = address
        self._timeout_s = timeout_s
        self.client = Dialogue(address, timeout_s)

    @abstractmethod
    def prepare(self) -> None:
        """Do what is not measured."""

    @abstractmethod
    def disturb(self) -> None:
        """Perform it, and return when the broker has answered that it is done."""

    def clean(self) -> None:
        """Remove what is left."""
        self.client.connection.delete_queue(self.name)

    def finish(self) -> None:
        """Clean up, whatever has failed: on a new connection, as the old one may be closed."""
        self.client.connection.abandon()
        with contextlib.suppress(BenchError, OSError):
            self.client = Dialogue(self._address, self._timeout_s)
            self.clean()
            self.client.close()

    def names(self) -> list[str]:
        """Return names for this many queues."""
        return [f"{self.name}-{number:06}" for number in range(self.times)]

    def declare_all(self, names: Iterable[str], **arguments: int) -> None:
        """Declare durable queues, in one write; `max_length` is x-max-length."""
        table = wire.table({f"x-{key.replace('_', '-')}": arguments[key] for key in arguments})
        octets = [method(wire.QUEUE_DECLARE, name, b"\x02" + table) for name in names]
        self.client.say(b"".join(octets), wire.QUEUE_DECLARE_OK, len(octets))

    def delete_all(self, names: Iterable[str]) -> None:
        """Delete queues, in one write."""
        octets = [method(wire.QUEUE_DELETE, name, b"\0") for name in names]
        self.client.say(b"".join(octets), wire.QUEUE_DELETE_OK, len(octets))

    def bind_all(self, bindings: Iterable[tuple[str, str]]) -> None:
        """Bind queues by keys to the exchange of this name, in one write."""
        after = b"\0" + wire.table({})
        octets = [
            method(
                wire.QUEUE_BIND,
                queue,
                wire.short_string(self.name) + wire.short_string(key) + after,
            )
            for queue, key in bindings
        ]
        self.client.say(b"".join(octets), wire.QUEUE_BIND_OK, len(octets))


def method(method_id: wire.MethodId, queue: str, rest: bytes) -> bytes:
    """Return the frame of a method that names a queue first."""
    return wire.method(CHANNEL, method_id, b"\0\0" + wire.short_string(queue) + rest)
