"""Samples of some counters over time, in rings that get coarser with age.

A sample holds until the next one: who has not changed needs no new sample, and its rate is 0.
Times are those of the monotonic clock, in ms.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

RATE_MS = 5000
"""Rates are those of this time, as in RabbitMQ."""

_LEAST_SAMPLES = 13
"""The number of samples that a ring keeps however little memory there is: a minute of samples every
five seconds.
"""


class SampleRetention(NamedTuple):
    """The number of samples that are kept, one for each `step_ms`."""

    step_ms: int
    samples: int


_SERIES_BYTES = 1500
"""The memory that a series takes besides its samples."""

TOTALS = (
    SampleRetention(1000, 66),
    SampleRetention(5000, 122),
    SampleRetention(60_000, 62),
    SampleRetention(600_000, 50),
    SampleRetention(1_800_000, 49),
)
"""For totals: RabbitMQ's `global` policy (10 minutes, 1 hour, 8 hours, a day), and a minute of
seconds.
"""

OBJECTS = (SampleRetention(5000, 122), SampleRetention(60_000, 62))
"""For a queue, an exchange, a connection, a channel: RabbitMQ's `basic` policy."""

VHOSTS = (SampleRetention(1000, 66), *OBJECTS)

LEAST_SHARE = _LEAST_SAMPLES / OBJECTS[0].samples
"""Below this share of its samples, a series of `OBJECTS` does not get smaller."""


class _Ring:
    """Samples of one step: the time of each, and its values one after the other."""

    __slots__ = ("_limit", "_slot", "_step_ms", "_values", "_width", "times")

    def __init__(self, retention: SampleRetention, width: int) -> None:
        self._step_ms, self._limit = retention
        self._width = width
        self._slot = -1
        self.times = array("q")
        self._values = array("q")

    def add(self, now_ms: int, values: Sequence[int], share: float) -> None:
        """Add a sample; it replaces one of the same step."""
        slot = now_ms // self._step_ms
        if slot == self._slot:
            self.times[-1] = now_ms
            self._values[-self._width :] = array("q", values)
            return
        self._slot = slot
        self.times.append(now_ms)
        self._values.extend(values)
        excess = len(self.times) - max(int(self._limit * share), _LEAST_SAMPLES)
        if excess > 0:
            del self.times[:excess]
            del self._values[: excess * self._width]

    def before(self, index: int) -> tuple[int, ...]:
        """Return the values of the sample before an index."""
        return tuple(self._values[(index - 1) * self._width : index * self._width])


class CounterSeries:
    """Samples of `width` counters. `values` are the last ones, and have been since `changed_ms`."""

    __slots__ = ("_recent", "_rings", "changed_ms", "values")

    def __init__(self, retentions: Sequence[SampleRetention], width: int) -> None:
        self._rings = [_Ring(retention, width) for retention in retentions]
        self.values = (0,) * width
        self.changed_ms = 0
        self._recent: list[tuple[int, tuple[int, ...]]] = []
        """The samples that the rates are computed from."""

    def add(self, now_ms: int, values: tuple[int, ...], share: float = 1.0) -> None:
        """Add a sample, not before that of the last call.

        Args: share, of the samples that would be kept if there were enough memory.
        """
        recent = self._recent
        if recent and recent[-1][0] == now_ms:
            recent.pop()  # no time has passed in which anything could change
        recent.append((now_ms, values))
        while len(recent) > 2 and recent[1][0] <= now_ms - RATE_MS:
            del recent[0]
        if values == self.values and self.changed_ms:
            return
        self.values = values
        self.changed_ms = now_ms
        for ring in self._rings:
            ring.add(now_ms, values, share)

    def at(self, time_ms: int) -> tuple[int, ...]:
        """Return the values at a time; before the first sample that is known, those of this one."""
        if time_ms >= self.changed_ms:
            return self.values
        first: _Ring | None = None
        for ring in self._rings:
            if index := bisect_right(ring.times, time_ms):
                return ring.before(index)
            if ring.times and (first is None or ring.times[0] < first.times[0]):
                first = ring
        return first.before(1) if first else self.values

    def rates(self) -> tuple[float, ...]:
        """Return by how much each value has changed a second, lately."""
        if len(self._recent) < 2:
            return (0.0,) * len(self.values)
        then_ms, before = self._recent[0]
        now_ms, after = self._recent[-1]
        seconds = (now_ms - then_ms) / 1000
        return tuple([(new - old) / seconds for new, old in zip(after, before, strict=True)])

    def rate(self, index: int) -> float:
        """Return one of `rates`."""
        if len(self._recent) < 2:
            return 0.0
        then_ms, before = self._recent[0]
        now_ms, after = self._recent[-1]
        return (after[index] - before[index]) / ((now_ms - then_ms) / 1000)


def series_bytes(retentions: Sequence[SampleRetention], width: int) -> int:
    """Return about how many bytes of memory a full series of `width` values takes."""
    return _SERIES_BYTES + 8 * (width + 1) * sum([samples for _, samples in retentions])
