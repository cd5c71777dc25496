"""Answers of much content are made and sent a few at a time."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import trio
import trio.testing

from amqpstore_server.management.call import LargeAnswer
from amqpstore_server.management.errors import HttpError


@pytest.mark.trio
async def test_who_gets_no_place_in_time_is_told_to_come_back(
    mock_clock: trio.testing.MockClock,
) -> None:
    mock_clock.autojump_threshold = 0
    places = trio.Semaphore(1)
    async with AsyncExitStack() as first, AsyncExitStack() as second:
        await LargeAnswer(places, first).take()
        with pytest.raises(HttpError) as refused:
            await LargeAnswer(places, second).take()
    assert refused.value.status == 503
    assert places.value == 1


@pytest.mark.trio
async def test_a_place_is_free_when_the_answer_is_sent_or_is_small_after_all() -> None:
    places = trio.Semaphore(1)
    async with AsyncExitStack() as held:
        answer = LargeAnswer(places, held)
        await answer.take()
        await answer.release()
        assert places.value == 1
        await answer.take()
        assert places.value == 0
    assert places.value == 1
