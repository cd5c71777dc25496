"""The tick of many connections does not keep anybody else waiting."""

from itertools import pairwise

import trio
import trio.testing

from amqpstore_server.ticking import AT_ONCE, tick_all

COUNT = 5 * AT_ONCE + 1


class Connection:
    """It notes its ticks."""

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
