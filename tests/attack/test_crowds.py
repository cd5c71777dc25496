"""Many at once: idle connections, channels, wrong logins, slow handshakes. Others are served."""

import base64
import contextlib
import hashlib
import json
import os
import resource
import socket
import time
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path

import pytest

from amqpstore_tools.testing.broker import MemoryBroker
from tests.attack.attacker import (
    MIB,
    forget_peak,
    is_closed,
    peak_bytes,
    push,
    reset,
    resident_bytes,
    silent_sockets,
)
from tests.broker_process import BrokerProcess, CostlyPasswordsBroker
from tests.conformance.wire_client import (
    CHANNEL_OPEN_OK,
    CONNECTION_OPEN_OK,
    CONNECTION_TUNE,
    PROTOCOL_HEADER,
    WireClient,
    channel_open,
    connection_open,
    frame,
    long_string,
    publish,
    start_ok,
    tune_ok,
)
from tests.waiting import wait_until

KIB = 1 << 10
IDLE_BYTES = 40 * KIB
"""The most that an idle connection may take, with a channel."""

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(broker: BrokerProcess) -> float:
    """The processor time that the broker has used so far."""
    with open(f"/proc/{broker.pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@contextlib.contextmanager
def many_descriptors() -> Iterator[int]:
    """Raise this process's limit of open files as far as it may. Returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def cost_of_round_trips(broker: BrokerProcess, client: WireClient, count: int = 300) -> float:
    """The broker's processor time for a publish and a request that is answered."""
    client.declare_queue("busy")
    began = cpu_s(broker)
    for _ in range(count):
        client.send(publish(1, "nowhere", b"x" * 1000))
        client.ready("busy")
    return (cpu_s(broker) - began) / count


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.long)])
def test_idle_connections_are_cheap(data_directory: str, count: int) -> None:
    with many_descriptors() as most:
        if most < 2 * count:
            pytest.skip(f"only {most} files may be open")
        with BrokerProcess(data_directory, f"{data_directory}.log") as broker:
            broker.start()
            busy = WireClient.connected(broker.url, channels=1)
            cost_of_round_trips(broker, busy)
            alone = cost_of_round_trips(broker, busy, 1000)
            before = resident_bytes(broker)
            with idle_clients(broker, count):
                full = resident_bytes(broker)
                each = (full - before) / count
                assert each < IDLE_BYTES, f"{each / KIB:.1f} KiB each"
                crowded = cost_of_round_trips(broker, busy, 1000)
                # The check of each connection twice a second is on top of it.
                assert crowded < 1.2 * alone + count * 20e-6
            wait_until(lambda: broker.stderr.count('"connection closed"') >= count, "all are gone")
            busy.ready("busy")
            # What they had is used again by those that come next.
            with idle_clients(broker, count):
                assert resident_bytes(broker) - full < 4 * MIB + full // 20
            busy.abort()
            assert broker.terminate() == 0


@contextlib.contextmanager
def idle_clients(broker: BrokerProcess, count: int) -> Iterator[None]:
    """Connect `count` clients that do nothing, with a channel each."""
    with contextlib.ExitStack() as clients:
        for _ in range(count):
            clients.callback(WireClient.connected(broker.url, channels=1).abort)
        yield


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess]:
    directory = str(tmp_path_factory.mktemp("broker") / "store")
    with BrokerProcess(directory, f"{directory}.log") as process:
        process.start()
        with WireClient.connected(process.url):
            pass  # the first check of a password takes 64 MiB for a moment, others are remembered
        yield process
        assert process.terminate() == 0, process.log_tail()
        assert "Traceback" not in process.stderr


def test_all_channel_numbers_are_asked_for(target: BrokerProcess) -> None:
    """65,535 of them, where 2,047 may be open: 530, and what they took is given back."""
    with WireClient.connected(target.url, channels=1) as other:
        before = forget_peak(target)
        with WireClient.connected(target.url) as client:
            client.send_to_closing_peer(b"".join(map(channel_open, range(1, 65_536))))
            while client.next_frame().method == CHANNEL_OPEN_OK:
                pass
        other.expect_alive()
        assert peak_bytes(target) - before < 32 * MIB
        wait_until(lambda: "channel-max is 2047" in target.stderr, "the log says why")


def test_a_table_of_100_mb_is_not_read(target: BrokerProcess) -> None:
    """A table among the properties of a client, of a message or of a queue is refused because of
    the size that it announces.
    """
    before = forget_peak(target)
    huge = 100 * MIB
    with WireClient.greeted(target.url) as client:
        announced = b"\x01\0\0" + huge.to_bytes(4, "big")
        assert push(client, [announced, *[bytes(MIB)] * 100]) < 16 * MIB
    for kind in (1, 2):
        with WireClient.connected(target.url, channels=1) as client:
            announced = bytes([kind]) + b"\0\x01" + huge.to_bytes(4, "big")
            assert push(client, [announced, *[bytes(MIB)] * 100]) < 80 * MIB
    with WireClient.connected(target.url, channels=1) as other:
        other.expect_alive()
    assert peak_bytes(target) - before < 16 * MIB


def test_a_table_that_lies_about_its_size_is_not_believed(target: BrokerProcess) -> None:
    before = forget_peak(target)
    arguments = b"\0\0\x01q\0" + (0xFFFFFFFF).to_bytes(4, "big") + b"\x01kS" + long_string(b"v")
    with WireClient.connected(target.url, channels=1) as client:
        client.send(frame(1, 1, b"\0\x32\0\x0a" + arguments))
        client.expect_connection_close(502)
    assert peak_bytes(target) - before < 8 * MIB


def test_slow_handshakes_end_after_their_time_and_keep_nobody_out() -> None:
    """One byte now and then does not win any time."""
    with MemoryBroker() as broker, contextlib.ExitStack() as sockets:
        address = ("127.0.0.1", broker.port)
        slow = [sockets.enter_context(socket.create_connection(address)) for _ in range(100)]
        for sent in range(7):
            for sock in slow:
                sock.settimeout(1)
                sock.sendall(PROTOCOL_HEADER[sent : sent + 1])
            with WireClient.connected(broker.url, channels=1) as other:
                other.expect_alive()
            broker.advance(1.4)
        assert not any(map(is_closed, slow))
        broker.advance(0.7)  # it looks twice a second
        wait_until(lambda: all(map(is_closed, slow)), "the slow ones are closed")


LEGACY = "legacy"
"""A user whose password is kept as RabbitMQ keeps it."""


@pytest.fixture
def with_legacy_user(tmp_path: Path) -> Generator[BrokerProcess]:
    salted = b"salt" + hashlib.sha256(b"salt" + LEGACY.encode()).digest()
    users = [
        {"name": "guest", "password": "guest"},
        {"name": LEGACY, "password_hash": base64.b64encode(salted).decode()},
    ]
    everything = {"vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    content = {
        "users": users,
        "vhosts": [{"name": "/"}],
        "permissions": [{"user": user["name"], **everything} for user in users],
    }
    (tmp_path / "definitions.json").write_text(json.dumps(content))
    config = tmp_path / "amqpstore.toml"
    config.write_text(f'definitions = "{tmp_path / "definitions.json"}"\n')
    store = str(tmp_path / "store")
    with CostlyPasswordsBroker(store, f"{store}.log", ["--config", str(config)]) as broker:
        broker.start()
        yield broker
        assert broker.terminate() == 0


def wrong_login(broker: BrokerProcess, host: str, user: str, password: str) -> socket.socket:
    """A login from an address of this machine, whose answer is not waited for."""
    sock = socket.create_connection(("127.0.0.1", broker.port), 30, source_address=(host, 0))
    sock.sendall(PROTOCOL_HEADER)
    assert sock.recv(10_000)
    sock.sendall(start_ok(response=f"\0{user}\0{password}".encode()))
    return sock


@pytest.mark.parametrize(
    ("user", "hosts", "users", "passwords"),
    [
        ("guest", 1, 1, 1),
        ("guest", 8, 1, 40),
        ("guest", 1, 40, 40),
        ("guest", 40, 40, 40),
        (LEGACY, 1, 1, 40),
        (LEGACY, 8, 1, 1),
    ],
)
def test_a_right_login_does_not_wait_for_40_wrong_ones(
    with_legacy_user: BrokerProcess, user: str, hosts: int, users: int, passwords: int
) -> None:
    """The wrong logins are for the same user or for many, from one address or from many, and no
    right login is remembered. Neither the first right login nor the next ones, as of a client that
    connects for each message, wait for more than a few checks.

    A check takes a tenth of a second of processor time: that is counted, because it is the same on
    a busy machine, in checks, because a slow machine takes longer for each.
    """
    broker = with_legacy_user
    with WireClient.connected(broker.url):
        began = cpu_s(broker)
        with wrong_login(broker, "127.0.0.50", "guest", "wrong") as refused:
            wait_until(partial(is_closed, refused), "refused")
        check_s = cpu_s(broker) - began
    wrong = [
        wrong_login(
            broker,
            f"127.0.0.{1 + n % hosts}",
            user if users == 1 else f"wrong {n}",
            f"wrong {n % passwords}",
        )
        for n in range(40)
    ]
    try:
        began = cpu_s(broker)
        for _ in range(10):
            with WireClient.greeted(broker.url) as right:
                right.send(start_ok(response=f"\0{user}\0{user}".encode()))
                right.expect(CONNECTION_TUNE)
                right.send(tune_ok(2047, 131_072, 0), connection_open("/"))
                right.expect(CONNECTION_OPEN_OK)
        assert cpu_s(broker) - began < 20 * check_s
    finally:
        for sock in wrong:
            reset(sock)


def test_a_flood_of_connections_leaves_the_others_their_service(target: BrokerProcess) -> None:
    """Connections that come and go without a word: what they cost is counted in processor time."""
    with WireClient.connected(target.url, channels=1) as other:
        before = forget_peak(target)
        began = cpu_s(target)
        for _ in range(20):
            for sock in silent_sockets(target, 50):
                reset(sock)
            other.declare_queue("mine")
        assert (cpu_s(target) - began) / 1000 < 0.005, "seconds of the processor for each"
        assert peak_bytes(target) - before < 48 * MIB


def test_a_peer_has_no_more_connections_than_it_may(data_directory: str) -> None:
    """A peer has no more connections than its limit, and those that come faster than the accept
    rate wait.
    """
    config = f"{data_directory}.toml"
    with open(config, "w", encoding="utf-8") as file:
        file.write("max_connections_per_peer = 30\naccepts_per_s = 20\n")
    with BrokerProcess(data_directory, f"{data_directory}.log", ["--config", config]) as broker:
        broker.start()
        began = time.monotonic()
        clients = [WireClient.connected(broker.url, channels=1) for _ in range(30)]
        # Twenty at once, the others one by one.
        assert time.monotonic() - began >= 9 / 20
        try:
            for _ in range(3):
                (refused,) = silent_sockets(broker, 1)
                wait_until(partial(is_closed, refused), "refused")
                reset(refused)
            assert "connection timed out" not in broker.stderr, "it was let in"
            clients.pop().abort()
            wait_until(lambda: broker.stderr.count('"connection closed"') >= 1, "gone")
            clients.append(WireClient.connected(broker.url, channels=1))
            for client in clients:
                client.expect_alive()
        finally:
            for client in clients:
                client.abort()
        assert broker.terminate() == 0


def test_who_comes_back_behind_a_crowd_that_left_does_not_meet_itself(
    broker: BrokerProcess,
) -> None:
    """The client's exclusive queue has gone with its former connection."""
    crowd = [WireClient.connected(broker.url, channels=1) for _ in range(300)]
    crowd[-1].declare_queue("its own")
    for client in crowd:
        reset(client.socket)
    with WireClient.connected(broker.url, channels=1) as again:
        again.declare_queue("its own")
