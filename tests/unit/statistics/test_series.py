"""Series of samples: what is kept, what is answered from it, and how large it gets."""

import pytest

from amqpstore_server.statistics.ranges import NO_RANGES, SampleRange, SampleRanges, ranges_of
from amqpstore_server.statistics.series import OBJECTS, TOTALS, CounterSeries


def test_a_sample_holds_until_the_next_one() -> None:
    series = CounterSeries(OBJECTS, 2)
    series.add(10_000, (1, 2))
    series.add(15_000, (1, 2))
    series.add(40_000, (5, 2))
    assert [series.at(time) for time in (10_000, 39_999, 40_000, 99_000)] == [
        (1, 2),
        (1, 2),
        (5, 2),
        (5, 2),
    ]


def test_before_the_first_sample_its_values_are_answered() -> None:
    series = CounterSeries(OBJECTS, 1)
    series.add(10_000, (7,))
    series.add(20_000, (9,))
    assert series.at(0) == (7,)


def test_the_last_sample_of_a_step_is_kept() -> None:
    series = CounterSeries(OBJECTS, 1)
    for time, value in ((10_000, 1), (11_000, 50), (200_000, 60)):
        series.add(time, (value,))
    assert series.at(150_000) == (50,)


def test_a_rate_is_that_of_the_last_five_seconds() -> None:
    series = CounterSeries(TOTALS, 1)
    for second in range(60):
        series.add(second * 1000, (second * second,))
    assert series.rates() == ((59 * 59 - 54 * 54) / 5,)
    series.add(70_000, (59 * 59,))
    series.add(75_000, (59 * 59,))
    assert series.rates() == (0.0,)


def test_one_sample_has_no_rate() -> None:
    series = CounterSeries(OBJECTS, 1)
    assert series.rates() == (0.0,)
    series.add(1000, (5,))
    assert series.rates() == (0.0,)


def test_what_is_older_gets_coarser_and_then_is_gone() -> None:
    series = CounterSeries(OBJECTS, 1)
    for step in range(2000):
        series.add(step * 5000, (step,))
    now_ms = 1999 * 5000
    assert series.at(now_ms - 600_000) == (1999 - 120,)
    in_an_hour = series.at(now_ms - 3_000_000)[0]
    assert 0 <= (1999 - 600) - in_an_hour < 12
    assert series.at(0) == series.at(now_ms - 7_200_000)
    assert sum(len(ring.times) for ring in series._rings) == 122 + 62


def test_less_memory_is_a_shorter_past() -> None:
    series = CounterSeries(OBJECTS, 1)
    for step in range(500):
        series.add(step * 5000, (step,), 0.001)
    assert [len(ring.times) for ring in series._rings] == [13, 13]


def test_ranges_are_asked_for_as_in_rabbitmq() -> None:
    query = {"lengths_age": "60", "lengths_incr": "5", "msg_rates_age": "600"}
    assert ranges_of(query) == SampleRanges(lengths=SampleRange(60, 5))
    assert ranges_of({}) == NO_RANGES
    assert list(SampleRange(10, 5).times_ms(1_003_999)) == [1_000_000, 995_000, 990_000]


@pytest.mark.parametrize(
    "query",
    [
        {"lengths_age": "-60", "lengths_incr": "5"},
        {"lengths_age": "60", "lengths_incr": "0"},
        {"data_rates_age": "x", "data_rates_incr": "5"},
        {"msg_rates_age": "\u0661", "msg_rates_incr": "1"},
        {"msg_rates_age": "86400", "msg_rates_incr": "5"},
    ],
)
def test_ranges_that_make_no_sense_are_refused(query: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="_age"):
        ranges_of(query)


def test_two_samples_of_one_moment_are_one() -> None:
    """A sampler may be late at a start on a busy machine: a rate needs time to pass."""
    series = CounterSeries(OBJECTS, 1)
    series.add(1000, (3,))
    series.add(1000, (5,))
    assert series.rates() == (series.rate(0),) == (0.0,)
    series.add(2000, (9,))
    assert series.rates() == (series.rate(0),) == (4.0,)
