"""Latencies of the last seconds."""

import pytest

from amqpstore.log.measures import BucketHistogram
from amqpstore_server.statistics.latencies import RecentLatency


@pytest.fixture
def histogram() -> BucketHistogram:
    return BucketHistogram(0.001, 10)


def test_half_of_the_values_are_below_their_median(histogram: BucketHistogram) -> None:
    latency = RecentLatency(histogram)
    latency.sample(0)
    assert latency.quantiles() == {"p50": None, "p99": None}
    histogram.observe(0.0015, 98)
    histogram.observe(0.1, 2)
    found = latency.quantiles()
    assert found["p50"] == pytest.approx(0.001 * (1 + 50 / 98))
    assert found["p99"] == pytest.approx(0.064 * 1.5)


def test_values_above_all_bounds_are_at_the_last(histogram: BucketHistogram) -> None:
    histogram.observe(100.0)
    assert RecentLatency(histogram).quantiles()["p50"] == pytest.approx(0.512)


def test_what_is_older_than_some_seconds_counts_no_more(histogram: BucketHistogram) -> None:
    latency = RecentLatency(histogram)
    histogram.observe(0.1, 1000)
    for second in range(7):
        latency.sample(second * 1000)
    assert latency.quantiles()["p50"] is None
    histogram.observe(0.0015)
    assert latency.quantiles()["p50"] == pytest.approx(0.0015)
    for second in range(7, 14):
        latency.sample(second * 1000)
    assert latency.quantiles()["p50"] is None
