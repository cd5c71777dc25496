"""The clients' sockets in one selector: who is read in a round, and what wakes the waiting task."""

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

import amqpstore_server.loop.sockets
from amqpstore_server.loop.loop_limits import LOOP_LIMITS
from amqpstore_server.loop.share import Share
from amqpstore_server.loop.sockets import Sockets
from tests.one_client import StillClock


class Reading:
    """A client that notes what is read from it."""

    def __init__(self, sockets: Sockets, order: list[str], name: str) -> None:
        self.is_costly = False
        self.steps = 0
        self.was_long = False
        self.far, self.near = socket.socketpair()
        self._sockets = sockets
        self._order = order
        self._name = name
        sockets.add(self.near, self)

    @property
    def has_more(self) -> bool:
        return self.steps > 0

    def read_ready(self, now: float) -> None:
        if self.steps:
            self.steps -= 1
            self._order.append(f"{self._name} goes on")
            return
        assert self.near.recv(1)
        self._order.append(self._name)

    def took_long(self) -> None:
        self.was_long = True

    def close(self) -> None:
        self._sockets.remove(self.near)
        self.near.close()
        self.far.close()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> StillClock:
    """No round and no rest ends because this machine is busy."""
    clock = StillClock()
    monkeypatch.setattr(amqpstore_server.loop.sockets, "time", clock)
    return clock


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    made = Sockets(LOOP_LIMITS)
    yield made
    made.close()


async def returns(sockets: Sockets) -> bool:
    """Tell whether waiting ends before everything else does."""
    with trio.move_on_after(1) as waiting:
        await sockets.wait()
    return not waiting.cancelled_caught


def set_limits(sockets: Sockets, **seconds: Any) -> None:
    """Give the sockets other limits from now on."""
    sockets.limits = sockets.limits._replace(**seconds)


@pytest.fixture
def short_rounds(sockets: Sockets) -> None:
    """Each read takes a whole round."""
    set_limits(sockets, reading_s=-1.0)


def run(main: object) -> None:
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))  # type: ignore[arg-type]


def test_a_wake_ends_a_wait_and_is_heard_by_the_round(sockets: Sockets) -> None:
    """All of them: otherwise the next wait would return at once."""

    async def main() -> None:
        assert not await returns(sockets)
        for _ in range(3):
            sockets.wake()
        assert await returns(sockets)
        sockets.read(0.0)
        assert not await returns(sockets)

    run(main)


def test_each_is_read_once_in_a_round(sockets: Sockets) -> None:
    """A client that sends without a break does not keep others from their turn."""
    order: list[str] = []
    clients = [Reading(sockets, order, name) for name in "abc"]
    for client in clients:
        client.far.send(b"many")
    sockets.read(0.0)
    assert sorted(order) == ["a", "b", "c"]
    for client in clients:
        client.close()


@pytest.mark.usefixtures("short_rounds")
def test_who_is_left_over_by_a_round_is_read_before_those_who_were_read(sockets: Sockets) -> None:
    order: list[str] = []
    clients = [Reading(sockets, order, name) for name in "abc"]
    for client in clients:
        client.far.send(bytes(10))
    for _ in range(12):
        sockets.read(0.0)
    assert sorted(order[:3]) == ["a", "b", "c"]
    assert order == order[:3] * 4
    for client in clients:
        client.close()


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.usefixtures("short_rounds")
def test_who_always_has_more_than_a_round_takes_starves_nobody(
    sockets: Sockets, waits: bool
) -> None:
    set_limits(sockets, alone_s=60.0)

    async def main() -> None:
        order: list[str] = []
        greedy = [Reading(sockets, order, name) for name in "ab"]
        for client in greedy:
            client.far.send(bytes(100))
        late = Reading(sockets, order, "late")
        for _ in range(5):
            late.far.send(b"x")
            order.clear()
            # Those left over may come before it, and each of the others once.
            for _ in range(4):
                if waits:
                    await sockets.wait()
                sockets.read(0.0)
            assert "late" in order
        for client in (*greedy, late):
            client.close()

    trio.run(main)


@pytest.mark.usefixtures("short_rounds")
def test_who_left_in_the_middle_of_a_round_is_not_read(sockets: Sockets) -> None:
    order: list[str] = []
    first, second = (Reading(sockets, order, name) for name in "ab")
    for client in (first, second):
        client.far.send(b"x")
    sockets.read(0.0)
    left = second if order == ["a"] else first
    left.close()
    sockets.read(0.0)
    assert len(order) == 1
    (first if left is second else second).close()


def test_who_is_costly_is_read_after_the_others_and_only_when_they_have_had_their_time(
    sockets: Sockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    costly, other = (Reading(sockets, order, name) for name in ("costly", "other"))
    costly.is_costly = True
    for client in (costly, other):
        client.far.send(bytes(10))
    sockets.charge(60.0)
    sockets.read(0.0)
    assert order == ["other", "costly"], "no costly one was read before the charge"
    sockets.charge(60.0)
    sockets.read(0.0)
    sockets.read(0.0)
    assert order[2:] == ["other"] * 2, "it rests"
    other.near.recv(10)
    monkeypatch.setattr(sockets, "read_at", 0.0)
    sockets.read(0.0)
    assert order[4:] == ["costly"], "nobody else is at work"
    costly.is_costly = False
    sockets.read(0.0)
    assert order[5:] == ["costly"]
    for client in (costly, other):
        client.close()


@pytest.mark.parametrize(("reading_s", "rounds"), [(60.0, 1), (-1.0, 3)])
def test_those_who_are_costly_share_a_batch_while_others_are_quiet(
    sockets: Sockets, reading_s: float, rounds: int
) -> None:
    """One sync is for all of them, as far as that takes no longer than a round may."""
    set_limits(sockets, costly_reading_s=reading_s)
    order: list[str] = []
    costly = [Reading(sockets, order, f"costly {number}") for number in range(3)]
    for client in costly:
        client.is_costly = True
        client.far.send(b"x")
    for round_ in range(rounds):
        assert len(order) == round_
        sockets.read(0.0)
    assert len(set(order)) == 3
    for client in costly:
        client.close()


@pytest.mark.usefixtures("short_rounds")
def test_those_who_are_costly_share_what_is_left_to_them(
    sockets: Sockets,
) -> None:
    """The share is theirs however busy the others are; a client that has gone is not read."""
    sockets._share = Share(LOOP_LIMITS.costly_pause_ratio, LOOP_LIMITS._replace(others_s=0.0))
    order: list[str] = []
    costly = [Reading(sockets, order, f"costly {number}") for number in range(3)]
    other = Reading(sockets, order, "other")
    for client in (*costly, other):
        client.is_costly = client is not other
        client.far.send(bytes(50))
    for _ in range(12):
        sockets.read(0.0)
    counts = [sum(name == f"costly {number}" for name in order) for number in range(3)]
    assert min(counts) >= 2
    assert max(counts) <= min(counts) + 1
    assert order.count("other") >= 3
    costly[0].close()
    order.clear()
    for _ in range(6):
        sockets.read(0.0)
    assert "costly 0" not in order
    for client in (*costly[1:], other):
        client.close()


def test_a_read_is_continued_once_a_round_and_nothing_is_read_meanwhile(sockets: Sockets) -> None:
    order: list[str] = []
    long, other = (Reading(sockets, order, name) for name in ("long", "other"))

    async def main() -> None:
        long.far.send(b"xx")
        long.steps = 4
        sockets.read(0.0)
        assert order == ["long goes on"]
        for _ in range(3):
            other.far.send(b"x")
            assert await returns(sockets)
            sockets.read(0.0)
        assert order[1:] == ["other", "long goes on"] * 3
        assert await returns(sockets)
        sockets.read(0.0)
        sockets.read(0.0)
        assert order[7:] == ["long"] * 2
        assert not await returns(sockets)

    run(main)
    for client in (long, other):
        client.close()


@pytest.mark.usefixtures("short_rounds")
def test_reads_are_continued_however_busy_the_others_are(sockets: Sockets) -> None:
    order: list[str] = []
    long = [Reading(sockets, order, name) for name in ("a", "b")]
    other = Reading(sockets, order, "other")
    for client in long:
        client.far.send(b"x")
        client.steps = 10
    for _ in range(2):
        sockets.read(0.0)
    other.far.send(bytes(100))
    order.clear()
    for _ in range(8):
        sockets.read(0.0)
    assert order.count("a goes on") == order.count("b goes on") == 4
    assert order.count("other") == 8
    long[0].close()
    for _ in range(2):
        sockets.read(0.0)
    assert (order.count("a goes on"), order.count("b goes on")) == (4, 6)
    for client in (long[1], other):
        client.close()


def test_to_continue_a_read_that_is_costly_waits_for_the_others(sockets: Sockets) -> None:
    order: list[str] = []
    costly, other = (Reading(sockets, order, name) for name in ("costly", "other"))
    costly.is_costly = True
    costly.far.send(b"x")
    costly.steps = 2
    other.far.send(bytes(3))
    sockets.read(0.0)
    sockets.charge(60.0)
    sockets.read(0.0)
    assert order == ["other", "costly goes on", "other"]
    for client in (costly, other):
        client.close()


def test_who_has_more_when_it_is_added_is_read_at_once(sockets: Sockets) -> None:
    order: list[str] = []
    client = Reading(sockets, order, "a")
    sockets.remove(client.near)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sockets.wait)
            await trio.testing.wait_all_tasks_blocked()
            client.steps = 1
            sockets.add(client.near, client)
        sockets.read(0.0)
        assert order == ["a goes on"]

    run(main)
    client.close()


def test_a_wait_ends_when_those_who_are_costly_have_rested(
    sockets: Sockets, clock: StillClock
) -> None:
    """No other client writes."""
    order: list[str] = []
    costly, other = (Reading(sockets, order, name) for name in ("costly", "other"))
    costly.is_costly = True

    async def main() -> None:
        for client in (costly, other):
            client.far.send(b"xx")
        sockets.read(0.0)
        sockets.charge(60.0)
        while order.count("costly") < 2:
            clock.advance(0.001)
            await sockets.wait()
            sockets.read(0.0)
        assert order.count("other") == 2

    trio.run(main)
    for client in (costly, other):
        client.close()


class PendingMoves(Reading):
    """A client that has closed its side; it is gone when that was read."""

    def __init__(self, sockets: Sockets, order: list[str], sent: bytes = b"") -> None:
        super().__init__(sockets, order, "leaves")
        self.far.sendall(sent)
        self.far.close()

    def read_ready(self, now: float) -> None:
        if self.near.recv(1):
            self._order.append("last words")
            return
        self._order.append("left")
        self.close()


def test_a_crowd_that_leaves_leaves_the_others_their_turn(sockets: Sockets) -> None:
    """The order of arrival does not matter, and each of the crowd is read at last."""
    order: list[str] = []
    for _ in range(50):
        PendingMoves(sockets, order)
    stays = Reading(sockets, order, "stays")

    async def main() -> None:
        for read in range(1, 8):
            stays.far.send(b"x")
            assert await returns(sockets)
            sockets.read(0.0)
            assert order.count("stays") == read
            assert order.count("left") == min(8 * read, 50)
        assert not await returns(sockets)

    run(main)
    stays.close()


def test_a_thread_may_wake_those_that_are_closed() -> None:
    """The committer's thread may, whose last batch is no longer waited for."""
    closed = Sockets(LOOP_LIMITS)
    closed.close()
    closed.wake()


def test_what_a_client_sent_before_it_closed_its_side_is_read(sockets: Sockets) -> None:
    order: list[str] = []
    PendingMoves(sockets, order, b"abc")
    for _ in range(4):
        sockets.read(0.0)
    assert order == ["last words"] * 3 + ["left"]


def test_a_round_of_one_short_read_ends_at_once(
    sockets: Sockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch of the read is started before other clients are looked for."""
    set_limits(sockets, short_round_s=60.0)
    order: list[str] = []
    first, second = (Reading(sockets, order, name) for name in "ab")
    first.far.send(b"x")
    read = first.read_ready

    def read_while_another_writes(now: float) -> None:
        second.far.send(b"x")
        read(now)

    monkeypatch.setattr(first, "read_ready", read_while_another_writes)
    sockets.read(0.0)
    assert order == ["a"]
    sockets.read(0.0)
    assert order == ["a", "b"]
    for client in (first, second):
        client.close()


def test_other_tasks_run_when_they_have_something_to_do_or_some_time_has_passed(
    sockets: Sockets,
) -> None:
    ran: list[int] = []

    async def other() -> None:
        while True:
            ran.append(len(ran))
            await trio.lowlevel.checkpoint()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            client = Reading(sockets, [], "a")
            client.far.send(b"x")
            await sockets.wait()
            set_limits(sockets, alone_s=60.0)
            sockets.let_others_run()
            await sockets.wait()
            before = len(ran)
            assert before
            for _ in range(10):
                await sockets.wait()
            assert len(ran) == before
            sockets.let_others_run()
            set_limits(sockets, alone_s=0.0)
            for _ in range(10):
                await sockets.wait()
            assert len(ran) > before + 5
            client.close()
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_other_tasks_run_after_each_round_while_one_is_in_a_hurry(
    sockets: Sockets,
) -> None:
    set_limits(sockets, alone_s=60.0)
    ran: list[int] = []

    async def other() -> None:
        while True:
            ran.append(len(ran))
            await trio.lowlevel.checkpoint()

    async def runs() -> int:
        """Return how often the other task runs in ten waits."""
        await sockets.wait()
        before = len(ran)
        for _ in range(10):
            await sockets.wait()
        return len(ran) - before

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            clients = [Reading(sockets, order, name) for name in "ab"]
            for client in clients:
                client.far.send(b"x")
            assert await runs() == 0
            set_limits(sockets, hurry_s=60.0)
            sockets.hurry("one")
            sockets.hurry("two")
            assert await runs() > 5
            set_limits(sockets, hurried_reading_s=-1.0)
            assert sockets.read(0.0)
            assert order == ["a"]
            sockets.end_hurry("one")
            assert await runs() > 5
            sockets.end_hurry("two")
            assert await runs() == 0
            set_limits(sockets, hurry_s=-1.0)
            sockets.hurry("for no time")
            assert await runs() == 0
            for client in clients:
                client.close()
            nursery.cancel_scope.cancel()

    order: list[str] = []
    trio.run(main)


def test_other_tasks_run_before_those_who_are_costly_are_read(
    sockets: Sockets,
) -> None:
    """Reads of costly clients may take long, on top of the rounds since the others ran."""
    set_limits(sockets, alone_s=60.0)
    order: list[str] = []

    async def other() -> None:
        while True:
            order.append("others run")
            await trio.lowlevel.checkpoint()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            costly, ordinary = (Reading(sockets, order, name) for name in ("costly", "ordinary"))
            sockets._share = Share(0.0, LOOP_LIMITS)  # they never rest
            costly.is_costly = True
            sockets._others_run_at = float("inf")
            for _ in range(3):
                ordinary.far.send(b"x")
                await sockets.wait()
                sockets.read(0.0)
            assert order == ["ordinary"] * 3
            costly.far.send(b"xx")
            for _ in range(2):
                descriptor = costly.near.fileno()
                sockets._unwatch(descriptor)
                sockets._costly[descriptor] = costly
                await sockets.wait()
                sockets.read(0.0)
            assert order.count("costly") == 2
            assert "others run" in order
            for client in (costly, ordinary):
                client.close()
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_reader_whose_read_takes_long_is_told(
    sockets: Sockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader whose read follows the long one is not told."""
    order: list[str] = []
    now = iter([0.0, 0.0001, 0.0009, 0.001, 0.001])  # the begin, and the end of each read
    readers = [Reading(sockets, order, f"{number}") for number in range(3)]
    for reader in readers:
        reader.far.send(b"x")
    monkeypatch.setattr(
        amqpstore_server.loop.sockets, "time", SimpleNamespace(perf_counter=lambda: next(now))
    )
    assert not sockets.read(0.0)
    assert [readers[int(name)].was_long for name in order] == [False, True, False]
    for reader in readers:
        reader.close()
