"""Percentiles against the plain definition on a sorted list."""

import math
import random

import pytest

from amqpstore_tools.bench.histogram import Histogram


def filled(samples: list[int]) -> Histogram:
    histogram = Histogram()
    for sample in samples:
        histogram.record(sample)
    return histogram


def nearest_rank(samples: list[int], percent: float) -> int:
    return sorted(samples)[max(1, math.ceil(percent * len(samples) / 100)) - 1]


def test_small_durations_are_exact() -> None:
    histogram = filled(list(range(1, 101)))
    assert [histogram.percentile_ns(percent) for percent in (0, 1, 50, 99, 99.9, 100)] == [
        1,
        1,
        50,
        99,
        100,
        100,
    ]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("percent", [0.1, 50, 90, 99, 99.9, 100])
def test_large_durations_are_exact_to_1_in_256_and_never_below(seed: int, percent: float) -> None:
    chance = random.Random(seed)
    samples = [int(chance.lognormvariate(13, 2)) for _ in range(3000)]
    exact = nearest_rank(samples, percent)
    assert exact <= filled(samples).percentile_ns(percent) <= exact * (1 + 1 / 256)


def test_the_ends_of_the_range_are_recorded() -> None:
    histogram = filled([0, -5, 2**63 - 1])
    assert histogram.percentile_ns(50) == 0
    assert histogram.percentile_ns(100) == histogram.max_ns == 2**63 - 1


def test_merging_is_recording_all() -> None:
    one, two = [5, 10**6, 10**9], [7, 7, 10**12]
    merged = Histogram()
    merged.merge([filled(one), filled(two)])
    assert merged.summary_ms() == filled(one + two).summary_ms()


def test_a_summary_is_in_milliseconds() -> None:
    assert filled([2_000_000] * 10).summary_ms() == {
        "p50": 2.0,
        "p99": 2.0,
        "p99_9": 2.0,
        "max": 2.0,
        "samples": 10,
    }


def test_no_samples_are_all_zero() -> None:
    assert set(Histogram().summary_ms().values()) == {0}
