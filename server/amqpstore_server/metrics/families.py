"""Metric families: one metric each, with its samples, as prometheus-client has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

_TOTAL = "_total"


class Described(NamedTuple):
    """The name of a metric and what it is. A counter ends in `_total`."""

    name: str
    help: str

    @property
    def is_counter(self) -> bool:
        """Whether it only goes up."""
        return self.name.endswith(_TOTAL)


def family(described: Described, labels: Sequence[str] = ()) -> Metric:
    """Return a family without samples: a counter or a gauge, as its name says."""
    kind = CounterMetricFamily if described.is_counter else GaugeMetricFamily
    made: Metric = kind(described.name, described.help, labels=labels)
    return made


def single(described: Described, value: float, labels: Mapping[str, str] | None = None) -> Metric:
    """Return a family with one sample."""
    made = family(described)
    made.add_sample(described.name, dict(labels or {}), value)
    return made


class Distribution(Protocol):
    """The values that a histogram is made of: see `BucketHistogram`."""

    @property
    def bounds(self) -> Sequence[float]: ...

    @property
    def buckets(self) -> Sequence[int]: ...

    @property
    def total(self) -> float: ...


def histogram(
    described: Described, measured: Distribution, labels: Mapping[str, str] | None = None
) -> Metric:
    """Return a histogram."""
    labels = labels or {}
    bounds = [*(f"{bound:.9g}" for bound in measured.bounds), "+Inf"]
    counts = accumulate(measured.buckets)
    made = HistogramMetricFamily(described.name, described.help, labels=[*labels])
    made.add_metric([*labels.values()], list(zip(bounds, counts, strict=True)), measured.total)
    return made


def facts(described: Described, values: Mapping[str, str]) -> Metric:
    """Return a metric that is always 1, and tells in its labels what is."""
    made = InfoMetricFamily(described.name, described.help)
    made.add_metric([], dict(values))
    return made


Families = Iterator[Metric]
