"""Objects of a client are freed as soon as it is gone, and not when the garbage collector comes.

It comes seldom here, by design: objects that wait for it add up, from one client to the next.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Generator

import pytest

from amqpstore_server.amqp.channel import AmqpChannel
from amqpstore_server.amqp.connection import AmqpConnection
from amqpstore_server.amqp.envelopes import Envelopes
from amqpstore_server.broker.channels.channel import Channel
from amqpstore_server.broker.queues.consumer import Consumer
from amqpstore_server.broker.queues.delivery import Delivery
from amqpstore_server.clients.outbox import Outbox
from amqpstore_server.loop.client_login import ClientLogin
from amqpstore_server.loop.client_reading import Reading
from amqpstore_server.loop.client_tasks import ClientTasks
from amqpstore_server.loop.client_writing import Writing
from amqpstore_server.loop.socket_connection import SocketConnection
from amqpstore_server.protocol.receiver import Receiver
from amqpstore_tools.testing.broker import MemoryBroker
from tests.conformance.wire_client import (
    BASIC_CONSUME_OK,
    BASIC_DELIVER,
    BASIC_REJECT,
    CONFIRM_SELECT_OK,
    CONNECTION_CLOSE,
    QUEUE_DECLARE,
    TX_SELECT,
    TX_SELECT_OK,
    WireClient,
    basic_consume,
    body,
    channel_open,
    confirm_select,
    connection_close,
    frame,
    header,
    method,
    publish,
    publish_method,
    queue_declare,
    start_ok,
    waiting_get,
)
from tests.uncollected import living
from tests.waiting import wait_until

OF_A_CLIENT = (
    SocketConnection,
    Reading,
    Writing,
    ClientLogin,
    ClientTasks,
    AmqpConnection,
    AmqpChannel,
    Channel,
    Consumer,
    Delivery,
    Envelopes,
    Outbox,
    Receiver,
)

Deed = Callable[[WireClient], None]


def of_clients() -> Counter[str]:
    return living(*OF_A_CLIENT)


def of_the_only_client() -> Counter[str]:
    """Return the objects once those of earlier tests have gone."""
    wait_until(lambda: of_clients()["SocketConnection"] == 1, "the others have gone")
    return of_clients()


@pytest.fixture(scope="module")
def broker() -> Generator[MemoryBroker]:
    with MemoryBroker() as running:
        yield running


def publishes(client: WireClient) -> None:
    client.send(confirm_select(1), publish(1, "q", b"x" * 1000) * 10)
    client.expect(CONFIRM_SELECT_OK, 1)
    client.next_frame()


def keeps_unacked(client: WireClient) -> None:
    client.send(publish(1, "q", b"x") * 3, basic_consume(1, "q", "c", no_ack=False))
    client.expect(BASIC_CONSUME_OK, 1)
    client.expect(BASIC_DELIVER, 1)


def gives_back(client: WireClient) -> None:
    keeps_unacked(client)
    client.send(method(1, BASIC_REJECT, (1).to_bytes(8) + b"\x01"))
    client.expect_content()


def refused_on_a_channel(client: WireClient) -> None:
    client.send(queue_declare(1, "missing", bits=0b1))
    client.expect_channel_close(1, 404)


def refused(client: WireClient) -> None:
    client.send(channel_open(1))
    client.expect(CONNECTION_CLOSE)


def sends_garbage(client: WireClient) -> None:
    client.send(method(1, QUEUE_DECLARE, b"\xff" * 20))
    client.expect(CONNECTION_CLOSE)


def sends_no_frame(client: WireClient) -> None:
    client.send(frame(1, 1, bytes(10), end=0))
    client.read_to_end()


def stops_in_a_body(client: WireClient) -> None:
    client.send(publish_method(1, "q"), header(1, 100), body(1, b"half"))


def transacts(client: WireClient) -> None:
    client.send(method(1, TX_SELECT), publish(1, "q", b"x") * 10)
    client.expect(TX_SELECT_OK, 1)


def waits_with_a_get(client: WireClient) -> None:
    client.send(waiting_get(1, "empty", 1_000_000))


def reads_nothing(client: WireClient) -> None:
    mandatory = publish_method(1, "nowhere", mandatory=True)
    returned = mandatory + header(1, 100_000) + body(1, bytes(100_000))
    client.socket.settimeout(0.5)
    with pytest.raises(TimeoutError):
        for _ in range(1000):
            client.send(returned)


def closes(client: WireClient) -> None:
    with contextlib.suppress(TimeoutError):
        client.send_to_closing_peer(connection_close())


DEEDS = [
    publishes,
    keeps_unacked,
    gives_back,
    refused_on_a_channel,
    refused,
    sends_garbage,
    sends_no_frame,
    stops_in_a_body,
    transacts,
    waits_with_a_get,
    reads_nothing,
]


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("leaves", [WireClient.abort, closes], ids=["reset", "close"])
@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.__name__)
def test_nothing_stays_of_a_client(broker: MemoryBroker, deed: Deed, leaves: Deed) -> None:
    with WireClient.connected(broker.url, channels=1) as other:
        other.send(queue_declare(1, "q", bits=0), queue_declare(1, "empty", bits=0))
        other.next_frame()
        other.next_frame()
        before = of_the_only_client()
        with WireClient.connected(broker.url, channels=1) as client:
            assert of_clients() != before
            deed(client)
            leaves(client)
        wait_until(lambda: of_clients() == before, lambda: of_clients() - before)


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize(
    "greeting",
    [[], [b"HTTP/1.1"], [start_ok(response=b"\0guest\0wrong")], [publish_method(1, "q")]],
    ids=["silent", "not AMQP", "wrong password", "too early"],
)
def test_nothing_stays_of_a_stranger(broker: MemoryBroker, greeting: list[bytes]) -> None:
    with WireClient.connected(broker.url):
        before = of_the_only_client()
        with WireClient.greeted(broker.url) as client:
            client.send(*greeting)
        wait_until(lambda: of_clients() == before, lambda: of_clients() - before)
