"""The longest turns of the event loop, and what was done in them."""

from __future__ import annotations

import logging

import pytest
import trio

import amqpstore_server.loop.holds
from amqpstore_server.loop.holds import LoopHolds
from tests.one_client import StillClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StillClock:
    """Work takes the time that a test says."""
    clock = StillClock()
    monkeypatch.setattr(amqpstore_server.loop.holds, "time", clock)
    return clock


def test_a_long_turn_is_known_by_its_work(
    clock: StillClock, caplog: pytest.LogCaptureFixture
) -> None:
    work: dict[str, None] = {}

    async def run() -> LoopHolds:
        holds = LoopHolds(work)
        trio.lowlevel.add_instrument(holds)
        await trio.lowlevel.checkpoint()
        work["queue.purge"] = None
        clock.advance(0.03)
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        work["basic.qos"] = None
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        return holds

    with caplog.at_level(logging.INFO):
        holds = trio.run(run)
    assert list(holds.longest_s) == ["queue.purge"]
    assert holds.longest_s["queue.purge"] == pytest.approx(0.03)
    assert [record.message for record in caplog.records] == ["event loop held"]
    assert not work


def test_the_start_is_no_hold(clock: StillClock) -> None:
    """Definitions are imported, and queues drop expired messages, before a client can connect."""
    work = {"policies": None}

    async def run() -> LoopHolds:
        holds = LoopHolds(work)
        clock.advance(0.03)
        holds.begin()
        trio.lowlevel.add_instrument(holds)
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        return holds

    assert trio.run(run).longest_s == {}
    assert not work


@pytest.mark.usefixtures("no_garbage")
def test_waiting_is_no_hold() -> None:
    async def run() -> LoopHolds:
        holds = LoopHolds({})
        trio.lowlevel.add_instrument(holds)
        await trio.sleep(0.05)
        return holds

    assert trio.run(run).longest_s == {}
