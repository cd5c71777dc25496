"""Work in steps: a running broker serves its clients between two of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")

Slow = Callable[[], Any]
"""Processor time that is to be spent in another thread: hashing a password."""

Work = Generator[Slow | None, Any, ResultT]
"""Work in steps. What it yields is to be called, and its result sent back; None asks only for the
others to have their turn.
"""


async def carry_out(
    work: Work[ResultT], after_step: Callable[[Slow | None], Awaitable[Any]]
) -> ResultT:
    """Do all of a work, and return its result.

    Args: after_step, is given what each step yields; what it returns is sent back, and an error
    that it raises is raised there.
    """
    answer = None
    failed: Exception | None = None
    while True:
        try:
            asked = work.send(answer) if failed is None else work.throw(failed)
        except StopIteration as end:
            result: ResultT = end.value
            return result
        finally:
            failed = None  # or this frame and the error would keep each other
        try:
            answer = await after_step(asked)
        except Exception as error:  # noqa: BLE001 - it is raised in the work
            failed = error


def done(work: Work[ResultT]) -> ResultT:
    """Do all of a work at once, and return its result: nothing else waits for the thread."""
    try:
        carry_out(work, _at_once).send(None)
    except StopIteration as end:
        result: ResultT = end.value
        return result
    raise AssertionError("nothing in it waits")


async def _at_once(slow: Slow | None) -> Any:
    return None if slow is None else slow()
