"""Admission: how fast clients are let in, and whose turn it is."""

import socket
import struct
from collections.abc import Generator

import pytest

from amqpstore_server.listening.admission import AcceptRate, AdmissionLine


class Queue:
    """Clients that wait to be let in, and the names of those that were."""

    def __init__(self, most: int = 100, per_s: int = 1) -> None:
        self.admission = AdmissionLine(lambda: most)
        self.admission.rate.per_s = per_s
        self.let_in: list[str] = []
        self.has_room = True
        self.sockets: list[socket.socket] = []
        self.peers: dict[str, socket.socket] = {}

    def join(self, name: str, host: str = "a") -> None:
        ours, theirs = socket.socketpair()
        self.sockets += [ours, theirs]
        self.peers[name] = theirs

        def admit(_client: socket.socket, _host: str) -> bool:
            self.let_in.append(name)
            return self.has_room

        self.admission.join(ours, host, admit)

    def is_refused(self, name: str) -> bool:
        self.peers[name].setblocking(False)
        try:
            return self.peers[name].recv(1) == b""
        except BlockingIOError:
            return False


@pytest.fixture
def queue() -> Generator[Queue]:
    queue = Queue()
    yield queue
    for sock in queue.sockets:
        sock.close()


def test_peers_take_turns(queue: Queue) -> None:
    for name in ("a1", "a2", "a3", "a4"):
        queue.join(name, "a")
    queue.join("b1", "b")
    queue.join("c1", "c")
    for second in range(10):
        queue.admission.let_in(100.0 + second)
    assert queue.let_in == ["a1", "b1", "c1", "a2", "a3", "a4"]
    assert not queue.admission


def test_nobody_waits_below_the_rate(queue: Queue) -> None:
    queue.admission.rate.per_s = 10
    for number in range(12):
        queue.join(f"{number}")
    assert queue.admission.let_in(100.0) == pytest.approx(0.1)
    assert len(queue.let_in) == 11
    assert queue.admission.let_in(100.05) == pytest.approx(0.05)
    assert queue.admission.let_in(100.1) == pytest.approx(0.1)
    assert len(queue.let_in) == 12


def test_the_newest_of_the_peer_that_has_most_is_refused(queue: Queue) -> None:
    queue.admission = AdmissionLine(lambda: 3)
    queue.admission.rate.per_s = 1
    for name, host in (("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("b2", "b")):
        queue.join(name, host)
    assert [name for name in queue.peers if queue.is_refused(name)] == ["a2", "a3"]
    assert len(queue.admission) == 3


def test_one_that_has_gone_is_not_let_in_and_counts_little(queue: Queue) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        for _ in range(9):
            stranger = socket.create_connection(address)
            accepted, _ = listener.accept()
            queue.admission.join(accepted, "a", lambda _client, _host: False)
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stranger.close()
    queue.join("alive")
    queue.admission.let_in(100.0)
    assert queue.let_in == ["alive"]


def test_who_makes_others_leave_is_let_in_alone(queue: Queue) -> None:
    queue.admission.rate.per_s = 0
    queue.has_room = False
    for name in ("1", "2"):
        queue.join(name)
    assert queue.admission.let_in(100.0) == 0
    assert queue.let_in == ["1"]


def test_all_are_refused_at_the_end(queue: Queue) -> None:
    for name, host in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        queue.join(name, host)
    queue.admission.close()
    assert all(map(queue.is_refused, queue.peers))
    assert not queue.admission


def wait_after_one(rate: AcceptRate, now: float, share: float = 1.0) -> float:
    rate.note(now, share)
    return rate.wait_s(now)


def test_accepts_are_spread_after_a_second_s_worth() -> None:
    rate = AcceptRate(10)
    waits = [wait_after_one(rate, 100.0) for _ in range(30)]
    assert waits[:10] == [0.0] * 10
    assert waits[-1] == pytest.approx(2.0)
    assert wait_after_one(rate, 200.0) == 0.0


def test_one_that_counts_little_delays_little() -> None:
    rate = AcceptRate(10)
    assert {wait_after_one(rate, 100.0, share=0.1) for _ in range(99)} == {0.0}


def test_no_rate_is_no_wait() -> None:
    rate = AcceptRate()
    assert {wait_after_one(rate, 1.0) for _ in range(10_000)} == {0.0}
