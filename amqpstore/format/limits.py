"""Sizes that the engine chooses for itself, suitable for a store of ordinary size."""

from __future__ import annotations

from typing import NamedTuple

from amqpstore.format.index import ENTRIES_A_FILE

PAGE_BYTES = 4096
"""A disk with bad sectors fails to read whole pages of this size."""


class StoreLimits(NamedTuple):
    """Limits of how much the engine does at once, and of when work is worth doing. They need not be
    changed.

    A store with small limits does everything it ever does within some hundred messages: the proofs
    use them for that. None of them is part of the format.
    """

    # Index files.

    entries_a_file: int = ENTRIES_A_FILE
    """The entries of a full one."""

    max_open_index_files: int = 64
    """How many are open to be appended to."""

    max_small_files: int = 16
    min_acked: int = 4096
    """Neighbours that fit in one file are merged when there are `max_small_files` of them, or when
    `min_acked` of their entries are acked, and more than are not.
    """

    max_released_files: int = 256
    """The files of a deleted queue that one checkpoint reads."""

    max_runs: int = 4096
    """The most runs that a queue has in memory, if index files have the others."""

    # Segments.

    table_step_bytes: int = 64 << 10
    """The least bytes between two messages in the offset table."""

    read_ahead_bytes: int = 1 << 20
    """The bytes of a segment that are read at once."""

    read_chunk_bytes: int = 4 << 20
    """The bytes of a longer record that are read at a time, if others must not be held up."""

    page_bytes: int = PAGE_BYTES
    """The bytes that are read at once around places that the disk cannot read."""

    compaction_piece_bytes: int = 1 << 20
    """The bytes that compaction writes at a time."""

    garbage_fraction: float = 0.5
    """Compaction is due when more of the segments is garbage."""

    fill_from_bytes: int = 16 << 10
    max_fill_bytes: int = 256 << 10
    """The log's last segment is filled with zeros ahead of use once it has `fill_from_bytes`: with
    as many as it has bytes, and at most `max_fill_bytes` at a time.
    """

    # Queues.

    joined_bytes: int = 64 << 10
    """A published message joins the run before it if that takes less memory: a run leaves memory as
    a whole, and splitting it takes time for each message.
    """

    split_messages: int = 1024
    """Messages that are split off a run of many at once, before a few of them are taken."""

    measured_messages: int = 4096
    """The messages for which the bytes of a queue are counted at a time: those of a shorter one at
    once.
    """

    # Time.

    unread_factor: int = 16
    """While the disk cannot read a part of the log, the next checkpoint waits for this many times
    as much log as otherwise.
    """

    housekeep_s: float = 1.0
    """About how often a `SharedStore` does housekeeping."""


LIMITS = StoreLimits()
"""The limits of every store, unless others are given."""
