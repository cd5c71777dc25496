"""The status column of server/PROTOCOL.md, held against what a connection really answers."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from amqpstore import Store
from amqpstore.catalog.catalog import Change
from amqpstore_server.amqp.connection import AmqpConnection
from amqpstore_server.amqp.product import Product
from amqpstore_server.broker.broker import Broker
from amqpstore_server.broker.definitions.rows import name_key
from amqpstore_server.broker.exchanges import EXCHANGE_TYPES
from amqpstore_server.broker.rights.permissions import ALL
from amqpstore_server.broker.work.services import BrokerServices
from amqpstore_server.clients.limits import Limits
from amqpstore_server.clients.login import CheckedLogin
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.errors import MalformedError
from amqpstore_server.protocol.events import ReceivedMethod
from amqpstore_server.protocol.frames import method_frame
from amqpstore_server.protocol.methods import METHODS, Method, decode_method
from amqpstore_server.protocol.receiver import Receiver
from amqpstore_server.protocol.spec import PROTOCOL_HEADER
from amqpstore_server.protocol.states import CONNECTION_METHODS
from tests.conformance.test_protocol_document import MethodRow, method_rows

AMQP_SOURCES = list((Path(methods.__file__).parent.parent / "amqp").glob("*.py"))
CONNECTION_CLASS = 10


def plainest(cls: type[Method]) -> Method:
    """The method with every number 0, every string and table empty, where that makes sense."""
    if cls is methods.ExchangeDeclare:
        return methods.ExchangeDeclare(exchange="events", type="direct")
    ids = cls.class_id.to_bytes(2, "big") + cls.method_id.to_bytes(2, "big")
    for size in range(64):
        try:
            return decode_method(ids + bytes(size))
        except MalformedError:
            continue
    raise AssertionError(f"{cls.name} takes no row of zeros")


class Client:
    """A logged-in client of a connection that has no socket."""

    def __init__(self, broker: Broker) -> None:
        self.connection = AmqpConnection(
            broker,
            Limits(),
            peer="test",
            product=Product("amqpstore", "0"),
            may_impersonate=lambda _user: False,
            on_output=lambda: None,
            now=0.0,
        )
        self._receiver = Receiver(131_072, 1 << 20)
        start_ok = methods.ConnectionStartOk(
            client_properties={}, mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US"
        )
        tune_ok = methods.ConnectionTuneOk(channel_max=0, frame_max=0, heartbeat=0)
        self.connection.receive(PROTOCOL_HEADER, 0.0)
        self.ask(0, start_ok)
        self.connection.logged_in(CheckedLogin(True), 0.0)
        self.ask(0, tune_ok, methods.ConnectionOpen(virtual_host="/"))
        self.ask(1, methods.ChannelOpen())

    def ask(self, channel: int, *asked: Method) -> list[Method]:
        """Send methods; what comes back."""
        frames = b"".join(method_frame(channel, method.encode()) for method in asked)
        self.connection.receive(frames, 0.0)
        events = self._receiver.receive(b"".join(self.connection.outbox.next_buffers()))
        return [event.method for event in events if isinstance(event, ReceivedMethod)]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with Store.open(str(tmp_path / "store")) as store:
        store.definitions.define([Change("permissions", name_key("guest", "/"), ALL)])
        services = BrokerServices(store, store.clock, lambda: 0.0, lambda: "name", EXCHANGE_TYPES)
        yield Client(Broker(services))


def reply_code(answers: list[Method]) -> int | None:
    """The code of the close among the answers."""
    for answer in answers:
        if isinstance(answer, (methods.ConnectionClose, methods.ChannelClose)):
            return answer.reply_code
    return None


@pytest.mark.parametrize("row", method_rows(), ids=lambda row: row.name)
def test_the_status_is_what_a_client_meets(row: MethodRow, client: Client) -> None:
    cls = METHODS[row.ids]
    channel = 0 if cls.class_id == CONNECTION_CLASS else 1
    if row.status == "supported" and row.direction != "S>C" and channel == 0:
        assert cls in CONNECTION_METHODS
        return
    code = reply_code(client.ask(channel, plainest(cls)))
    if row.direction == "S>C":
        assert code == 503
    elif row.status == "supported":
        assert code != 503
        assert code != 540 or "540" in row.notes
    else:
        assert code == row.reply_code


@pytest.mark.parametrize("row", method_rows(), ids=lambda row: row.name)
def test_what_is_not_sent_is_made_nowhere(row: MethodRow) -> None:
    if row.direction == "C>S":
        return
    name = METHODS[row.ids].__name__
    is_made = any(re.search(rf"\b{name}\(", source.read_text("utf-8")) for source in AMQP_SOURCES)
    # Built byte by byte: see deliveries.py and protocol/frames.py.
    is_hot = row.name in ("basic.deliver", "basic.ack")
    is_sent = row.status != "not sent" and "the server does not send it" not in row.notes
    assert (is_made or is_hot) == is_sent
