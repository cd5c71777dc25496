"""New connections are accepted in a round of reads."""

import socket
from collections.abc import Iterator

import pytest
import trio

from amqpstore_server.loop.loop_limits import LOOP_LIMITS
from amqpstore_server.loop.sockets import Sockets
from tests.one_client import still_clock
from tests.waiting import wait_readable


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    found = Sockets(LOOP_LIMITS)
    yield found
    found.close()


class Turns(trio.abc.Instrument):
    """Counts the turns of trio's loop: in each of them all other tasks may run."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


class Street:
    """Notes when it is asked to accept new connections."""

    def __init__(self, *, accepts_all: bool) -> None:
        self.asked: list[float] = []
        self._accepts_all = accepts_all

    def has_arrived(self, now: float) -> bool:
        self.asked.append(now)
        return self._accepts_all


@pytest.mark.parametrize("accepts_all", [True, False])
def test_who_connects_is_accepted_before_clients_are_read(
    sockets: Sockets, *, accepts_all: bool
) -> None:
    """Busy clients do not matter; other tasks run only if not all of them could be accepted."""
    turns = Turns()
    street = Street(accepts_all=accepts_all)

    async def let_run(now: float) -> bool:
        """Whether other tasks run before a round."""
        before = turns.count
        sockets.wake()
        await sockets.wait()
        sockets.read(now)
        return turns.count > before

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            sockets.let_accept(listener, street)
            await let_run(1.0)
            assert not await let_run(2.0)
            assert street.asked == []
            sockets._look(0)  # the wake-up, if it was not seen
            with socket.create_connection(listener.getsockname()):
                wait_readable(listener)
                sockets._look(60)
                assert not await let_run(3.0)
                assert street.asked == [3.0]
                assert await let_run(4.0) is not accepts_all
                assert street.asked == [3.0]

    with still_clock():  # on a machine that stalls it would be their time again
        trio.run(main, instruments=[turns])


def test_who_connects_during_a_round_is_accepted_in_the_next(sockets: Sockets) -> None:
    street = Street(accepts_all=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sockets.let_accept(listener, street)
        with socket.create_connection(listener.getsockname()):
            wait_readable(listener)
            sockets.read(1.0)  # it looks for what became readable meanwhile
            assert street.asked == []
            assert not sockets._wait_s(0.0)
            sockets.read(2.0)
            assert street.asked == [2.0]


class Leaver:
    """A client that has closed its socket: two reads, of which the second one finds the end."""

    is_costly = has_more = False

    def __init__(self, sockets: Sockets, order: list[str]) -> None:
        self._sockets = sockets
        self._order = order
        self._near, far = socket.socketpair()
        with far:
            far.send(b"x")
        sockets.add(self._near, self)

    def read_ready(self, now: float) -> None:
        if not self._near.recv(1):
            self._order.append("end")
            self._sockets.remove(self._near)
            self._near.close()

    def took_long(self) -> None:
        pass


class Door:
    """Notes that new connections are accepted."""

    def __init__(self, order: list[str]) -> None:
        self._order = order

    def has_arrived(self, now: float) -> bool:
        self._order.append("newcomer")
        return True


def arrive_behind(sockets: Sockets, leavers: int, order: list[str]) -> None:
    """Have a client connect behind some that leave, and read until it is let in."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sockets.let_accept(listener, Door(order))
        for _ in range(leavers):
            Leaver(sockets, order)
        with socket.create_connection(listener.getsockname()):
            wait_readable(listener)
            sockets._look(60)
            while "newcomer" not in order:
                assert not sockets._wait_s(0.0)
                sockets.read(0.0)


def test_nobody_is_let_in_before_the_ends_of_those_that_left_are_read(
    sockets: Sockets,
) -> None:
    """A client that comes back at once would meet itself, and its exclusive queues."""
    sockets.limits = LOOP_LIMITS._replace(ends_first_s=60.0)
    order: list[str] = []
    arrive_behind(sockets, 50, order)
    assert order == ["end"] * 50 + ["newcomer"]


def test_newcomers_wait_for_those_that_leave_for_a_time_at_most(
    sockets: Sockets,
) -> None:
    """Clients that leave may have sent much before."""
    sockets.limits = LOOP_LIMITS._replace(ends_first_s=0.0)
    order: list[str] = []
    arrive_behind(sockets, 50, order)
    assert order[-1] == "newcomer"
    assert len(order) < 50
    while sockets._closing:
        sockets.read(0.0)
    assert order.count("end") == 50
