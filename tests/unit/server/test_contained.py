"""A fault of ours with one client, in a task that serves all of them, costs that client alone."""

from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.exceptions import AMQPError

from amqpstore_server.amqp.connection import AmqpConnection
from amqpstore_server.clients.outbox import Outbox
from amqpstore_server.loop.socket_connection import SocketConnection
from amqpstore_tools.testing.broker import BrokerFailedError, MemoryBroker

Patch = pytest.MonkeyPatch


def _first_only(works: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that works, except for the first object it is called with."""
    first: list[object] = []

    def asked(self: object, *arguments: Any) -> Any:
        if not first:
            first.append(self)
        if first[0] is self:
            raise RuntimeError("broken on purpose")
        return works(self, *arguments)

    return asked


def ticks_fail(patch: Patch) -> None:
    patch.setattr(AmqpConnection, "tick", _first_only(AmqpConnection.tick))


def writes_fail(patch: Patch) -> None:
    patch.setattr(Outbox, "next_buffers", _first_only(Outbox.next_buffers))


def ends_fail(patch: Patch) -> None:
    """Giving back what the connection had fails as well."""
    ticks_fail(patch)
    patch.setattr(AmqpConnection, "_release", _first_only(AmqpConnection._release))


def clients_are_not_made(patch: Patch) -> None:
    patch.setattr(SocketConnection, "__init__", _first_only(SocketConnection.__init__))


@pytest.mark.parametrize("fault", [ticks_fail, writes_fail, ends_fail, clients_are_not_made])
def test_a_fault_with_one_client_is_not_the_others_affair(
    fault: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    fault(monkeypatch)
    broker = MemoryBroker()
    parameters = pika.URLParameters(broker.url)
    with pytest.raises(AMQPError):
        first = pika.BlockingConnection(parameters)
        broker.advance(2)
        first.channel()
    with pika.BlockingConnection(parameters) as other:
        broker.advance(2)
        channel = other.channel()
        channel.queue_declare("q")
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"served")
        assert broker.bodies("q") == [b"served"]
    assert broker.is_running
    with pytest.raises(BrokerFailedError, match="broken on purpose"):
        broker.close()
