"""References from the parts of a queue, or of a virtual host, to what they are part of, which they
do not keep alive.

So it is freed at once when it is deleted. A cycle of references would wait for the garbage
collector, which comes so seldom here that a million reply queues of clients that are gone would add
up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast
from weakref import WeakMethod, ref

T = TypeVar("T")
P = ParamSpec("P")


def weakly(owner: T) -> Callable[[], T]:
    """Return a function that returns an object, but does not keep it alive; for its own parts."""
    return cast("Callable[[], T]", ref(owner))


def weak_method(method: Callable[P, T]) -> Callable[P, T]:
    """Return a function that calls the method of an object, but does not keep it alive; for its own
    parts.
    """
    found = WeakMethod(method)

    def call(*arguments: P.args, **named: P.kwargs) -> T:
        its_method = found()
        if its_method is None:
            raise ReferenceError("a part outlives what it is part of")
        return its_method(*arguments, **named)

    return call
