"""Latencies of the last seconds, out of histograms that count from the start on."""

from __future__ import annotations

from collections.abc import Sequence

from amqpstore.log.measures import BucketHistogram

_LATELY_MS = 5000

Quantiles = dict[str, float | None]


class RecentLatency:
    """The latest values of one histogram: `sample` has to be called about once a second."""

    def __init__(self, histogram: BucketHistogram) -> None:
        self._histogram = histogram
        self._samples: list[tuple[int, list[int]]] = []

    def sample(self, now_ms: int) -> None:
        """Note what has been counted by now."""
        samples = self._samples
        samples.append((now_ms, self._histogram.buckets))
        while len(samples) > 2 and samples[1][0] <= now_ms - _LATELY_MS:
            del samples[0]

    def quantiles(self) -> Quantiles:
        """Return the times in seconds that half of the latest values, and 99 % of them, are not
        above; None if there are none.
        """
        before = self._samples[0][1] if self._samples else [0] * len(self._histogram.buckets)
        counts = [now - then for now, then in zip(self._histogram.buckets, before, strict=True)]
        bounds = self._histogram.bounds
        return {"p50": _quantile(bounds, counts, 0.5), "p99": _quantile(bounds, counts, 0.99)}


def _quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    wanted = sum(counts) * share
    if not wanted:
        return None
    seen = 0
    for bound, count in zip(bounds, counts, strict=False):
        if count and seen + count >= wanted:
            # As Prometheus does: values are spread evenly over their bucket.
            return float(bound / 2 * (1 + (wanted - seen) / count))
        seen += count
    return float(bounds[-1])
