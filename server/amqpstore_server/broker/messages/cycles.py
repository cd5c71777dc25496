"""Cycles of dead letters: a message that comes back to a queue without a rejection on the way.

Only deaths since the last publish count. x-death cannot tell them from others: whoever publishes a
message again with the headers that it came with, as every retry handler does, publishes its x-death
as well, and a client may write what it likes there. So a dead letter has a header of the broker's
own, its landmark, which says how many entries of x-death are deaths since the publish. No client
gets it (see `envelope.visible`), so that none publishes it again. One that a client has made up
is taken off it (see `envelope.published`); in a store that has such already it lacks the store's
mark.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from amqpstore_server.broker.messages.deaths import Death, Reason
from amqpstore_server.protocol.field_table import (
    FieldValue,
    Int64,
    decode_value,
    encode_name,
    encode_value,
)

LANDMARK = "x-death-landmark"
"""The name of the header."""

LANDMARK_FIELD = encode_name(LANDMARK)
"""The name of the landmark, encoded."""

_MARK = "BCC"
"""The field with the store's mark: its name has what is looked for in properties that are not shown
to consumers as they are, so that no message has to be searched twice."""

_MAX_BYTES = 512
"""The broker writes no longer landmark: a queue's name has at most 255 bytes."""

_MAX_COUNT = (1 << 63) - 1


class Landmark(NamedTuple):
    """The deaths of a message since it was published: the first `deaths` entries of x-death, and,
    once they are more than x-death can have, the `queue` that it left when the number of its
    `moves` was last a power of two.

    The latter is Brent's cycle detection, and finds a cycle of any length, even when x-death has
    forgotten where it began: the queue comes to lie on the cycle, early enough that the message
    returns to it before the next one takes its place. So a message goes at most three times round,
    and no list of queues is needed.
    """

    deaths: int = 0
    queue: str = ""
    moves: int = 0

    def is_cycle(self, queue: str, deaths: Sequence[Death]) -> bool:
        """Tell whether a message with these entries of x-death has been in a queue since it was
        published, without a rejection since.
        """
        if self.moves and queue == self.queue:
            return True
        for death in deaths[: self.deaths]:
            if death.reason == Reason.REJECTED:
                return False
            if death.queue == queue:
                return True
        return False


def mark_of(store_id: bytes) -> str:
    """Return what tells landmarks of this store from what clients write."""
    return hashlib.blake2b(store_id, digest_size=8, person=b"landmark").hexdigest()


def deaths_since_publish(value: bytes | None, mark: str) -> int:
    """Return how many of the first entries of x-death are deaths since the publish, by the value of
    the header and the mark of the store.
    """
    # A client may have written megabytes under this name; comparing them would cost more than any
    # real one.
    if value is None or value[_MAX_BYTES:]:
        return 0
    return _known(value, mark)


@lru_cache(maxsize=256)
def _known(value: bytes, mark: str) -> int:
    return _decoded(value, mark).deaths


def landmark_after(
    value: bytes | None, mark: str, index: int, queue: str, reason: Reason, max_deaths: int
) -> tuple[Landmark, bytes]:
    """Return the landmark of a message after one more death, and the header's value.

    Args: value, of the header until then; that of a message that was just published is None, and
    one that somebody else wrote counts as none. mark, the store's. place, where x-death had the
    entry that this death was added to, its length if it had none; max_deaths, how long it can be.
    """
    if value is not None and value[_MAX_BYTES:]:
        value = None
    return _after(value, mark, index, queue, reason, max_deaths)


@lru_cache(maxsize=256)
def _after(
    value: bytes | None, mark: str, index: int, queue: str, reason: Reason, max_deaths: int
) -> tuple[Landmark, bytes]:
    deaths, marked, moves = Landmark() if value is None else _decoded(value, mark)
    if index >= deaths:
        deaths += 1
    if reason == Reason.REJECTED:
        moves = 0  # a cycle that includes a rejection may go on
    elif 0 < moves < _MAX_COUNT:
        moves += 1
    elif deaths > max_deaths:
        moves = deaths
        marked = queue
    if moves & (moves - 1) == 0:
        marked = queue if moves else ""
    landmark = Landmark(min(deaths, max_deaths), marked, moves)
    table: dict[str, FieldValue] = {_MARK: mark, "queue": marked}
    table |= {"deaths": Int64(landmark.deaths), "moves": Int64(moves)}
    return landmark, encode_value(table)


def _decoded(value: bytes, mark: str) -> Landmark:
    table = decode_value(value)
    # Without the store's mark it is something that a client has made up.
    if not isinstance(table, Mapping) or table.get(_MARK) != mark:
        return Landmark()
    deaths, queue, moves = (table.get(name) for name in Landmark._fields)
    if isinstance(deaths, int) and isinstance(queue, str) and isinstance(moves, int):
        return Landmark(deaths, queue, moves)
    return Landmark()
