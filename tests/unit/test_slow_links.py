"""Tests of slow links, on which tests of a group rely."""

import socket
import time

import pytest

from tests.network_namespaces import HostNetwork, NetworkHost
from tests.slow_links import BUFFERED_S, Pace, SlowLink

DELAY_S = 0.05
BANDWIDTH = 256 << 10
PIECE_BYTES = 4 << 10


def link(*paces: Pace) -> SlowLink:
    made = SlowLink()
    made.paces.extend(paces)
    return made


def test_a_delay_holds_each_packet_for_as_long() -> None:
    slow = link(Pace(delay_s=0.2))
    assert [slow.arrival(1500, now) for now in (1.0, 1.5)] == [1.2, 1.7]


def test_delays_add_up_and_the_narrowest_counts() -> None:
    slow = link(Pace(0.25, 1024.0), Pace(0.5, 512.0))
    assert slow.arrival(64, 1.0) == 1.875


def test_packets_queue_for_a_narrow_link_and_those_that_do_not_fit_are_dropped() -> None:
    narrow = link(Pace(bytes_per_s=1024.0))
    arrivals = [narrow.arrival(128, 1.0) for _ in range(6)]
    assert arrivals == [1.125, 1.25, 1.375, 1.5, 1.5 + 0.125, None]
    assert BUFFERED_S == 0.5
    assert narrow.arrival(128, 1.25) == 1.75


def test_nothing_overtakes_when_a_link_is_mended() -> None:
    slow = link(Pace(delay_s=0.2))
    before = slow.arrival(100, 1.0)
    slow.paces.clear()
    assert slow.arrival(100, 1.1) == before
    assert slow.arrival(100, 2.0) == 2.0


@pytest.mark.long
def test_hosts_are_slow_with_each_other_and_no_longer() -> None:
    with HostNetwork("ab") as network:
        first, second = network.hosts["a"], network.hosts["b"]
        ways = ((first, second), (second, first))
        with second.entered():
            listener = socket.create_server((second.address, 0))
        with listener, _connect(first, listener) as client, listener.accept()[0] as server:
            slow, narrow = Pace(delay_s=DELAY_S), Pace(bytes_per_s=BANDWIDTH)
            network.slow_down(ways, slow)
            assert _seconds(client, server) >= 2 * DELAY_S
            network.slow_down(ways, narrow)
            network.speed_up(ways, slow)
            assert _seconds(client, server, pieces=8) >= 8 * PIECE_BYTES / BANDWIDTH
            network.cut(ways)
            client.sendall(b"x")
            server.settimeout(DELAY_S)
            with pytest.raises(TimeoutError):
                server.recv(1)
            network.mend(ways)
            network.speed_up(ways, narrow)
            server.settimeout(None)
            assert server.recv(1) == b"x"
            assert any(_seconds(client, server) < 2 * DELAY_S for _ in range(100))


def _connect(host: NetworkHost, listener: socket.socket) -> socket.socket:
    with host.entered():
        return socket.create_connection(listener.getsockname())


def _seconds(client: socket.socket, server: socket.socket, pieces: int = 1) -> float:
    """Return how long it takes until the pieces have come, one by one, and are answered."""
    began = time.monotonic()
    for _ in range(pieces):
        client.sendall(bytes(PIECE_BYTES))
        left = PIECE_BYTES
        while left:
            left -= len(server.recv(left))
    server.sendall(b"y")
    assert client.recv(1) == b"y"
    return time.monotonic() - began
