"""Tests written as coroutines for asyncio, and waiting for a condition in them."""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import ParamSpec

TEST_TIMEOUT_S = 120.0
WAIT_S = 60.0

Arguments = ParamSpec("Arguments")


def asynchronous(
    test: Callable[Arguments, Coroutine[object, object, None]],
) -> Callable[Arguments, None]:
    """Run the test in an event loop of its own, for TEST_TIMEOUT_S at most."""

    @functools.wraps(test)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(TEST_TIMEOUT_S):
                await test(*args, **kwargs)

        asyncio.run(bounded())

    return run


async def eventually(
    condition: Callable[[], Awaitable[bool]], what: str, timeout_s: float = WAIT_S
) -> None:
    """Ask until the condition holds."""
    deadline = time.monotonic() + timeout_s
    while not await condition():
        assert time.monotonic() < deadline, f"{what}: still not after {timeout_s} s"
        await asyncio.sleep(0.02)
