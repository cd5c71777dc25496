"""What a member asks of its driver, and by which of its methods the answer is handed in."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from amqpstore_server.cluster.frames import Frame, ReplicaPosition, ShippedBatch
from amqpstore_server.cluster.keys import EtcdTransaction


class ReadKeys(NamedTuple):
    """Read all keys of the group, linearizably: answered by `Member.viewed`."""


class Grant(NamedTuple):
    """Grant a lease of `lease_s`: answered by `Member.granted`."""


class Attempt(NamedTuple):
    """Carry out a transaction, once: answered by `Member.attempted`."""

    transaction: EtcdTransaction


class KeepAlive(NamedTuple):
    """Renew a lease: answered by `Member.kept_alive`."""

    lease: int


class Revoke(NamedTuple):
    """Give a lease back; nobody waits for it."""

    lease: int


class Dial(NamedTuple):
    """Connect to the leader: answered by `Member.connected`, or not at all."""

    member: str


class HangUp(NamedTuple):
    """Close a connection: nothing comes from it any more."""

    link: int


class Send(NamedTuple):
    link: int
    frame: Frame


class Persist(NamedTuple):
    """Make the term durable: answered by `Member.persisted`."""

    term: int


class Append(NamedTuple):
    """Write a batch behind what is there, and sync it: answered by `Member.appended`.

    Answers come in the order of the batches; one sync may cover many.
    """

    batch: ShippedBatch


class Discard(NamedTuple):
    """Remove what is behind a position, into quarantine: answered by `Member.discarded`."""

    behind: ReplicaPosition


class CatchUp(NamedTuple):
    """Send a follower what the log has behind a position, up to the frame `seq`."""

    link: int
    behind: ReplicaPosition
    seq: int


class Open(NamedTuple):
    """Recover the store and serve clients: answered by `Member.opened`."""

    term: int


class Committed(NamedTuple):
    """All frames of the term up to `seq` may be confirmed."""

    seq: int


class BlockPublishers(NamedTuple):
    """Block publishers, as on a full disk, or let them go on."""

    is_blocked: bool


class StepDown(NamedTuple):
    """Close clients and the store at once: answered by `Member.closed`."""

    reason: str


Effect: TypeAlias = (
    ReadKeys
    | Grant
    | Attempt
    | KeepAlive
    | Revoke
    | Dial
    | HangUp
    | Send
    | Persist
    | Append
    | Discard
    | CatchUp
    | Open
    | Committed
    | BlockPublishers
    | StepDown
)
