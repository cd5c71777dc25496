"""Effects: requests of a member to its driver. Each names the method by which the answer is handed
in.

Effects are carried out in order. Those of the disk (from `Persist` on) are one queue: none is begun
before the one before it is durable, except that one sync may cover many batches in a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from amqpstore_server.cluster.frames import (
    Definition,
    DefinitionsSnapshot,
    Frame,
    ReceivedFile,
    ReplicaPosition,
    ShippedBatch,
    StoreCopy,
    StorePiece,
)
from amqpstore_server.cluster.keys import EtcdTransaction
from amqpstore_server.cluster.notes import Notes

# etcd.


class ReadKeys(NamedTuple):
    """Read all keys of the group, linearizably: answered by `GroupMember.viewed`."""


class Grant(NamedTuple):
    """Grant a lease of `lease_s`: answered by `GroupMember.granted` or `grant_failed`."""


class Attempt(NamedTuple):
    """Carry out a transaction, once: answered by `GroupMember.attempted`."""

    transaction: EtcdTransaction


class KeepAlive(NamedTuple):
    """Renew a lease: answered by `GroupMember.kept_alive`, or not at all."""

    lease: int


class Revoke(NamedTuple):
    """Give a lease back, without an answer."""

    lease: int


class ShowAlive(NamedTuple):
    """Put a key below `alive/` under a lease of 10 s, without an answer."""

    key: str
    value: Mapping[str, Any]


# Connections.


class Dial(NamedTuple):
    """Connect to the leader: answered by `GroupMember.connected`, or not at all.

    All writes that were asked for before are durable when the answer is given: what a follower says
    it has must be on its disk.
    """

    member: str
    address: str
    takes_tags: bool = False
    """Whether the leader knows connections whose frames have tags."""


class HangUp(NamedTuple):
    """Close a connection, behind what was sent on it: nothing comes from it any more."""

    link: int


class Send(NamedTuple):
    link: int
    frame: Frame


class CatchUp(NamedTuple):
    """Send a follower a `DefinitionsSnapshot`, and then all batches behind a position up to
    the batch `number`, with the `seq` 0. All of them are on this member's disk.
    """

    link: int
    behind: ReplicaPosition
    number: int


class SendCopy(NamedTuple):
    """Send a follower a copy of the whole store: `StorePiece`s, and then a `StoreCopy`. Of the
    files that it has received already, those are left out that are the same.
    """

    link: int
    received: tuple[ReceivedFile, ...]


# The file MEMBER.


class WriteNotes(NamedTuple):
    """Write what the member has seen into MEMBER: answered by `GroupMember.noted` once it is
    durable. Nothing else waits for it.
    """

    notes: Notes


# The disk.


class Persist(NamedTuple):
    """Make the term durable: answered by `GroupMember.persisted`."""

    term: int


class Append(NamedTuple):
    """Write a batch behind what is there, and sync it: answered by `GroupMember.synced`."""

    batch: ShippedBatch


class Define(NamedTuple):
    """Commit a change of definitions: answered by `GroupMember.synced`."""

    definition: Definition


class Restore(NamedTuple):
    """Replace all definitions by the leader's, without an answer."""

    snapshot: DefinitionsSnapshot


class FindReceived(NamedTuple):
    """Find out what was received of a copy that was cut off: answered by
    `GroupMember.found_received`.
    """

    term: int


class Receive(NamedTuple):
    """Write a piece of the leader's store, beside the own one, without an answer."""

    piece: StorePiece


class Adopt(NamedTuple):
    """Replace the own store by the copy of the leader's that was received, without an answer. If
    the own has something behind the common position it goes into quarantine.
    """

    copy: StoreCopy
    common: ReplicaPosition


class Sync(NamedTuple):
    """Answer with `GroupMember.synced` once all that was asked for before is durable."""

    term: int
    seq: int


class Discard(NamedTuple):
    """Discard what the log has behind a position: answered by `GroupMember.discarded`.

    It goes into quarantine, and what was in it into a report. No checkpoint covers it.
    """

    behind: ReplicaPosition


class CheckpointUpTo(NamedTuple):
    """Batches up to this number are committed: a checkpoint may cover those of them that are here,
    and never more. Until the first of these in a term, none may be made.
    """

    number: int


# The broker.


class Open(NamedTuple):
    """Recover the store and serve clients, publishers too: answered by `GroupMember.opened`."""

    term: int


class Committed(NamedTuple):
    """All frames of this leader's term up to `seq`, and so all batches up to `number`: they may be
    confirmed, and declarations in them answered.
    """

    seq: int
    number: int


class BlockPublishers(NamedTuple):
    """Block publishers, as on a full disk, or let them go on."""

    is_blocked: bool


class StepDown(NamedTuple):
    """Close clients and the store at once: answered by `GroupMember.closed`."""

    reason: str


class Exit(NamedTuple):
    """End the process once what was sent is on its way: its disk or its event loop hangs. A
    supervisor starts it again.
    """

    reason: str


class TellOperator(NamedTuple):
    """Log what an operator should know."""

    text: str


EtcdEffect: TypeAlias = ReadKeys | Grant | Attempt | KeepAlive | Revoke | ShowAlive
LinkEffect: TypeAlias = HangUp | Send | CatchUp | SendCopy
StreamEffect: TypeAlias = (
    Append | Define | Restore | Sync | Discard | CheckpointUpTo | FindReceived | Receive | Adopt
)
DiskEffect: TypeAlias = Dial | Persist | Open | StreamEffect
BrokerEffect: TypeAlias = Committed | BlockPublishers | StepDown | Exit | TellOperator
Effect: TypeAlias = EtcdEffect | LinkEffect | DiskEffect | BrokerEffect | WriteNotes
