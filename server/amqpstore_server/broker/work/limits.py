"""The broker's own limits on memory, and on work that is done in one go."""

from __future__ import annotations

from typing import NamedTuple


class BrokerLimits(NamedTuple):
    """Limits of how much the broker does at once, and remembers. They are not configured: tests
    lower them.

    While more than `max_pending_bytes` wait for the disk, or `max_pending_moves` transactions that
    move messages between queues, messages stop moving between queues.
    `max_replay_bytes` is the most memory of one replay, which is one batch of the log;
    `max_read_back_bytes` the most bytes of bodies that a transaction reads back from disk to move
    them to other queues. A limit of a queue drops `max_dropped` messages at once, and
    `max_dropped_read` if they have to be read for that. In one round consumers are given about
    `max_handed_out` messages, and of the bindings of deleted queues and exchanges `max_unbound` are
    removed. An operator's move is made in transactions of `max_selected` messages. A round looks at
    `max_pumped` of the queues that may have something to hand out. If a publish goes to more than
    `max_dropping` queues with limits, they drop what is too much then in later rounds.

    `round_budget` is the budget of a round, in about microseconds, for what may be much more than
    the bytes that clients send: looking for routes among thousands of patterns, putting publishes
    in many queues, moving messages to other queues, dropping them. The reads of a round have it,
    and then the queues once more; the rest waits for the next round. The costs are below, and in
    `queues.pending_moves`.

    x-death has `max_deaths` entries at most: consumers that republish a message have to fit them in
    a field table, and each further move copies all of them. `max_failed_branches` rolled-back
    branches are remembered until somebody asks for their outcome. Each cache of routes has about
    `max_cached_bytes`; a full cache is cleared.
    """

    max_pending_bytes: int = 32 << 20
    max_pending_moves: int = 128
    max_replay_bytes: int = 64 << 20
    max_read_back_bytes: int = 64 << 20
    max_dropped: int = 16_384
    max_dropped_read: int = 1024
    max_dropping: int = 64
    max_handed_out: int = 1024
    max_unbound: int = 256
    max_selected: int = 256
    max_pumped: int = 1024
    round_budget: int = 3000
    max_deaths: int = 100
    max_failed_branches: int = 1000
    max_cached_bytes: int = 32 << 20


COPY_COST = 6
"""The cost of putting a publish in one queue, if it needs a decision of its own."""

MOVE_COST = 30
"""The cost of a transaction that moves messages to other queues, besides that of the messages."""

DROP_COST = 15
"""The cost of dropping a run of messages."""

DELETE_COST = 100
"""The cost of deleting a queue."""

LOOK_COST = 3
"""The cost of a look at a queue that may have messages to move or to drop."""

BROKER_LIMITS = BrokerLimits()
"""The limits of every broker, unless others are given."""
