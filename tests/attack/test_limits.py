"""Each limit of the table in server/SECURITY.md, gone over again and again: the answer is right,
and what it took is given back. One broker serves all of them; those whose memory is measured
elsewhere (bodies, transactions, crowds, what is not read) are not here again.
"""

import json
import struct
from collections.abc import Callable, Generator

import pytest

from tests.attack.attacker import MIB, forget_peak, is_closed, peak_bytes, push, reset
from tests.broker_process import BrokerProcess
from tests.conformance.wire_client import (
    BASIC_CANCEL_OK,
    BASIC_CONSUME_OK,
    CHANNEL_CLOSE,
    CHANNEL_OPEN_OK,
    CONNECTION_OPEN_OK,
    CONNECTION_TUNE,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    WireClient,
    basic_cancel,
    basic_consume,
    body,
    channel_open,
    connection_open,
    field,
    header,
    long_string,
    method,
    publish,
    publish_method,
    queue_bind,
    queue_declare,
    short_string,
    start_ok,
    table,
    tune_ok,
    waiting_get,
)
from tests.waiting import wait_until

BOUND = 24 * MIB
ALL = {"configure": ".*", "write": ".*", "read": ".*"}
DEFINITIONS = {
    "users": [
        {"name": "guest", "password": "guest"},
        {"name": "few", "password": "few", "limits": {"max-connections": 1, "max-channels": 2}},
    ],
    "vhosts": [{"name": "/"}, {"name": "small"}, {"name": "few-queues"}],
    "permissions": [
        {"user": user, "vhost": vhost, **ALL}
        for user in ("guest", "few")
        for vhost in ("/", "small", "few-queues")
    ],
    "parameters": [
        {"component": "vhost-limits", "name": "limits", "vhost": vhost, "value": value}
        for vhost, value in (("small", {"max-connections": 1}), ("few-queues", {"max-queues": 1}))
    ],
}
CONFIGURATION = """
max_message_bytes = 1048576
max_connections = 40
consumer_timeout_s = 1
max_consumers = 2000
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("broker")
    (directory / "definitions.json").write_text(json.dumps(DEFINITIONS))
    config = directory / "amqpstore.toml"
    config.write_text(f'{CONFIGURATION}definitions = "{directory / "definitions.json"}"\n')
    store = str(directory / "store")
    with BrokerProcess(store, f"{store}.log", ["--config", str(config)]) as process:
        process.start()
        with WireClient.connected(process.url), few(process):
            pass  # the check of a password takes 64 MiB for a moment, others are remembered
        yield process
        assert process.terminate() == 0, process.log_tail()
        assert "Traceback" not in process.stderr


def few(broker: BrokerProcess, vhost: str = "/") -> WireClient:
    """A connection of the user who may have little, up to its connection.open."""
    client = WireClient.greeted(broker.url)
    client.send(start_ok(response=b"\0few\0few"))
    client.expect(CONNECTION_TUNE)
    client.send(tune_ok(2047, 131_072, 0), connection_open(vhost))
    return client


def url_of(broker: BrokerProcess, vhost: str) -> str:
    return broker.url.replace("%2F", vhost)


def declared_with(arguments: bytes) -> bytes:
    return method(1, QUEUE_DECLARE, b"\0\0" + short_string("q") + b"\0" + arguments)


def a_frame_that_is_too_large(broker: BrokerProcess) -> None:
    with WireClient.connected(broker.url, channels=1) as client:
        client.send(struct.pack(">BHI", 1, 1, 10 * MIB))
        push(client, [bytes(MIB)] * 2, quiet_s=0.2)
        client.expect_connection_close(501)


def a_body_that_is_announced_too_large(broker: BrokerProcess) -> None:
    with WireClient.connected(broker.url, channels=1) as client:
        client.send(publish_method(1, "nowhere"), header(1, MIB + 1), body(1, bytes(100_000)))
        client.expect_channel_close(1, 311)


def a_body_of_which_more_arrives(broker: BrokerProcess) -> None:
    with WireClient.connected(broker.url, channels=1) as client:
        client.send(publish_method(1, "nowhere"), header(1, MIB))
        client.send_to_closing_peer(*[body(1, bytes(100_000))] * 11)
        client.expect_connection_close(505)


def too_many_levels(broker: BrokerProcess) -> None:
    inner = b""
    for _ in range(129):
        inner = field("k", b"F", long_string(inner))
    with WireClient.connected(broker.url, channels=1) as client:
        client.send(declared_with(long_string(inner)))
        client.expect_channel_close(1, 406)


def too_many_entries(broker: BrokerProcess) -> None:
    entries = (field(f"{number:x}", b"V", b"") for number in range(16_385))
    with WireClient.connected(broker.url, channels=1) as client:
        client.send(declared_with(table(*entries)))
        client.expect_channel_close(1, 406)


def too_many_words(broker: BrokerProcess) -> None:
    with WireClient.connected(broker.url, channels=1) as client:
        client.declare_queue("words")
        client.send(queue_bind(1, "words", "amq.topic", "." * 128))
        client.expect_channel_close(1, 406)
        client.finish()


def one_connection_too_many(broker: BrokerProcess) -> None:
    clients: list[WireClient] = []

    def connects() -> bool:
        try:
            clients.append(WireClient.connected(broker.url))
        except (AssertionError, OSError):
            return False
        return True

    try:
        for _ in range(40):
            wait_until(connects)  # earlier connections may not be gone yet
        assert not connects()
        clients[0].finish()
    finally:
        for client in clients:
            reset(client.socket)
    wait_until(connects)  # a client can connect again, once they are gone
    reset(clients[-1].socket)


def one_connection_of_a_user_too_many(broker: BrokerProcess) -> None:
    with few(broker) as first:
        first.expect(CONNECTION_OPEN_OK)
        with few(broker) as second:
            second.expect_connection_close(530)
        first.finish()


def one_channel_of_a_user_too_many(broker: BrokerProcess) -> None:
    with few(broker) as client:
        client.expect(CONNECTION_OPEN_OK)
        client.send(*map(channel_open, range(1, 4)))
        for channel in (1, 2):
            client.expect(CHANNEL_OPEN_OK, channel)
        client.expect_connection_close(530)


def one_connection_to_a_virtual_host_too_many(broker: BrokerProcess) -> None:
    with WireClient.connected(url_of(broker, "small")) as first:
        with few(broker, "small") as second:
            second.expect_connection_close(530)
        first.finish()


def one_queue_of_a_virtual_host_too_many(broker: BrokerProcess) -> None:
    with WireClient.connected(url_of(broker, "few-queues"), channels=1) as client:
        client.declare_queue("first")
        client.send(queue_declare(1, "second"))
        client.expect_channel_close(1, 406)
        client.finish()


def one_get_too_many_that_waits(broker: BrokerProcess) -> None:
    with WireClient.connected(broker.url, channels=1) as client:
        client.declare_queue("waited-for")
        client.send(waiting_get(1, "waited-for", 60_000) * 1025)
        client.expect_channel_close(1, 406)
        client.finish()  # its queue is gone then


def one_consumer_too_many(broker: BrokerProcess) -> None:
    """Open one consumer too many over several channels; cancelled consumers do not count."""
    with WireClient.connected(broker.url, channels=3) as client:
        client.declare_queue("consumed")
        for channel in (1, 2):
            consumers = (basic_consume(channel, "consumed", f"c{n}") for n in range(1000))
            client.send(*consumers)
            for _ in range(1000):
                client.expect(BASIC_CONSUME_OK, channel)
        client.send(basic_cancel(1, "c7"), basic_consume(3, "consumed", "c"))
        client.expect(BASIC_CANCEL_OK, 1)
        client.expect(BASIC_CONSUME_OK, 3)
        client.send(basic_consume(3, "consumed", "one more"))
        client.expect_connection_close(530)


def an_ack_that_does_not_come(broker: BrokerProcess) -> None:
    with WireClient.connected(broker.url, channels=1) as client:
        client.send(queue_declare(1, "unacked"))
        client.expect(QUEUE_DECLARE_OK, 1)
        client.send(publish(1, "unacked", bytes(100_000)) * 20)
        client.send(basic_consume(1, "unacked", "c", no_ack=False))
        while client.next_frame().method != CHANNEL_CLOSE:
            pass


def a_heartbeat_that_does_not_come(broker: BrokerProcess) -> None:
    with WireClient.connected(broker.url, channels=1, heartbeat_s=1) as client:
        client.send(publish_method(1, "nowhere"), header(1, MIB), body(1, bytes(100_000)))
        client.socket.settimeout(30)
        client.read_to_reset()
        assert is_closed(client.socket)


def is_served(broker: BrokerProcess) -> bool:
    """Tell whether one more client is served."""
    try:
        with WireClient.connected(broker.url, channels=1) as other:
            other.expect_alive()
    except (AssertionError, OSError):
        return False
    return True


OVER: dict[Callable[[BrokerProcess], None], int] = {
    a_frame_that_is_too_large: 10,
    a_body_that_is_announced_too_large: 20,
    a_body_of_which_more_arrives: 20,
    too_many_levels: 20,
    too_many_entries: 20,
    too_many_words: 20,
    one_connection_too_many: 1,
    one_connection_of_a_user_too_many: 10,
    one_channel_of_a_user_too_many: 10,
    one_connection_to_a_virtual_host_too_many: 10,
    one_queue_of_a_virtual_host_too_many: 10,
    one_get_too_many_that_waits: 10,
    one_consumer_too_many: 3,
    an_ack_that_does_not_come: 1,
    a_heartbeat_that_does_not_come: 1,
}
"""Each, and how many times: those that wait for a clock once."""


@pytest.mark.parametrize("over", OVER, ids=lambda over: over.__name__.replace("_", "-"))
def test_going_over_a_limit_costs_nothing_that_stays(
    target: BrokerProcess, over: Callable[[BrokerProcess], None]
) -> None:
    before = forget_peak(target)
    for _ in range(OVER[over]):
        over(target)
    wait_until(lambda: is_served(target))  # earlier connections may not be gone yet
    assert peak_bytes(target) - before < BOUND
