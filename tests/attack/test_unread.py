"""Output of any kind that a client does not read is bounded, and other clients are served."""

import time
from collections.abc import Generator

import pytest

from tests.attack.attacker import (
    MIB,
    forget_peak,
    peak_bytes,
    push,
    resident_bytes,
)
from tests.broker_process import BrokerProcess
from tests.conformance.wire_client import (
    BASIC_CONSUME_OK,
    QUEUE_DECLARE_OK,
    WireClient,
    basic_consume,
    basic_get,
    body,
    connection_close,
    header,
    method,
    publish_method,
    queue_declare,
)
from tests.waiting import wait_until

BOUND = 96 * MIB
"""Memory that a client may cost, whatever it does not read: some reads, an outbox, and the
allocator.
"""

RECOVER_ASYNC = (60, 100)


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess]:
    directory = str(tmp_path_factory.mktemp("broker") / "store")
    with BrokerProcess(directory, f"{directory}.log") as process:
        process.start()
        yield process
        assert process.terminate() == 0, process.log_tail()


@pytest.fixture
def target(shared_broker: BrokerProcess) -> Generator[BrokerProcess]:
    """A broker, with another client that has to be served all the while."""
    with WireClient.connected(shared_broker.url, channels=1) as other:
        yield shared_broker
        other.expect_alive()
        other.declare_queue("others", channel=other.tune.channel_max)
    assert "Traceback" not in shared_broker.stderr, shared_broker.log_tail()


def message(routing_key: str, size: int, mandatory: bool = False) -> bytes:
    frames = b"".join(body(1, bytes(min(100_000, size - at))) for at in range(0, size, 100_000))
    return publish_method(1, routing_key, mandatory=mandatory) + header(1, size) + frames


def fill(client: WireClient, queue: str, count: int, size: int) -> None:
    client.send(queue_declare(1, queue, bits=0))
    client.expect(QUEUE_DECLARE_OK, 1)
    for _ in range(count):
        client.send(message(queue, size))
    assert client.ready(queue) == count


def test_unread_returns(target: BrokerProcess) -> None:
    before = forget_peak(target)
    with WireClient.connected(target.url, channels=1) as client:
        sent = push(client, [message("nowhere", 60_000, mandatory=True)] * 5000)
        assert sent < BOUND, "it went on reading"
        assert peak_bytes(target) - before < BOUND


def test_gets_whose_answers_are_not_read(target: BrokerProcess) -> None:
    """More of them than are read at once: those that were read already wait too."""
    with WireClient.connected(target.url, channels=1) as client:
        fill(client, "got", 100, MIB)
        before = forget_peak(target)
        for _ in range(3):
            push(client, [basic_get(1, "got", no_ack=False) * 2000], quiet_s=1.0)
        client.next_frame()
        assert peak_bytes(target) - before < BOUND


def test_recover_again_and_again(target: BrokerProcess) -> None:
    with WireClient.connected(target.url, channels=1) as client:
        fill(client, "unacked", 2000, 1000)
        client.send(basic_consume(1, "unacked", "c", no_ack=False))
        client.expect(BASIC_CONSUME_OK, 1)
        for _ in range(2000):
            client.next_frame()
            client.expect_content()
        before = forget_peak(target)
        push(client, [method(1, RECOVER_ASYNC, b"\0") * 1000] * 10, quiet_s=1.0)
        client.next_frame()
        assert peak_bytes(target) - before < BOUND


def test_declares_whose_answers_are_not_read(target: BrokerProcess) -> None:
    before = forget_peak(target)
    with WireClient.connected(target.url, channels=1) as client:
        client.declare_queue("declared")
        push(client, [queue_declare(1, "declared", bits=0b00001) * 5000] * 1000, quiet_s=1.0)
        assert peak_bytes(target) - before < BOUND


def test_who_reads_again_gets_it_all(target: BrokerProcess) -> None:
    """The work that was held up is done then, in its order."""
    count = 300
    with WireClient.connected(target.url, channels=1) as client:
        client.socket.settimeout(20)
        returned = message("nowhere", 60_000, mandatory=True)
        client.socket.setblocking(False)
        stream = memoryview(returned * count + connection_close())
        while stream:
            try:
                stream = stream[client.socket.send(stream) :]
            except BlockingIOError:
                client.socket.settimeout(20)
                client.next_frame()
                client.expect_content()
                count -= 1
                client.socket.setblocking(False)
        client.socket.settimeout(20)
        for _ in range(count):
            client.next_frame()
            client.expect_content()
        client.expect_close_ok()


def test_one_client_after_the_other_does_not_add_up(broker: BrokerProcess) -> None:
    """Each has all that it may have, and leaves."""
    resident = []
    for _ in range(6):
        with WireClient.connected(broker.url, channels=1) as client:
            push(client, [message("nowhere", 60_000, mandatory=True)] * 500, quiet_s=0.5)
            client.abort()
        wait_until(lambda: resident_bytes(broker) < BOUND * 2, "the memory is given back")
        resident.append(resident_bytes(broker))
    assert resident[-1] - resident[0] < 16 * MIB, resident


def test_missed_heartbeats_end_a_connection_with_unsent_bytes(target: BrokerProcess) -> None:
    with WireClient.connected(target.url, channels=1, heartbeat_s=1) as client:
        push(client, [message("nowhere", 60_000, mandatory=True)] * 500, quiet_s=0.1)
        at = time.monotonic()
        wait_until(lambda: "missed heartbeats" in target.stderr, "noticed")
        client.socket.settimeout(20)
        client.read_to_reset()
        assert time.monotonic() - at < 20


def test_who_reads_nothing_at_all_is_closed(data_directory: str) -> None:
    config = f"{data_directory}.toml"
    with open(config, "w", encoding="utf-8") as file:
        file.write("send_timeout_s = 1\n")
    with BrokerProcess(data_directory, f"{data_directory}.log", ["--config", config]) as process:
        process.start()
        with WireClient.connected(process.url, channels=1) as client:
            push(client, [message("nowhere", 60_000, mandatory=True)] * 500, quiet_s=0.1)
            wait_until(lambda: "client does not read" in process.stderr, "noticed")
            client.read_to_reset()
        assert process.terminate() == 0
