"""The trail of a message: what the log says of it, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from amqpstore.format.message import Message
from amqpstore.provenance.client_trails import Note


class QueuePosition(NamedTuple):
    """A place in a queue of the store, which only one message ever has."""

    queue_id: int
    sequence: int


class TrailStep(NamedTuple):
    """An event in the life of a message in one queue, in the batch `lsn`, sealed at `time_ms`.

    `detail` is that of the operation: when it expires, or how often it was delivered by then.
    """

    lsn: int
    time_ms: int
    kind: int
    position: QueuePosition
    detail: int


@dataclass
class Trail:
    """The known history of one message. `message` is None if no sound record of it was found.

    `lsn` and `time_ms` are those of the batch that it was published in, 0 if that is gone.
    `came_from` is the id of the message that became this one, 0 if it was published, or if the log
    does not have that one any more. `positions` are
    those that it has not left. `segment` has its record, 0 if there is none.
    """

    id: int
    came_from: int = 0
    message: Message | None = None
    segment: int = 0
    lsn: int = 0
    time_ms: int = 0
    steps: list[TrailStep] = field(default_factory=list)
    steps_left_out: int = 0
    positions: list[QueuePosition] = field(default_factory=list)
    became: list[int] = field(default_factory=list)


@dataclass
class Provenance:
    """The trails of a message and of what it became, and what they were read from.

    `first_lsn` is that of the first batch that the log still has, 0 if there is none. `read_bytes`
    were read; the answer `is_cut` if there was more. `damaged` batches and records could not be
    used; `missing` segments were removed while they were read. `clients` are those that had to do
    with it in any of its positions, each as a note of one message, oldest first.
    """

    trails: list[Trail] = field(default_factory=list)
    clients: list[Note] = field(default_factory=list)
    first_lsn: int = 0
    last_lsn: int = 0
    read_bytes: int = 0
    is_cut: bool = False
    damaged: int = 0
    missing: int = 0
