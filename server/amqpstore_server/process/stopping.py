"""Stopping: how the connections of a broker end, so that nothing is done twice that need not be.

1. No more clients are accepted, and nothing more is delivered (`drain`).
2. A client that owes no ack is not read any more. What was read from it becomes durable and is
   confirmed, then its connection is closed: what it published is not published again by the next
   connection, but for what was on its way to the broker.
3. A client that has unacked deliveries may ack them, until the deadline. What it acks is not
   delivered again.
4. Those that are left at the deadline are closed as they are: unacked deliveries are redelivered
   after the start, and publishes without a confirm may be in their queues or not.
5. Clients have some seconds to answer the close (`say_goodbye`).

A crash at any point is no worse than without all this: nothing is promised here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Protocol

import trio

from amqpstore import DeposedError, DurabilityError, Store
from amqpstore.system.durability import is_of_failed_disk

_LOOK_S = 0.02
_GOODBYE_S = 3.0
"""How long clients may take to answer connection.close."""


class DrainedConnection(Protocol):
    """The connection of a client, for a broker that stops."""

    def stop_deliveries(self) -> None:
        """Deliver nothing more to the client."""

    def drain(self, now: float) -> bool:
        """Close the connection once the client owes no ack. Returns whether it still does."""

    def close(self, now: float) -> None:
        """Close the connection, whatever it is doing."""


async def drain(connections: Collection[DrainedConnection], drain_s: float) -> int:
    """Close connections as they become quiet. Returns how many are left at the deadline."""
    for connection in list(connections):
        connection.stop_deliveries()
    with trio.move_on_after(drain_s):
        while _count_left(connections):
            await trio.sleep(_LOOK_S)
    return _count_left(connections)


def _count_left(connections: Collection[DrainedConnection]) -> int:
    now = trio.current_time()
    return sum(connection.drain(now) for connection in list(connections))


async def say_goodbye(connections: Collection[DrainedConnection]) -> int:
    """Close every connection, giving the clients some seconds to answer.

    Returns how many did not.
    """
    now = trio.current_time()
    for connection in list(connections):
        connection.close(now)
    with trio.move_on_after(_GOODBYE_S):
        while connections:
            await trio.sleep(0.01)
    return len(connections)


@contextlib.contextmanager
def one_cause(store: Store) -> Iterator[None]:
    """Raise one error for those with which the tasks of a broker on a store end."""
    try:
        yield
    except (Exception, BaseExceptionGroup) as error:
        cause = cause_of(error, store.failure)
        if cause is error:
            raise
        raise cause from None


def cause_of(error: BaseException, failure: DurabilityError | None) -> BaseException:
    """Return the one error to report of those that ended the tasks.

    A failed disk comes first. Whoever uses the store after it finds it stopped, and may be the only
    one that raises anything: then it is `failure`, the error that has stopped the store.
    """
    causes = [*_causes(error)]
    return min([*causes, failure] if failure is not None else causes, key=_rank)


def _rank(error: BaseException) -> int:
    """Return the place of an error among the causes. A leader whose disk fails may be deposed as
    well, and must not follow on that disk.
    """
    if isinstance(error, DeposedError):
        return 2
    if isinstance(error, DurabilityError):
        return 0
    return 1 if is_of_failed_disk(error) else 3


def _causes(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _causes(one)
    else:
        yield error
