"""Measurements of a store's work: how long it took and how much it was, in histograms."""

from __future__ import annotations

import time

_LESS = 1e-9
"""A value that is a bound belongs to the bucket below it, as Prometheus counts."""

_SLOTS = 128
"""More than any value needs."""

MAX_UNCOUNTED = 4096
"""Durable batches that wait to be counted, in a program that never looks at its measurements."""


class BucketHistogram:
    """Counts of values up to each of some bounds: each bound is twice the one before.

    `total` is the sum of all values; a value is counted in `counts[place]`, with the `place` of its
    `scale`. Of two threads that observe at once neither is lost, as CPython changes threads between
    calls only.
    """

    __slots__ = ("bounds", "counts", "scale", "total")

    def __init__(self, first: float, buckets: int) -> None:
        self.bounds = tuple(first * (1 << power) for power in range(buckets))
        self.counts = [0] * _SLOTS
        self.total = 0.0
        self.scale = 1 / first

    def observe(self, value: float, count: int = 1) -> None:
        """Count a value that occurred `count` times."""
        self.counts[int(value * self.scale - _LESS).bit_length()] += count
        self.total += value * count

    def observe_since(self, began_s: float) -> None:
        """Count the time since a reading of `time.perf_counter`."""
        self.observe(time.perf_counter() - began_s)

    @property
    def buckets(self) -> list[int]:
        """The number of values that belong to each bound, and at last of those above all."""
        last = len(self.bounds)
        return [*self.counts[:last], sum(self.counts[last:])]

    @classmethod
    def of_seconds(cls) -> BucketHistogram:
        """Return one for times from 16 us to 17 s."""
        return cls(16e-6, 21)


class StoreMeasures:
    """The measurements of one store. `sync_s` are its fdatasyncs, `batch_messages` and
    `batch_bytes` what each of them was for; `checkpoint_s` and `compaction_s` are the background
    work, `commit_s` the commits of the catalog. `read_messages` were read back from disk;
    compaction has read and written `compacted_bytes`, and freed `freed_bytes`.
    """

    def __init__(self) -> None:
        self.sync_s = BucketHistogram.of_seconds()
        self.batches: list[tuple[int, int, float]] = []
        """Durable batches that are not counted yet, up to `MAX_UNCOUNTED`: messages, bytes, seconds
        of the sync.
        """
        self.batch_messages = BucketHistogram(1, 18)
        self.batch_bytes = BucketHistogram(256, 20)
        self.checkpoint_s = BucketHistogram.of_seconds()
        self.compaction_s = BucketHistogram.of_seconds()
        self.commit_s = BucketHistogram.of_seconds()
        self.written_messages = 0
        self.read_messages = 0
        self.read_count = self.read_bytes = 0
        self.read_s = 0.0
        """Reads of messages that had left memory, the bytes of their bodies, and their time."""
        self.compacted_bytes = 0
        self.freed_bytes = 0

    def count_batches(self) -> None:
        """Count the batches that have become durable: not one by one, as nothing waits for it."""
        batches, self.batches = self.batches, []
        for messages, byte_count, sync_s in batches:
            self.sync_s.observe(sync_s)
            self.batch_messages.observe(messages)
            self.batch_bytes.observe(byte_count)
            self.written_messages += messages
