"""Frames that members send each other; `codec` puts it on the wire.

A leader numbers what it ships in one term: 1 is the beginning of the term, which stands for all
that its log had then, and each batch and each change of definitions is the next *frame*. 0 is what
a frame has that only brings a follower nearer to the live stream.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, NamedTuple, TypeAlias

from msgspec import Meta, Struct

PROTOCOL = 3
"""The version of these frames. A leader sends the one that etcd has for the group; its key in etcd
names the one that it takes. Version 2 adds `Claim` and `Goodbye`; version 3 adds no frame, but the
tags of `frame_tags`, which a follower asks for when it connects.
"""
FOUNDED_PROTOCOL = 1
"""The lowest version that the members of a new group have to speak."""
CLAIM_PROTOCOL = 2
TAG_PROTOCOL = 3
MAX_TERM = (1 << 19) - 1
"""Terms up to this keep LSNs positive in 64 signed bits."""
MAX_TAIL = 4096
"""Positions that a follower names at most: of its newest segments."""
MAX_RECEIVED = 50_000
"""Files that a follower names at most, of a copy that was cut off: others are sent again."""
_NUMBER_BITS = 44

Term = Annotated[int, Meta(ge=0, le=MAX_TERM)]
Number = Annotated[int, Meta(ge=0, lt=1 << _NUMBER_BITS)]
Count = Annotated[int, Meta(ge=0, lt=1 << 62)]
Checksum = Annotated[int, Meta(ge=0, lt=1 << 32)]
Name = Annotated[str, Meta(min_length=1, max_length=64)]
FileName = Annotated[str, Meta(min_length=1, max_length=100)]
Reason = Annotated[str, Meta(max_length=1000)]


class ReplicaPosition(NamedTuple):
    """A place in the log: the batch `number` was sealed in a term. Numbers go on by one over all
    terms. Two replicas that both have a position have the same batch there.
    """

    term: Term
    number: Number

    @property
    def lsn(self) -> int:
        """The batch's LSN: the term in its top bits."""
        return self.term << _NUMBER_BITS | self.number

    @classmethod
    def of_lsn(cls, lsn: int) -> ReplicaPosition:
        """Return the position of a batch's LSN."""
        return cls(lsn >> _NUMBER_BITS, lsn & (1 << _NUMBER_BITS) - 1)


START = ReplicaPosition(0, 0)
"""The position of an empty log."""


class HeldBatch(NamedTuple):
    """A batch that a replica has: its position, and the CRC-32C of its TRANSACTION."""

    position: ReplicaPosition
    checksum: Checksum


class ReceivedFile(NamedTuple):
    """A file of a leader's store that was received whole, or in part: its name there, its size in
    bytes, and the CRC-32C of them.
    """

    name: FileName
    size: Count
    checksum: Checksum


class Join(Enum):
    """The work that a follower has to do before it takes the stream."""

    STREAM = "stream"
    """Nothing: the leader's log goes on where its own ends."""
    REPLACE = "replace"
    """Discard what it has behind the common position: it was never committed."""
    COPY = "copy"
    """Take a whole copy of the store, and connect again: the leader's log no longer has what it
    lacks.
    """


class _Frame(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    pass


class Hello(_Frame, frozen=True, tag=1):
    """A follower names itself and what it has on disk, newest batch first."""

    member: Name
    incarnation: Name
    store_id: Name
    protocol: Count
    """The highest version that it speaks."""
    term: Term
    tail: Annotated[tuple[HeldBatch, ...], Meta(max_length=MAX_TAIL)]


class Claim(_Frame, frozen=True, tag=15):
    """Sent before a Hello to a leader that takes it: which process of its member the follower is,
    and up to where it knows that everything was confirmed.
    """

    generation: Count
    confirmed: ReplicaPosition


class Refused(_Frame, frozen=True, tag=2):
    """The leader does not take this follower. Nothing comes behind it."""

    reason: Reason


class Welcome(_Frame, frozen=True, tag=3):
    """The leader tells a follower where its log goes on: behind `common`."""

    member: Name
    incarnation: Name
    protocol: Count
    term: Term
    join: Join
    common: ReplicaPosition


class Ready(_Frame, frozen=True, tag=4):
    """A follower has done what it had to, and asks for what it lacks. `join`: a copy, if it needs
    one although the leader has not said so. `received`: what it has of a copy that was cut off.
    """

    term: Term
    join: Join
    received: Annotated[tuple[ReceivedFile, ...], Meta(max_length=MAX_RECEIVED)] = ()


class DefinitionsSnapshot(_Frame, frozen=True, tag=5):
    """All definitions, as the leader has them: they replace the follower's."""

    term: Term
    number: Count
    """How many changes of definitions there have been."""
    content: bytes


class StorePiece(_Frame, frozen=True, tag=14):
    """Bytes of a file of the leader's store, from an offset on; none, behind a file that the
    follower has already. `sent` of the copy's `total` bytes are there with it.
    """

    term: Term
    name: FileName
    offset: Count
    sent: Count
    total: Count
    content: bytes


class StoreCopy(_Frame, frozen=True, tag=6):
    """All files of the leader's store have been sent. It ends where the leader's last checkpoint
    does; `content` is what has to be known of it, for the store only.
    """

    term: Term
    content: bytes


class ShippedBatch(_Frame, frozen=True, tag=7):
    """A sealed batch.

    layout: where in which segment it lies, and what its records are; for the store only.
    content: its bytes as the leader's log has them. committed: the number of the last batch that is
    committed. Batches that a follower catches up with have the `seq` 0.
    """

    term: Term
    seq: Count
    position: ReplicaPosition
    committed: Number
    layout: bytes
    content: bytes


class Definition(_Frame, frozen=True, tag=8):
    """A change of definitions: queues, exchanges, bindings, users and the like."""

    term: Term
    seq: Count
    number: Count
    committed: Number
    content: bytes


class CaughtUp(_Frame, frozen=True, tag=9):
    """All frames up to `seq` have been sent; what follows is live."""

    term: Term
    seq: Count
    committed: Number


class Beat(_Frame, frozen=True, tag=10):
    """A sign of life; the answer is a promise. `number` says which beat is answered."""

    term: Term
    number: Count
    committed: Number


class Resign(_Frame, frozen=True, tag=11):
    """The leader gives up: promises are void."""

    term: Term


class Ack(_Frame, frozen=True, tag=12):
    """All frames up to `seq` are on the follower's disk; with 0, something is, or a part of a large
    frame has come.
    """

    term: Term
    seq: Count


class Promise(_Frame, frozen=True, tag=13):
    """The follower will not stand for election for some seconds."""

    term: Term
    number: Count


class Goodbye(_Frame, frozen=True, tag=16):
    """The follower is being stopped, and is not to be waited for. Sent only to a leader that takes
    it.
    """

    term: Term


FromFollower: TypeAlias = Claim | Hello | Ready | Ack | Promise | Goodbye
FromLeader: TypeAlias = (
    Refused
    | Welcome
    | DefinitionsSnapshot
    | StorePiece
    | StoreCopy
    | ShippedBatch
    | Definition
    | CaughtUp
    | Beat
    | Resign
)
Frame: TypeAlias = FromFollower | FromLeader
