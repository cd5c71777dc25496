"""Faults: errors of the broker's own, and what one of them may cost.

A message, a definition or a package's exchange type may bring out an error in the work of a queue
that nobody expected. It must not cost more than that queue: the queue is set aside, which means
that it is not served until the next start, and that what is in it stays where it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from amqpstore.errors import DurabilityError, StoreClosedError

_log = logging.getLogger(__name__)

FATAL = (DurabilityError, StoreClosedError)
"""What ends the broker all the same: nothing can be promised any more."""


class FaultDomain(Protocol):
    """What an error may cost, and no more than that: a queue."""

    def set_aside(self, error: Exception) -> None:
        """Have it out of service: its work has failed."""


class Contained:
    """Sets a queue aside where the block, which is its work, fails; and goes on behind it."""

    __slots__ = ("_queue",)

    def __init__(self, queue: FaultDomain) -> None:
        self._queue = queue

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception) or isinstance(error, FATAL):
            return False
        self._queue.set_aside(error)
        return True


def called(work: Callable[[], object], or_else: Callable[[], object] | None = None) -> None:
    """Call what must not keep others from being called.

    Where it fails, that is logged, and `or_else` called: it sees to it that nobody goes on waiting
    for what was not done.
    """
    try:
        work()
    except FATAL:
        raise
    except Exception:  # noqa: BLE001
        _log.exception("internal work of the broker failed")
        if or_else:
            called(or_else)
