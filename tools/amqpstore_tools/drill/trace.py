"""A recorded history: what was done to a disk, and what the outside asked and was told meanwhile.

The marks between the operations are what a store is held to. `Asked` is noted before the store
is called: from then on the effect may be there. `Promised` is noted when the outside is told
(a confirm leaves, an ack is settled): from then on it must be there, through any crash.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.operations import Operation

if TYPE_CHECKING:
    from amqpstore_tools.drill.observation import Observation


EXCHANGE = "amqpstore-drill"
"""The exchange of everything that a drill publishes to a store on a simulated disk."""


class Payload(NamedTuple):
    """What was published. Where a drill did, the routing key is the message's name: no two have
    the same."""

    exchange: str
    routing_key: str
    properties: bytes
    body: bytes


def message_name(exchange: str, routing_key: str, message_id: int) -> str:
    """What a message is called: those that were in the store before the drill, by their id."""
    return routing_key if exchange == EXCHANGE else f"message {message_id}"


class Deed(enum.Enum):
    """What the outside asks for."""

    CREATE_QUEUE = "create queue"
    DELETE_QUEUE = "delete queue"
    PUBLISH = "publish"
    TAKE = "take"
    ACK = "ack"
    PURGE = "purge"
    KEEP_FILE = "keep file"


@dataclass(frozen=True, slots=True)
class Asked:
    """Request `number`: a deed to `queues`, about the messages `names`.

    `payloads`: of a PUBLISH. `is_kept`: what a PUBLISH or a CREATE_QUEUE makes is to survive a
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
class Opened:
    """The store was opened, and holds this: all of it is promised from now on."""

    observation: Observation


Mark = Asked | Promised | Opened


@dataclass
class Trace:
    """`base` is the disk before the first of the `events`, and `before` what a store there held."""

    base: MemoryFiles
    before: Observation | None = None
    events: list[Operation | Mark] = field(default_factory=list)

    @property
    def numbers(self) -> range:
        """Return the numbers of the operations, from 1."""
        return range(1, sum(not is_mark(event) for event in self.events) + 1)

    def note(self, event: Operation | Mark) -> None:
        """Add what happened next."""
        self.events.append(event)


def is_mark(event: Operation | Mark) -> bool:
    """Whether an event is a mark, and no operation on the disk."""
    return isinstance(event, Asked | Promised | Opened)
