"""Percentiles of durations in bounded memory, whatever the number of samples."""

from array import array
from collections.abc import Iterable, Iterator

_PRECISION_BITS = 9  # a sample is kept to 1 part in 256
_SLOTS = (64 - _PRECISION_BITS + 1) << _PRECISION_BITS
PERCENTILES = (("p50", 50.0), ("p99", 99.0), ("p99_9", 99.9))


class Histogram:
    """Counts durations in nanoseconds, 0 to 2^63, in slots whose width grows with the duration."""

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 * _SLOTS))
        self.count = 0
        self.max_ns = 0

    def record(self, duration_ns: int) -> None:
        """Count one duration; a negative one counts as 0."""
        duration_ns = max(0, duration_ns)
        shift = max(0, duration_ns.bit_length() - _PRECISION_BITS)
        self._slots[(shift << _PRECISION_BITS) + (duration_ns >> shift)] += 1
        self.count += 1
        self.max_ns = max(self.max_ns, duration_ns)

    def slots(self) -> Iterator[tuple[int, int]]:
        """Yield the slots that counted something, by number, with their counts."""
        return ((slot, count) for slot, count in enumerate(self._slots) if count)

    def merge(self, others: Iterable["Histogram"]) -> None:
        """Add the counts of other histograms."""
        for other in others:
            for slot, count in other.slots():
                self._slots[slot] += count
            self.count += other.count
            self.max_ns = max(self.max_ns, other.max_ns)

    def percentile_ns(self, percent: float) -> int:
        """Return the smallest duration that `percent` of the samples do not exceed (nearest rank).

        Exact to 1 part in 256, rounded up, never above the maximum; 0 without samples.
        """
        rank = max(1, -int(-percent * self.count // 100))
        seen = 0
        for slot, count in self.slots():
            seen += count
            if seen >= rank:
                shift = slot >> _PRECISION_BITS
                mantissa = slot & ((1 << _PRECISION_BITS) - 1)
                return min(self.max_ns, ((mantissa + 1) << shift) - 1)
        return 0

    def summary_ms(self) -> dict[str, float | int]:
        """Return p50, p99, p99.9 and maximum in milliseconds, and the number of samples."""
        summary: dict[str, float | int] = {
            name: round(self.percentile_ns(percent) / 1e6, 4) for name, percent in PERCENTILES
        }
        return {**summary, "max": round(self.max_ns / 1e6, 4), "samples": self.count}
