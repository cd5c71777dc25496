"""Limits whose answer is that clients wait: what waits is not in the broker's memory."""

import os
import select
import signal
import socket
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.attack.attacker import (
    MIB,
    descriptor_count,
    forget_peak,
    is_closed,
    peak_bytes,
    push,
    silent_sockets,
)
from tests.broker_process import BrokerProcess
from tests.conformance.wire_client import (
    PROTOCOL_HEADER,
    QUEUE_DECLARE_OK,
    WireClient,
    body,
    header,
    publish_method,
    queue_declare,
)
from tests.waiting import wait_until

ACCEPTS_PER_S = 10
DESCRIPTORS = 128
SYNC_S = 1.0
PENDING_BYTES = 64 * MIB
CONNECTION_BYTES = 8 * MIB
"""More than a connection has in the buffers of its two sockets, and in a read."""

SLOW_SYNCS = f"""
import time

from amqpstore.system.datasyncs import KernelDatasyncs
from amqpstore.system.files import OsFile

sync = OsFile.datasync

def slow(file):
    time.sleep({SYNC_S})
    sync(file)

OsFile.datasync = slow
KernelDatasyncs.start = lambda *_: False
"""


@contextmanager
def serving(
    directory: Path,
    configuration: str,
    environment: dict[str, str] | None = None,
    descriptors: int = 0,
) -> Iterator[BrokerProcess]:
    """A broker with this configuration, which other clients must be able to use at the end."""
    file = directory / "amqpstore.toml"
    file.write_text(configuration)
    store = str(directory / "store")
    arguments = ["--config", str(file)]
    with BrokerProcess(store, f"{store}.log", arguments, environment, descriptors) as process:
        process.start()
        with WireClient.connected(process.url, channels=1) as other:
            yield process
            other.expect_alive()
        assert process.terminate() == 0, process.log_tail()
        assert "Traceback" not in process.stderr


@pytest.fixture
def publishers() -> Generator[ExitStack]:
    """Connections that are aborted at the end."""
    with ExitStack() as stack:
        yield stack


def pushed(broker: BrokerProcess, stack: ExitStack, mebibytes: int, least_bytes: int = 0) -> int:
    """Publish that much to a durable queue, on a connection of its own. Returns what was taken:
    `least_bytes`, or more.
    """
    client = WireClient.connected(broker.url, channels=1)
    stack.callback(client.abort)
    client.send(queue_declare(1, "q", bits=0b10))
    client.expect(QUEUE_DECLARE_OK, 1)
    content = header(1, 100_000, b"\x10\0\2") + body(1, bytes(100_000))
    message = publish_method(1, "q") + content
    parts = [message] * (mebibytes * MIB // len(message))
    return push(client, parts, quiet_s=0.5, least_bytes=least_bytes)


def test_connections_beyond_the_accept_rate_wait_and_others_do_not(tmp_path: Path) -> None:
    """Waiting connections take a descriptor each, and hardly any memory; one from another address
    is accepted next.
    """
    with serving(tmp_path, f"accepts_per_s = {ACCEPTS_PER_S}\n") as broker:
        before, descriptors = forget_peak(broker), descriptor_count(broker)
        began = time.monotonic()
        waiting = [socket.socket() for _ in range(500)]
        try:
            for sock in waiting:
                sock.setblocking(False)
                sock.connect_ex(("127.0.0.1", broker.port))
            wait_until(lambda: descriptor_count(broker) >= descriptors + len(waiting))
            for sock in waiting:
                sock.sendall(PROTOCOL_HEADER)
            elsewhere = ("127.0.0.2", 0)
            with socket.create_connection(("127.0.0.1", broker.port), 30, elsewhere) as other:
                other.sendall(PROTOCOL_HEADER)
                assert other.recv(8)
            poll = select.poll()
            for sock in waiting:
                poll.register(sock, select.POLLIN)
            let_in = len(poll.poll(0))
            # Connections are accepted for one second's rate at once, and then at the rate.
            assert let_in <= ACCEPTS_PER_S * (time.monotonic() - began + 2)
            assert let_in < len(waiting) // 2, "no connection waited"
            assert peak_bytes(broker) - before < 8 * MIB
        finally:
            for sock in waiting:
                sock.close()


def test_of_too_many_that_wait_those_of_the_peer_that_has_most_go(tmp_path: Path) -> None:
    """Neither they nor those that are let in take the descriptors that the store needs."""
    config = f"accepts_per_s = {ACCEPTS_PER_S}\n"
    with serving(tmp_path, config, descriptors=DESCRIPTORS) as broker:
        waiting = silent_sockets(broker, 4 * DESCRIPTORS)
        try:
            wait_until(lambda: sum(map(is_closed, waiting)) > 2 * DESCRIPTORS, "refused")
            assert descriptor_count(broker) <= DESCRIPTORS * 3 // 4
        finally:
            for sock in waiting:
                sock.close()


def test_publishers_without_disk_space_fill_their_sockets_only(
    tmp_path: Path, publishers: ExitStack
) -> None:
    """No client can publish; the bytes that publishers had begun to send stay in their sockets."""
    with serving(tmp_path, "least_free_bytes = 0\n") as broker:
        pushed(broker, publishers, 1)
        (tmp_path / "amqpstore.toml").write_text(f"least_free_bytes = {1 << 60}\n")
        os.kill(broker.pid, signal.SIGHUP)
        wait_until(lambda: "configuration reloaded" in broker.stderr)
        before = forget_peak(broker)
        for _ in range(5):
            assert pushed(broker, publishers, 64) < CONNECTION_BYTES
        assert peak_bytes(broker) - before < 16 * MIB


def test_a_slow_disk_bounds_what_waits_for_it(tmp_path: Path, publishers: ExitStack) -> None:
    """All publishers together have that many bytes in memory, and one read each."""
    (tmp_path / "sitecustomize.py").write_text(SLOW_SYNCS)
    environment = {"PYTHONPATH": str(tmp_path)}
    with serving(tmp_path, "memory_bytes = 1048576\n", environment) as broker:
        before = forget_peak(broker)
        least_bytes = PENDING_BYTES + 1
        assert pushed(broker, publishers, 96, least_bytes) >= least_bytes, "it may hold as much"
        for _ in range(2):
            pushed(broker, publishers, 96)
        assert peak_bytes(broker) - before < PENDING_BYTES + 48 * MIB
