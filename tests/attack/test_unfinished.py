"""Messages that are not published yet (halves of bodies, open transactions) are counted, and
bounded.
"""

import os
import struct
from collections.abc import Generator

import pytest

from tests.attack.attacker import MIB, forget_peak, half_a_body, peak_bytes, push
from tests.broker_process import BrokerProcess
from tests.conformance.wire_client import (
    BODY,
    QUEUE_DECLARE_OK,
    TX_COMMIT,
    TX_COMMIT_OK,
    TX_SELECT,
    TX_SELECT_OK,
    WireClient,
    body,
    field,
    frame,
    header,
    long_string,
    method,
    publish_method,
    queue_declare,
    table,
)
from tests.waiting import wait_until

CONFIG = """\
max_message_bytes = 16777216
connection_bytes = 33554432
connections_bytes = 67108864
"""
BOUND = 96 * MIB


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess]:
    directory = str(tmp_path_factory.mktemp("broker") / "store")
    config = f"{directory}.toml"
    with open(config, "w", encoding="utf-8") as file:
        file.write(CONFIG)
    with BrokerProcess(directory, f"{directory}.log", ["--config", config]) as process:
        process.start()
        yield process
        assert process.terminate() == 0, process.log_tail()


@pytest.fixture
def target(shared_broker: BrokerProcess) -> Generator[BrokerProcess]:
    """A broker, with another client that has to be served all the while."""
    with WireClient.connected(shared_broker.url, channels=1) as other:
        yield shared_broker
        other.expect_alive()
    assert "Traceback" not in shared_broker.stderr, shared_broker.log_tail()


def with_headers(size: int, number: int = 0) -> bytes:
    """Content properties with a header of that size, another for each number."""
    value = struct.pack(">I", number) + bytes(size)
    return b"\x20\x00" + table(field("h", b"S", long_string(value)))


def test_halves_of_bodies_end_the_connection(target: BrokerProcess) -> None:
    before = forget_peak(target)
    with WireClient.connected(target.url, channels=40) as client:
        for channel in range(1, 41):
            push(client, half_a_body(channel, 16 * MIB, 15 * MIB, 100_000))
        close = client.expect_connection_close(506)
    assert "connection" in close.reply_text
    assert peak_bytes(target) - before < BOUND


def test_headers_without_their_bodies_end_it_too(target: BrokerProcess) -> None:
    before = forget_peak(target)
    with WireClient.connected(target.url, channels=400) as client:
        for channel in range(1, 401):
            content = header(channel, 10, with_headers(60_000, channel))
            client.send_to_closing_peer(publish_method(channel, "nowhere") + content)
        client.expect_connection_close(506)
    assert peak_bytes(target) - before < BOUND


def test_a_body_in_frames_of_two_octets_costs_what_it_is(target: BrokerProcess) -> None:
    before = forget_peak(target)
    with WireClient.connected(target.url, channels=1) as client:
        client.send(publish_method(1, "nowhere"), header(1, 8 * MIB))
        push(client, [frame(BODY, 1, b"ab") * 50_000] * 20)
        push(client, [frame(BODY, 1, b"") * 50_000] * 10)
        client.socket.settimeout(20)
        client.expect_alive()
        assert peak_bytes(target) - before < 48 * MIB


def test_a_body_in_pieces_of_all_sizes_arrives_whole(target: BrokerProcess, name: str) -> None:
    sizes = [1, 0, 5000, 2, 3, 70_000, 4096, 4095, 1, 65_536, 7] * 3
    content = os.urandom(sum(sizes))
    with WireClient.connected(target.url, channels=1) as client:
        client.declare_queue(name)
        client.send(publish_method(1, name), header(1, len(content)))
        at = 0
        for size in sizes:
            client.send(body(1, content[at : at + size]))
            at += size
        assert client.get(name)[1] == content


def test_an_open_transaction_ends_the_connection(target: BrokerProcess, name: str) -> None:
    before = forget_peak(target)
    with WireClient.connected(target.url, channels=1) as client:
        client.send(method(1, TX_SELECT))
        client.expect(TX_SELECT_OK, 1)
        message = publish_method(1, name) + header(1, 100_000) + body(1, bytes(100_000))
        push(client, [message] * 3000)
        client.expect_connection_close(506)
    assert peak_bytes(target) - before < BOUND


@pytest.mark.parametrize("size", [0, 60_000], ids=["empty", "headers"])
def test_a_transaction_of_empty_messages_ends_it_too(target: BrokerProcess, size: int) -> None:
    before = forget_peak(target)
    with WireClient.connected(target.url, channels=1) as client:
        client.send(method(1, TX_SELECT))
        client.expect(TX_SELECT_OK, 1)
        parts = [
            publish_method(1, f"key {number}") + header(1, 0, with_headers(size, number))
            for number in range(1000)
        ]
        push(client, parts * (100 if not size else 2))
        client.expect_connection_close(506)
    assert peak_bytes(target) - before < BOUND


def test_what_was_committed_counts_no_more(target: BrokerProcess, name: str) -> None:
    with WireClient.connected(target.url, channels=1) as client:
        client.send(queue_declare(1, name), method(1, TX_SELECT))
        client.expect(QUEUE_DECLARE_OK, 1)
        client.expect(TX_SELECT_OK, 1)
        message = publish_method(1, name) + header(1, 100_000) + body(1, bytes(100_000))
        for _ in range(5):
            client.send(message * 200, method(1, TX_COMMIT))
            client.expect(TX_COMMIT_OK, 1)
        assert client.ready(name) == 1000


def test_of_many_connections_those_that_have_most_go(target: BrokerProcess) -> None:
    """Connections that hold little keep it. How many are closed depends on the room in buffers."""
    clients = [WireClient.connected(target.url, channels=2) for _ in range(4)]
    try:
        clients[0].send(publish_method(1, "nowhere"), header(1, 10), body(1, b"half "))
        for client in clients[1:]:
            for channel in (1, 2):
                push(client, half_a_body(channel, 16 * MIB, 13 * MIB, 100_000))
        wait_until(lambda: any(client.has_frame(0) for client in clients), "one is closed")
        closed = [client for client in clients if client.has_frame(0)]
        assert clients[0] not in closed
        for client in closed:
            client.expect_connection_close(506)
        clients[0].send(body(1, b"other"))
        clients[0].expect_alive()
    finally:
        for client in clients:
            client.abort()


def test_different_headers_are_not_all_remembered(target: BrokerProcess) -> None:
    """Neither the connection nor the virtual host remembers all headers; their CC lead nowhere."""
    with WireClient.connected(target.url, channels=1) as client:
        before = forget_peak(target)
        keys = b"".join(b"S" + long_string(b"k" * 250) for _ in range(240))
        for number in range(2500):
            cc = b"\x20\x00" + table(
                field("CC", b"A", long_string(keys)), field("n", b"I", struct.pack(">I", number))
            )
            client.send(publish_method(1, f"nowhere {number}"), header(1, 0, cc))
        client.expect_alive()
        assert peak_bytes(target) - before < BOUND
