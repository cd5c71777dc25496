"""Faults: internal errors of the broker, and how they are contained.

A message, a definition or a plug-in's exchange type may cause an unexpected error in the work of a
queue. It affects only that queue, which is set aside: it is not served until the next start, and
its messages stay in it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from amqpstore.errors import DurabilityError, StoreClosedError

_log = logging.getLogger(__name__)

FATAL = (DurabilityError, StoreClosedError)
"""Errors that stop the broker all the same: nothing can be made durable any more."""


class FaultDomain(Protocol):
    """The part of the broker that an internal error may affect: a queue."""

    def set_aside(self, error: Exception) -> None:
        """Take the queue out of service because its work has failed."""


class Contained:
    """Context manager around the work of a queue: if the block raises, the queue is set aside and
    execution continues after the block.
    """

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
        # A cancellation is not the fault of the queue, and a failing disk concerns all queues.
        if not isinstance(error, Exception) or isinstance(error, FATAL):
            return False
        self._queue.set_aside(error)
        return True


def called(work: Callable[[], object], or_else: Callable[[], object] | None = None) -> None:
    """Call something whose failure must not prevent other calls.

    If it raises, the error is logged and `or_else` is called, which makes sure that nothing waits
    for the result.
    """
    try:
        work()
    except FATAL:
        raise
    except Exception:  # noqa: BLE001
        _log.exception("internal work of the broker failed")
        if or_else:
            called(or_else)
