"""The broker's own limits on memory, and on work that is done in one go."""

from __future__ import annotations

from typing import NamedTuple


class BrokerLimits(NamedTuple):
    """Limits of how much the broker does at once, and remembers. They are not configured: tests
    lower them.
    """

    max_pending_bytes: int = 32 << 20
    max_pending_moves: int = 128
    """While more bytes wait for the disk, or more transactions that move messages between queues,
    messages stop moving between queues.
    """

    max_replay_bytes: int = 64 << 20
    """The most memory of one replay, which is one batch of the log."""

    max_read_back_bytes: int = 64 << 20
    """The most bytes of bodies that a transaction reads back from disk to move them to other
    queues.
    """

    max_dropped: int = 16_384
    max_dropped_read: int = 1024
    """The messages that a limit of a queue drops at once, and those that have to be read for that.
    """

    max_dropping: int = 64
    """If a publish goes to more queues with limits, they drop what is too much in later rounds."""

    max_handed_out: int = 1024
    """About how many messages consumers are given in one round."""

    max_pending_runs: int = 1024
    """If more runs wait for their turn to leave a queue, it hands out nothing: as many as a round
    hands out.
    """

    max_deferred_bytes: int = 64 << 10
    """The bytes of deferred publishes from which on they are flushed before the end of the round:
    with more of them a message costs hardly less, and they are not counted against the limit of
    bytes that wait for the disk.
    """

    deferred_copy_bytes: int = 64
    """The bytes that a message counts there in each of its queues, besides its body."""

    max_deferred_copies: int = 64
    """The number of messages of one client, or of queues of one message, from which on they are
    flushed at once, too: it takes time to enqueue them, which should count as that of their read.
    """

    max_deleted: int = 48
    """Queues, or exchanges, that are deleted before others have their turn: about 2 ms."""

    max_unbound: int = 256
    """The bindings of deleted queues and exchanges that are removed in one round."""

    max_selected: int = 256
    """The messages in one transaction of an operator's move."""

    max_pumped: int = 1024
    """How many of the queues that may have something to hand out a round looks at."""

    round_budget: int = 3000
    """The budget of a round, in about microseconds, for what may be much more than the bytes that
    clients send: looking for routes among thousands of patterns, putting publishes in many queues,
    moving messages to other queues, dropping them. The reads of a round have it, and then the
    queues once more; the rest waits for the next round. The costs are those that
    follow, and those in `queues.pending_moves`.
    """

    copy_cost: int = 6
    """The cost of putting a publish in one queue, if it needs a decision of its own."""

    move_cost: int = 30
    """The cost of a transaction that moves messages to other queues, besides that of the messages.
    """

    drop_cost: int = 15
    """The cost of dropping a run of messages."""

    delete_cost: int = 100
    """The cost of deleting a queue."""

    look_cost: int = 3
    """The cost of a look at a queue that may have messages to move or to drop."""

    max_deaths: int = 100
    """The entries of x-death: consumers that republish a message have to fit them in a field table,
    and each further move copies all of them.
    """

    max_failed_branches: int = 1000
    """Rolled-back branches that are remembered until somebody asks for their outcome."""

    max_cached_bytes: int = 32 << 20
    """About what each cache of routes has: a full one is cleared."""


BROKER_LIMITS = BrokerLimits()
"""The limits of every broker, unless others are given."""
