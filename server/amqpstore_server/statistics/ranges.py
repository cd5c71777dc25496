"""The part of the past that a request asks for: an age and an increment, in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

MAX_SAMPLES = 2000
"""The most samples of each counter in one answer."""

KINDS = ("lengths", "msg_rates", "data_rates")


class SampleRange(NamedTuple):
    """A sample for each `incr_s` of the last `age_s`."""

    age_s: int
    incr_s: int

    def times_ms(self, now_ms: int) -> range:
        """Return the times of the samples, newest first: multiples of the increment."""
        step_ms = self.incr_s * 1000
        last_ms = now_ms - now_ms % step_ms
        return range(last_ms, last_ms - self.age_s * 1000 - 1, -step_ms)


class SampleRanges(NamedTuple):
    """The ranges of the samples of lengths, of rates of messages, and of rates of bytes; None for
    no samples.
    """

    lengths: SampleRange | None = None
    msg_rates: SampleRange | None = None
    data_rates: SampleRange | None = None


NO_RANGES = SampleRanges()


def ranges_of(query: Mapping[str, str]) -> SampleRanges:
    """Return the ranges that a query asks for with `lengths_age`, `lengths_incr` and the others.

    Raises: ValueError, with what is wrong with it.
    """
    return SampleRanges(*(_range_of(kind, query) for kind in KINDS))


def _range_of(kind: str, query: Mapping[str, str]) -> SampleRange | None:
    age, incr = query.get(f"{kind}_age", ""), query.get(f"{kind}_incr", "")
    if not age or not incr:
        return None
    if not (age.isascii() and age.isdigit() and incr.isascii() and incr.isdigit()) or int(incr) < 1:
        raise ValueError(f"{kind}_age and {kind}_incr are positive numbers of seconds")
    if int(age) // int(incr) > MAX_SAMPLES:
        raise ValueError(f"{kind}_age is more than {MAX_SAMPLES} times {kind}_incr")
    return SampleRange(int(age), int(incr))
