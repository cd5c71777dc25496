"""Flow control and alarms (rules L and B; channel.flow, connection.blocked)."""

import os
import struct
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from amqpstore_server.protocol import methods
from tests.broker_process import BrokerProcess
from tests.conformance.wire_client import (
    BASIC_CONSUME_OK,
    BASIC_DELIVER,
    CHANNEL_FLOW,
    CHANNEL_FLOW_OK,
    CONNECTION_BLOCKED,
    CONNECTION_UNBLOCKED,
    WireClient,
    basic_consume,
    method,
    publish,
)
from tests.conftest import URL_VARIABLE
from tests.fuzz.simulated import SimulatedClient, SimulatedServer
from tests.interop.pika_client import connect, get, publish_confirmed
from tests.small_disk import fill, small_disk
from tests.waiting import wait_until

MIB = 1 << 20


def set_flow(client: WireClient, *, active: bool) -> None:
    client.send(method(1, CHANNEL_FLOW, bytes([active])))
    assert client.expect(CHANNEL_FLOW_OK, 1).arguments == bytes([active])


def expect_delivery(client: WireClient, expected: bytes) -> int:
    """The delivery tag of the message that comes next."""
    arguments = client.expect(BASIC_DELIVER, 1).arguments
    assert client.expect_content()[1] == expected
    return int(struct.unpack_from(">Q", arguments, 1 + arguments[0])[0])


@pytest.mark.usefixtures("ours_alone")
def test_a_client_may_pause_its_deliveries(url: str, name: str) -> None:
    """C023, C024, L07: nothing comes behind flow-ok; all is there when it goes on."""
    with WireClient.connected(url, channels=2) as client:
        client.declare_queue(name)
        client.send(basic_consume(1, name, "tag"))
        client.expect(BASIC_CONSUME_OK, 1)
        client.send(publish(2, name, b"before"))
        expect_delivery(client, b"before")
        set_flow(client, active=False)
        set_flow(client, active=False)
        client.send(*(publish(2, name, bytes([number])) for number in range(5)))
        assert client.ready(name, channel=2) == 5
        set_flow(client, active=True)
        for number in range(5):
            expect_delivery(client, bytes([number]))


@pytest.mark.usefixtures("ours_alone")
def test_a_paused_channel_holds_up_no_other(url: str, name: str) -> None:
    """L07: of the same connection; and it may still ask for messages itself."""
    with WireClient.connected(url, channels=2) as client:
        client.declare_queue(name)
        client.send(basic_consume(1, name, "paused"))
        client.expect(BASIC_CONSUME_OK, 1)
        set_flow(client, active=False)
        client.send(publish(2, name, b"asked for"))
        assert client.ready(name, channel=2) == 1
        assert client.get(name)[1] == b"asked for"
        client.send(basic_consume(2, name, "active"))
        client.expect(BASIC_CONSUME_OK, 2)
        client.send(publish(1, name, b"pushed"))
        client.expect(BASIC_DELIVER, 2)
        assert client.expect_content(2)[1] == b"pushed"


@pytest.mark.usefixtures("ours_alone")
def test_a_channel_may_be_paused_from_its_start(url: str, name: str) -> None:
    """C022: it is active when it is opened."""
    with WireClient.connected(url, channels=1) as client:
        client.declare_queue(name)
        client.send(publish(1, name, b"x"))
        set_flow(client, active=False)
        client.send(basic_consume(1, name, "tag"))
        client.expect(BASIC_CONSUME_OK, 1)
        assert client.ready(name) == 1
        set_flow(client, active=True)
        assert expect_delivery(client, b"x") == 1


def is_gone(client: SimulatedClient) -> bool:
    return client.connection.is_finished


def test_heartbeats_are_not_missed_of_a_client_that_is_not_read() -> None:
    """B07: a blocked publisher is not cut off."""
    with SimulatedServer() as server:
        client = SimulatedClient.opened(server)
        beating = SimulatedClient(server)
        beating.send(b"AMQP\x00\x00\x09\x01")
        beating.ask(0, SimulatedClient.start_ok())
        tune_ok = methods.ConnectionTuneOk(channel_max=0, frame_max=0, heartbeat=10)
        beating.ask(0, tune_ok, methods.ConnectionOpen(virtual_host="/"))
        for _ in range(10):
            beating.connection.excuse(server.now_s)
            server.pass_time(10_000)
        assert not is_gone(beating)
        for _ in range(3):
            server.pass_time(10_000)
        assert is_gone(beating)
        assert not is_gone(client)


@pytest.fixture
def small(tmp_path: Path) -> Generator[tuple[BrokerProcess, str]]:
    """A broker on a small disk of its own, and a path there that `fill_disk` fills it by."""
    if os.environ.get(URL_VARIABLE):
        pytest.skip("needs a broker process of its own")
    with small_disk(str(tmp_path / "disk"), mebibytes=512) as disk:
        config = tmp_path / "config.toml"
        config.write_text(f"least_free_bytes = {64 * MIB}\n")
        arguments = ["--config", str(config)]
        with BrokerProcess(f"{disk}/store", str(tmp_path / "log"), arguments) as process:
            process.start()
            yield process, f"{disk}/filler"
            assert process.terminate() == 0, process.log_tail()


def fill_disk(filler: str) -> None:
    """Publishers are blocked below 128 MiB."""
    fill(filler, left_bytes=100 * MIB)


def test_a_full_disk_blocks_publishers_and_says_so(small: tuple[BrokerProcess, str]) -> None:
    """L02, L04, L05, B06: connection.blocked once, consumers go on, then connection.unblocked."""
    broker, filler = small
    consuming = connect(broker.url)
    channel = consuming.channel()
    channel.queue_declare("queue", durable=True)
    publish_confirmed(channel.connection.channel(), "queue", [b"1", b"2"])
    message = b"\x10\x00\x02"  # the properties: delivery mode 2
    with WireClient.connected(
        broker.url, channels=1, capabilities=("connection.blocked",)
    ) as client:
        client.send(publish(1, "queue", b"taken", message))
        assert client.ready("queue") == 3
        fill_disk(filler)
        deadline = time.monotonic() + 60
        while not client.has_frame(0.1):
            assert time.monotonic() < deadline, "never blocked"
            client.send(publish(1, "queue", b"more", message))
        assert client.expect(CONNECTION_BLOCKED).arguments
        wait_until(lambda: "publishers are blocked" in broker.stderr)
        client.send(publish(1, "queue", b"waits", message))
        got = get(channel, "queue")
        assert got is not None
        channel.basic_ack(got.delivery_tag)
        assert not client.has_frame(0.2)
        os.remove(filler)
        client.expect(CONNECTION_UNBLOCKED)
        assert client.ready("queue") >= 3
    consuming.close()


def test_a_client_without_the_capability_is_blocked_without_a_word(
    small: tuple[BrokerProcess, str],
) -> None:
    """L05: its publishes wait, and are done when there is room again."""
    broker, filler = small
    with WireClient.connected(broker.url, channels=1) as client:
        client.declare_queue("queue")
        fill_disk(filler)
        wait_until(lambda: "publishers are blocked" in broker.stderr)
        client.send(publish(1, "queue", b"x"))
        assert not client.has_frame(0.1)
        assert client.ready("queue") == 0
        os.remove(filler)
        wait_until(lambda: client.ready("queue") == 1)
