"""Sizes that the engine chooses for itself, suitable for a store of ordinary size."""

from __future__ import annotations

from typing import NamedTuple

from amqpstore.format.index import ENTRIES_A_FILE

PAGE_BYTES = 4096
"""A disk with bad places fails to read whole pages of this size."""


class StoreLimits(NamedTuple):
    """Limits of how much the engine does at once, and of when work is worth doing. They need not be
    changed.

    A store with small limits does everything it ever does within some hundred messages: the proofs
    use them for that. None of them is part of the format.

    Index files: one is full with `entries_a_file`; `max_open_index_files` are open to be appended
    to. Neighbours that fit in one file are merged when there are `max_small_files` of them, or when
    `min_acked` of their entries are acked, and more than are not. One checkpoint reads
    `max_released_files` of a deleted queue. A queue has at most `max_runs` runs in memory, if index
    files have the others.

    Segments: between two messages in the offset table are at least `table_step_bytes`;
    `read_ahead_bytes` of a segment are read at once, and pages of `page_bytes` around places that
    the disk cannot read; of a longer record `read_chunk_bytes` at a time, if others must not be
    held up. Compaction writes `compaction_piece_bytes` at a time, and is due when more than
    `garbage_fraction` of the segments is garbage.

    Filling: the log's last segment is filled with zeros ahead of use once it has `fill_from_bytes`:
    with as many as it has bytes, and at most `max_fill_bytes` at a time.

    Queues: a published message joins the run before it if that takes less than `joined_bytes` of
    memory, as a run leaves memory as a whole, and splitting it takes time for each message. From a
    run of many messages `split_messages` are split off at once, before a few of them are taken. The
    bytes of a queue are counted for `measured_messages` at a time: those of a shorter one at once.

    While the disk cannot read a part of the log, the next checkpoint waits for `unread_factor`
    times as much log as otherwise. A `SharedStore` does housekeeping about every `housekeep_s`.
    """

    entries_a_file: int = ENTRIES_A_FILE
    max_open_index_files: int = 64
    max_small_files: int = 16
    min_acked: int = 4096
    max_released_files: int = 256
    max_runs: int = 4096
    table_step_bytes: int = 64 << 10
    read_ahead_bytes: int = 1 << 20
    read_chunk_bytes: int = 4 << 20
    page_bytes: int = PAGE_BYTES
    compaction_piece_bytes: int = 1 << 20
    garbage_fraction: float = 0.5
    fill_from_bytes: int = 16 << 10
    max_fill_bytes: int = 256 << 10
    joined_bytes: int = 64 << 10
    split_messages: int = 1024
    measured_messages: int = 4096
    unread_factor: int = 16
    housekeep_s: float = 1.0


LIMITS = StoreLimits()
"""The limits of every store, unless others are given."""
