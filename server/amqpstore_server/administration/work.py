"""Work in steps: a running broker serves its clients between two of them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")

Slow = Callable[[], Any]
"""Processor time that is to be spent in another thread: hashing a password."""

Work = Generator[Slow | None, Any, ResultT]
"""Work in steps. What it yields is to be called, and its result sent back; None asks only for the
others to have their turn.
"""


def done(work: Work[ResultT]) -> ResultT:
    """Do all of a work at once, and return its result: nobody else is there."""
    found = None
    while True:
        try:
            asked = work.send(found)
        except StopIteration as end:
            result: ResultT = end.value
            return result
        found = None if asked is None else asked()
