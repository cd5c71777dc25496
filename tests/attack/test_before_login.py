"""A client that has not logged in makes the broker keep nothing, and keeps no other client out."""

import os
import socket
from collections.abc import Generator

import pytest

from tests.attack.attacker import (
    MIB,
    descriptor_count,
    forget_peak,
    half_a_body,
    is_closed,
    peak_bytes,
    push,
    reset,
    silent_sockets,
)
from tests.broker_process import BrokerProcess, CostlyPasswordsBroker
from tests.conformance.wire_client import WireClient, frame, start_ok
from tests.waiting import wait_until

DESCRIPTORS = 128


@pytest.fixture(scope="module")
def broker_type() -> type[BrokerProcess]:
    return CostlyPasswordsBroker


@pytest.fixture
def small_broker(data_directory: str) -> Generator[BrokerProcess]:
    """A broker that may have few files open."""
    log_path = f"{data_directory}.log"
    with BrokerProcess(data_directory, log_path, descriptors=DESCRIPTORS) as process:
        process.start()
        yield process
        assert process.terminate() == 0, process.log_tail()
        assert "Traceback" not in process.stderr, process.log_tail()


def not_turned_away(strangers: list[socket.socket]) -> int:
    return sum(not is_closed(stranger) for stranger in strangers)


@pytest.mark.parametrize("chunk_bytes", [8000, 2, 0])
def test_a_body_before_login_is_not_read(broker: BrokerProcess, chunk_bytes: int) -> None:
    before = forget_peak(broker)
    with WireClient.greeted(broker.url) as client:
        frames = half_a_body(1, 128 * MIB, 100 * MIB, 8000)
        if chunk_bytes != 8000:
            frames = [frame(3, 1, bytes(chunk_bytes)) * 4096] * 1000
        sent = push(client, frames)
    assert sent < 16 * MIB, "it went on reading"
    assert peak_bytes(broker) - before < 16 * MIB


def test_a_login_that_never_ends_is_not_kept(broker: BrokerProcess) -> None:
    """A start-ok that announces more than a handshake may have."""
    before = forget_peak(broker)
    with WireClient.greeted(broker.url) as client:
        sent = push(client, [start_ok(response=bytes(9000))] + [bytes(MIB)] * 100)
    assert sent < 16 * MIB
    assert peak_bytes(broker) - before < 16 * MIB


def test_silent_connections_leave_the_store_its_descriptors(small_broker: BrokerProcess) -> None:
    """More of them than the process may have files: the clients and the store do not notice."""
    with WireClient.connected(small_broker.url, channels=1) as old:
        old.declare_queue("old")
        strangers = silent_sockets(small_broker, 3 * DESCRIPTORS)
        try:
            assert descriptor_count(small_broker) <= DESCRIPTORS * 3 // 4
            old.expect_alive()
            # Before that the newest of this peer is the one that is refused.
            wait_until(lambda: not_turned_away(strangers) <= DESCRIPTORS // 4, "none waits")
            for _ in range(3):  # each makes the room that it needs
                with WireClient.connected(small_broker.url, channels=1) as new:
                    new.declare_queue("new")
        finally:
            for stranger in strangers:
                reset(stranger)
    assert "cannot accept" not in small_broker.stderr
    assert small_broker.stderr.count("too many connections") <= 3, "each knock is in the log"


def test_clients_beyond_the_descriptors_are_refused(small_broker: BrokerProcess) -> None:
    """Clients that have logged in stay connected; a client that comes when all descriptors are
    taken has its socket closed.
    """
    with WireClient.connected(small_broker.url, channels=1) as first:
        clients: list[WireClient] = []
        try:
            with pytest.raises((AssertionError, OSError)):
                while len(clients) < DESCRIPTORS:
                    clients.append(WireClient.connected(small_broker.url))
            assert len(clients) > DESCRIPTORS // 4
            first.expect_alive()
            first.declare_queue("mine")
        finally:
            for client in clients:
                client.abort()
    wait_until(lambda: descriptor_count(small_broker) < DESCRIPTORS // 4, "descriptors are free")
    with WireClient.connected(small_broker.url, channels=1) as late:
        late.expect_alive()


def test_random_bytes_before_login_cost_nothing(broker: BrokerProcess) -> None:
    with WireClient.connected(broker.url):
        pass  # the first check of a password takes 64 MiB for a moment, others are remembered
    before = forget_peak(broker)
    for _ in range(100):
        with WireClient.greeted(broker.url) as client:
            push(client, [os.urandom(60_000)])
    with WireClient.connected(broker.url, channels=1) as good:
        good.expect_alive()
    assert peak_bytes(broker) - before < 16 * MIB


def test_wrong_passwords_take_the_memory_of_two_checks(broker: BrokerProcess) -> None:
    """Neither a login that was right before nor a login of another user waits for the wrong
    ones.
    """
    with WireClient.connected(broker.url):
        pass
    before, descriptors = forget_peak(broker), descriptor_count(broker)
    wrong = [WireClient.greeted(broker.url) for _ in range(60)]
    try:
        for number, client in enumerate(wrong):
            # Each password differs: a wrong login that is tried again costs no check.
            client.send(start_ok(response=b"\x00guest\x00wrong %d" % number))
        with WireClient.connected(broker.url, channels=1) as known:
            known.expect_alive()
        with WireClient.greeted(broker.url) as other:
            other.send(start_ok(response=b"\x00somebody\x00else"))
            other.expect_closed()
            assert sum(client.has_frame(0) for client in wrong) < 50, "it waited for all others"
    finally:
        for client in wrong:
            client.abort()
    wait_until(lambda: descriptor_count(broker) < descriptors + 10, "most are gone")
    assert broker.stderr.count("login refused") < 60, "logins of clients that left were checked"
    assert 32 * MIB < peak_bytes(broker) - before < 192 * MIB
