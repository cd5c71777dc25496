"""A recorded history: operations on a disk, and the requests of and promises to the outside
meanwhile.

The marks between the operations are what a store is judged by. `Asked` is noted before the store is
called: from then on the effect may be visible. `Promised` is noted when the outside is told (a
confirm is sent, an ack is durable): from then on it must be visible after any crash.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from amqpstore_tools.drill.observation import Observation
from amqpstore_tools.drill.payloads import Payload
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.operations import Operation


class Deed(enum.Enum):
    """The kinds of requests from the outside."""

    CREATE_QUEUE = "create queue"
    DELETE_QUEUE = "delete queue"
    PUBLISH = "publish"
    TAKE = "take"
    ACK = "ack"
    PURGE = "purge"
    KEEP_FILE = "keep file"


@dataclass(frozen=True, slots=True)
class Asked:
    """Request `number`: a deed on `queues`, about the messages `names`.

    `payloads`: of a PUBLISH. `is_kept`: what a PUBLISH or a CREATE_QUEUE makes must survive a
    restart. `content`: of a KEEP_FILE, whose path is in `names`.
    """

    number: int
    deed: Deed
    queues: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    payloads: tuple[Payload, ...] = ()
    is_kept: bool = True
    content: bytes = b""


@dataclass(frozen=True, slots=True)
class Promised:
    """The outside was told that request `number` is done for good."""

    number: int


@dataclass(frozen=True, slots=True)
class StoreOpened:
    """The store was opened with this content: all of it is promised from now on."""

    observation: Observation


Mark = Asked | Promised | StoreOpened


@dataclass
class Trace:
    """`base` is the disk before the first of the `events`, and `before` the content of the store on
    it.
    """

    base: MemoryFiles
    before: Observation | None = None
    events: list[Operation | Mark] = field(default_factory=list)

    @property
    def numbers(self) -> range:
        """The numbers of the operations, from 1."""
        return range(1, sum(not is_mark(event) for event in self.events) + 1)

    def note(self, event: Operation | Mark) -> None:
        """Add the next event."""
        self.events.append(event)


def is_mark(event: Operation | Mark) -> bool:
    """Tell whether an event is a mark, and not an operation on the disk."""
    return isinstance(event, Asked | Promised | StoreOpened)
