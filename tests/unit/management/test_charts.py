"""Tests of what live pages are sent: samples in columns, and the events of a stream."""

from typing import Any

import pytest
import trio
import trio.testing

from amqpstore_server.management.errors import HttpError
from amqpstore_server.management.pages import charts, formats
from amqpstore_server.management.pages.charts import LiveReading, events

READING = LiveReading({"ready": "7"}, {"ready": 7.0}, {"times": [1.0, 2.0], "ready": [5.0, 6.0]})
NOW = (b"event: figures", b"event: samples")


def samples(*pairs: tuple[float, float]) -> dict[str, Any]:
    """Return samples as the API has them: the newest first, in milliseconds."""
    return {"samples": [{"timestamp": at * 1000, "sample": value} for at, value in pairs]}


def test_samples_are_columns_of_rates_and_of_lengths() -> None:
    """A count that begins again has no rate, nor do two counts of one moment."""
    details = {
        "publish": samples((20, 45), (15, 40), (15, 35), (10, 30), (5, 20), (0, 40)),
        "messages_ready": samples((20, 7), (0, 5)),
        "ack": {},
    }
    assert charts._merged(details, charts.RATES, 0) == {
        "times": [0, 5, 10, 15, 20],
        "publish": [None, 0, 2, 1, 1],
        "messages_ready": [5, None, None, None, 7],
        "ack": [None] * 5,
    }
    assert charts._merged({"publish": {}}, charts.RATES, 0) == {}


def test_a_chart_begins_with_the_broker() -> None:
    """The API repeats the first value for the time before, as RabbitMQ's clients expect samples."""
    details = {
        "publish": samples((20, 8), (15, 3), (10, 3)),
        "messages_ready": samples((20, 7), (15, 7), (10, 7), (5, 7), (0, 7)),
    }
    assert charts._merged(details, charts.RATES, 12) == {
        "times": [15, 20],
        "publish": [None, 1],
        "messages_ready": [7, 7],
    }
    assert charts._merged(details, charts.RATES, 21) == {}


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(1_700_000_000, "1700000000 (2023-11-14 22:13:20 UTC)"), (1 << 62, str(1 << 62))],
)
def test_a_timestamp_has_its_date(seconds: int, shown: str) -> None:
    assert formats.moment_of_seconds(seconds) == shown


class Stream:
    """A stream of events whose reader notes them without their times."""

    def __init__(self) -> None:
        self.stopping = trio.Event()
        self.has_session = True
        self.reading = READING
        self.error: HttpError | None = None
        self.heard: list[bytes] = []

    async def read(self, _api: Any) -> LiveReading:
        if self.error:
            raise self.error
        return self.reading

    async def current(self) -> Any:
        return self if self.has_session else None

    async def run(self, most: int) -> None:
        async for event in events(self.read, self.current, self.stopping):
            self.heard.append(event.partition(b"\n")[0])
            self.last = event
            if len(self.heard) == most:
                self.stopping.set()


@pytest.mark.trio
async def test_a_stream_begins_with_what_was_kept(autojump_clock: trio.testing.MockClock) -> None:
    """A value comes every two seconds after that, and the tables are read after three of them."""
    stream = Stream()
    await stream.run(most=14)
    assert stream.heard == [b"event: samples", *[*NOW, *NOW, *NOW, b"event: tick"] * 2]
    assert trio.current_time() == pytest.approx(5 * charts.EVERY_S)


@pytest.mark.trio
async def test_one_sample_is_no_line(autojump_clock: trio.testing.MockClock) -> None:
    stream = Stream()
    stream.reading = READING._replace(samples={"times": [1.0], "ready": [5.0]})
    await stream.run(most=2)
    assert stream.heard == [*NOW]


@pytest.mark.trio
async def test_a_stream_says_why_it_ends(autojump_clock: trio.testing.MockClock) -> None:
    ended, gone = Stream(), Stream()
    ended.has_session = False
    await ended.run(most=9)
    assert ended.last == b"event: ended\ndata: {}\n\n"
    gone.error = HttpError(404, "Object Not Found", "no queue 'q'")
    await gone.run(most=9)
    assert gone.last == b'event: gone\ndata: {"reason":"no queue \'q\'"}\n\n'
