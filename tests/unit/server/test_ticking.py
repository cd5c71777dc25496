"""The tick of many connections does not keep other clients waiting."""

from itertools import pairwise

import pytest
import trio
import trio.testing

from amqpstore_server.process.ticking import AT_ONCE, Standstill, in_time, is_late, tick_all
from amqpstore_server.protocol import methods
from tests.conformance.wire_client import publish
from tests.fuzz.simulated import SimulatedClient, SimulatedServer

COUNT = 5 * AT_ONCE + 1


class Connection:
    """A connection that notes its ticks."""

    def __init__(self, ticked: list[object]) -> None:
        self._ticked = ticked

    def tick(self, now: float) -> None:
        assert now == trio.current_time()
        self._ticked.append(self)


def test_others_have_their_turn_between_the_ticks_of_many() -> None:
    ticked: list[object] = []
    connections = {Connection(ticked) for _ in range(COUNT)}
    seen: list[int] = []

    async def other() -> None:
        while len(ticked) < COUNT:
            seen.append(len(ticked))
            await trio.lowlevel.checkpoint()

    async def both() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            nursery.start_soon(tick_all, connections)

    trio.run(both, clock=trio.testing.MockClock())
    assert set(ticked) == connections
    assert len(ticked) == COUNT
    # In a round of trio both run once, in any order.
    assert all(after - before <= 2 * AT_ONCE for before, after in pairwise([0, *seen, COUNT]))


def test_a_tick_that_is_late_says_how_long_nothing_was_done() -> None:
    standstill = Standstill(0.5, 100.0)
    assert [standstill.tick(now) for now in (100.5, 101.9, 110.9, 111.4)] == [0.0, 0.0, 8.5, 0.0]


def test_a_deadline_that_is_met_late_was_none() -> None:
    async def look() -> None:
        now = trio.current_time()
        assert [is_late(now - late) for late in (0.0, 0.9, 3.0)] == [False, False, True]

    trio.run(look, clock=trio.testing.MockClock())


def pass_time(server: SimulatedServer, client: SimulatedClient, seconds: int, still: int) -> None:
    """Let time pass, in whose last seconds the broker stood still."""
    server.clock.advance(1000 * seconds)
    client.connection.stood_still(still, server.now_s)
    server.services.ack_timeouts.stood_still(1000 * still)
    client.connection.tick(server.now_s)
    server.broker.close_late_channels()
    server.settle()


def test_a_client_is_not_gone_because_the_broker_stood_still() -> None:
    with SimulatedServer() as server:
        client = SimulatedClient.opened(server, heartbeat_s=4)
        pass_time(server, client, 7, still=0)
        pass_time(server, client, 60, still=60)
        assert not client.connection.is_finished
        pass_time(server, client, 2, still=0)
        assert client.connection.is_finished, "what it was silent before counts"


def test_a_handshake_is_not_late_because_the_broker_stood_still() -> None:
    with SimulatedServer() as server:
        client = SimulatedClient(server)
        pass_time(server, client, 60, still=55)
        assert not client.connection.is_finished
        pass_time(server, client, 6, still=0)
        assert client.connection.is_finished


def test_a_handshake_is_excused_once_however_often_the_broker_is_late() -> None:
    with SimulatedServer() as server:
        client = SimulatedClient(server)
        for _ in range(4):
            pass_time(server, client, 4, still=3)
        assert client.connection.is_finished


def test_an_ack_is_not_late_because_the_broker_stood_still() -> None:
    with SimulatedServer() as server:
        server.services.consumer_timeout_ms = 10_000
        client = SimulatedClient.opened(server, channels=1)
        client.ask(1, methods.QueueDeclare(queue="q"))
        client.send(publish(1, "q", b"x"))
        client.ask(1, methods.BasicGet(queue="q"))
        before = len(client.answers)
        pass_time(server, client, 1, still=0)
        pass_time(server, client, 60, still=55)
        assert client.answers[before:] == []
        pass_time(server, client, 7, still=0)
        assert [one.method.name for one in client.answers[before:]] == ["channel.close"]


class Work:
    """Ends when it is told to."""

    def __init__(self) -> None:
        self.told = trio.Event()

    async def __call__(self) -> str:
        await self.told.wait()
        return "done"


@pytest.mark.trio
async def test_work_that_is_done_in_time_gives_its_result(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def work() -> str:
        await trio.sleep(4)
        return "done"

    assert await in_time(5, work) == "done"
    with pytest.raises(trio.TooSlowError):
        await in_time(3, work)
    assert trio.current_time() == pytest.approx(7)
    with pytest.raises(trio.TooSlowError):
        await in_time(5, work, trio.current_time() + 3)
    assert trio.current_time() == pytest.approx(10)


@pytest.mark.trio
async def test_what_work_raises_is_raised_as_it_is() -> None:
    async def work() -> None:
        raise KeyError("it")

    with pytest.raises(KeyError, match="it"):
        await in_time(5, work)


@pytest.mark.parametrize(("pauses", "expected"), [(1, "done"), (2, "too slow")])
@pytest.mark.trio
async def test_work_has_its_time_once_more_if_the_broker_stood_still(
    mock_clock: trio.testing.MockClock, pauses: int, expected: str
) -> None:
    work, ended = Work(), []

    async def run() -> None:
        try:
            ended.append(await in_time(5, work))
        except trio.TooSlowError:
            ended.append("too slow")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        for _ in range(pauses):
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(60)
        await trio.testing.wait_all_tasks_blocked()
        work.told.set()
    assert ended == [expected]
