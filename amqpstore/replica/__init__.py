"""A follower's store: the copy of a leader's log that one member of a group keeps on its disk.

A follower is a second reader of the same log. Its log segments are byte for byte those of the
leader; its checkpoints, index files, compacted segments and quarantine are its own. So `Store.open`
on its directory is all that a promotion takes.

Synchronous and without sockets, like the rest of the engine. A single node imports none of it.

- `membership`: the file `MEMBER`, which makes a directory a member's.
- `creating`: the directory of a new member.
- `sealed_batch`: a batch on its way from a leader to its followers.
- `log_reading`: what a member has of the log, and the bytes that another one lacks.
- `follower_log`: received batches, which count once they are committed.
- `segment_rewrite`: the end of the log, written anew when a follower joins its leader.
- `whole_copy`: a copy of a leader's store, as it is sent.
- `replacement`: how such a copy takes the place of a follower's own store.
- `follower_store`: the interface to all of this.
"""

from amqpstore.replica.creating import create_follower
from amqpstore.replica.follower_store import FollowerStore
from amqpstore.replica.log_reading import LOG_START, BatchEnd, LogReader, NamedBatch, log_ends
from amqpstore.replica.membership import (
    Membership,
    read_membership,
    remove_membership,
    write_membership,
)
from amqpstore.replica.replacement import Replacement
from amqpstore.replica.sealed_batch import SealedBatch
from amqpstore.replica.segment_rewrite import Discarded, SegmentRewrite
from amqpstore.replica.whole_copy import CopySource, WholeCopy

__all__ = [
    "LOG_START",
    "BatchEnd",
    "CopySource",
    "Discarded",
    "FollowerStore",
    "LogReader",
    "Membership",
    "NamedBatch",
    "Replacement",
    "SealedBatch",
    "SegmentRewrite",
    "WholeCopy",
    "create_follower",
    "log_ends",
    "read_membership",
    "remove_membership",
    "write_membership",
]
