"""Figures of an open store, for those who watch it: see `StoreStatistics`."""

from __future__ import annotations

from typing import NamedTuple


class LogFigures(NamedTuple):
    """The log: `segment_bytes` on disk in `segments`, of which `live_bytes` are needed and
    `garbage_bytes` are not, as of the last checkpoint. The next start reads `tail_bytes`, those
    after it. `pending_bytes` are not durable yet.
    """

    segments: int
    segment_bytes: int
    live_bytes: int
    garbage_bytes: int
    tail_bytes: int
    tail_messages: int
    pending_bytes: int
    segment: int
    """The number of the last segment."""
    sequence: int
    """The sequence number of the next batch (LSN)."""
    checkpoint_segment: int
    checkpoint_age_s: float
    quarantined_segments: int
    work: str
    """The work in the background: "checkpoint", "compaction", another word, or nothing."""


class CountedSegment(NamedTuple):
    """A segment: its size, and what was live and garbage in it at the last checkpoint. `is_log`: no
    checkpoint has counted it yet.
    """

    number: int
    size_bytes: int
    live_bytes: int
    garbage_bytes: int
    messages: int
    live_messages: int
    is_log: bool


class StoreFigures(NamedTuple):
    """A store. `opening_s` is what its start took, with recovery; `torn_bytes`, `rolled_back`,
    `lost` and `damaged` are what that found. Sizes of memory are those of messages, the ready ones
    and the unacked ones; `free_bytes` those of the disk when it was last asked.
    """

    log: LogFigures
    memory_bytes: int
    unacked_bytes: int
    memory_budget_bytes: int
    free_bytes: int
    least_free_bytes: int
    opening_s: float
    torn_bytes: int
    rolled_back: int
    lost: int
    damaged: int
