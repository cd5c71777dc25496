"""What members send each other. On the wire each is a length, a type, a header and raw bytes; here,
what they mean.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class ReplicaPosition(NamedTuple):
    """A place in the log: a batch of a term. Two replicas that both have it have the same batch."""

    term: int
    number: int


START = ReplicaPosition(0, 0)
"""The position of an empty log."""


class Hello(NamedTuple):
    """A follower names itself and what it has, newest position first."""

    member: str
    incarnation: str
    term: int
    positions: tuple[ReplicaPosition, ...]


class Welcome(NamedTuple):
    """The leader tells a follower where its log goes on: behind `common`, with frame `seq` + 1.

    `is_destructive`: the follower has something behind `common` that was never committed, and has
    to discard it, after it has asked etcd whether this really is the leader.
    """

    member: str
    incarnation: str
    term: int
    common: ReplicaPosition
    is_destructive: bool
    seq: int


class Ready(NamedTuple):
    """A follower has discarded what it had to, and asks for all that is behind `behind`."""

    term: int
    behind: ReplicaPosition


class ShippedBatch(NamedTuple):
    """A sealed batch. `seq` counts the frames of a term; `committed` is the last committed one.

    Batches of former terms, which a follower catches up with, have the `seq` 0.
    """

    term: int
    seq: int
    position: ReplicaPosition
    content: object
    committed: int


class Beat(NamedTuple):
    """A sign of life; the answer is a promise. `number` says which beat is answered."""

    term: int
    number: int
    committed: int


class Resign(NamedTuple):
    """The leader gives up: promises are void."""

    term: int


class Ack(NamedTuple):
    """All frames up to `seq` are on the follower's disk."""

    term: int
    seq: int


class Promise(NamedTuple):
    """The follower will not stand for election for some seconds."""

    term: int
    number: int


Frame: TypeAlias = Hello | Welcome | Ready | ShippedBatch | Beat | Resign | Ack | Promise
