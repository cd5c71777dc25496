"""Statistics: rates and samples in the form of RabbitMQ's management API, and what they cost."""

from collections.abc import Iterator
from typing import Any

import pytest

from amqpstore_server.broker.broker import Defined
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.protocol import methods
from amqpstore_server.statistics import sampler as sampling
from amqpstore_server.statistics.ranges import SampleRange, SampleRanges
from amqpstore_server.statistics.sampler import Sampler
from amqpstore_server.statistics.statistics import Statistics
from tests.fuzz.simulated import SimulatedClient, SimulatedServer
from tests.unit.broker.simulated import Client

RANGE = SampleRange(20, 5)
RANGES = SampleRanges(RANGE, RANGE, RANGE)


class Observed:
    """A broker, and statistics that are sampled as time passes."""

    def __init__(self) -> None:
        self.server = SimulatedServer()
        self.sampler = Sampler(
            self.server.broker, lambda: [one.connection for one in self.server.clients]
        )
        self.statistics = Statistics(self.server.broker, self.sampler)
        self.queue = self.server.queue("q")
        self.client = Client(self.server)
        self.sample()

    def sample(self) -> None:
        for steps in (self.sampler.sample_totals(), self.sampler.sample_objects()):
            for _ in steps:
                pass

    def pass_five_seconds(self, count: int = 0) -> None:
        """Publish some messages, and let the sampler see them."""
        for _ in range(count):
            self.client.publish("", "q", "a")
        self.server.pass_time(5000)
        self.sample()


@pytest.fixture
def observed() -> Iterator[Observed]:
    made = Observed()
    with made.server:
        yield made


def test_rates_of_a_queue_of_its_virtual_host_and_in_total(observed: Observed) -> None:
    observed.pass_five_seconds(10)
    statistics = observed.statistics
    rows = [
        statistics.queue(observed.queue),
        statistics.vhost(observed.server.vhost),
        statistics.overview()["queue_totals"] | statistics.overview(),
        statistics.overview(vhosts=["/"])["queue_totals"] | statistics.overview(vhosts=["/"]),
    ]
    for row in rows:
        assert row["message_stats"]["publish"] == 10
        assert row["message_stats"]["publish_details"] == {"rate": 2.0}
        assert (row["messages"], row["messages_ready"]) == (10, 10)
        assert row["messages_details"] == {"rate": 2.0}
    observed.pass_five_seconds()
    assert statistics.queue(observed.queue)["message_stats"]["publish_details"] == {"rate": 0.0}


def test_a_queue_is_idle_since_the_sample_that_was_the_first_to_find_it_so(
    observed: Observed,
) -> None:
    clock = observed.server.broker.services.clock
    idle_since_ms = observed.statistics.idle_since_ms
    made_ms = clock.wall_ms()
    assert idle_since_ms(observed.server.queue("new")) is None
    observed.pass_five_seconds()
    assert idle_since_ms(observed.queue) == made_ms
    observed.client.publish("", "q", "a")
    assert idle_since_ms(observed.queue) is None
    observed.pass_five_seconds()
    seen_ms = clock.wall_ms()
    observed.pass_five_seconds()
    observed.pass_five_seconds()
    # It is no less idle for having messages, or a consumer that gets none.
    assert idle_since_ms(observed.queue) == seen_ms == clock.wall_ms() - 10_000


def test_a_number_that_is_read_alone_is_that_of_the_row(observed: Observed) -> None:
    observed.client.consume("q", "tag", no_ack=True)
    observed.pass_five_seconds(10)
    row = observed.statistics.queue(observed.queue)
    paths = [(name, *inside) for name, value in row.items() for inside in _inside(value)]
    assert ("message_stats", "deliver_get_details", "rate") in paths
    numbers = [path for path in paths if path[-1] == "rate" or not path[-1].endswith("_details")]
    for path in numbers:
        read = observed.statistics.queue_number(path)
        assert read is not None, path
        value = row
        for name in path:
            value = value[name]
        assert read(observed.queue) == pytest.approx(value), path
    assert observed.statistics.queue_number(("message_stats", "publish_details", "rate"))
    for path in [*set(paths) - set(numbers), ("nothing",), ("message_stats",)]:
        assert observed.statistics.queue_number(path) is None, path
    for path in (("messages", "rate"), ("message_stats", "messages"), ("publish",)):
        assert observed.statistics.queue_number(path) is None, path
    fresh = observed.server.queue("new")
    read = observed.statistics.queue_number(("messages_details", "rate"))
    assert read is not None
    assert read(fresh) == 0.0


def test_numbers_of_a_channel_and_of_a_connection_are_read_alone_too(observed: Observed) -> None:
    client = SimulatedClient.opened(observed.server, channels=1)
    observed.sample()
    client.ask(1, methods.QueueDeclare(queue="q", passive=True))
    observed.pass_five_seconds(10)
    statistics, connection = observed.statistics, client.connection
    (channel,) = connection.channels
    for row, reader, item in (
        (statistics.channel(channel), statistics.channel_number, channel),
        (statistics.connection(connection), statistics.connection_number, connection),
    ):
        paths = [(name, *inside) for name, value in row.items() for inside in _inside(value)]
        known = 0
        for path in paths:
            read = reader(path)
            value = row
            for name in path:
                value = value[name]
            known += read is not None
            assert read is None or read(item) == pytest.approx(value), path  # type: ignore[arg-type]
        assert known > len(paths) // 2
        assert reader(("publish",)) is None
    assert statistics.connection_number(("message_stats", "deliver_get")) is None
    assert statistics.connection_number(("recv_oct_details", "rate")) is not None


def _inside(value: Any) -> list[tuple[str, ...]]:
    if not isinstance(value, dict):
        return [()]
    found = [(name, *more) for name, part in value.items() for more in _inside(part)]
    return [*found, *((name,) for name, part in value.items() if isinstance(part, dict))]


def test_samples_of_a_range(observed: Observed) -> None:
    for count in (5, 0, 10):
        observed.pass_five_seconds(count)
    details = observed.statistics.queue(observed.queue, RANGES)["message_stats"]["publish_details"]
    now_ms = observed.server.now_ms
    assert details["samples"] == [
        {"sample": value, "timestamp": now_ms - age_ms}
        for value, age_ms in ((15, 0), (5, 5000), (5, 10_000), (0, 15_000), (0, 20_000))
    ]
    assert details["avg_rate"] == 0.75
    assert details["avg"] == 5.0
    assert details["rate"] == 2.0


def test_a_queue_that_was_always_idle_has_samples_too(observed: Observed) -> None:
    observed.pass_five_seconds()
    row = observed.statistics.queue(observed.queue, RANGES)
    assert [one["sample"] for one in row["messages_details"]["samples"]] == [0] * 5


def test_deliveries_add_up(observed: Observed) -> None:
    observed.client.publish("", "q", "a", "b", "c")
    observed.client.get("q")
    observed.client.consume("q", "tag", no_ack=True)
    observed.pass_five_seconds()
    stats = observed.statistics.queue(observed.queue)["message_stats"]
    assert (stats["get"], stats["deliver_no_ack"], stats["deliver_get"]) == (1, 2, 3)
    assert stats["deliver_get_details"]["rate"] == pytest.approx(0.6)


def test_nobody_sees_other_virtual_hosts(observed: Observed) -> None:
    observed.pass_five_seconds(10)
    observed.server.broker.define(Defined(["other"]))
    seen = observed.statistics.overview(RANGES, vhosts=["other"])
    assert seen["message_stats"]["publish"] == 0
    assert seen["churn_rates"] == {}
    assert observed.statistics.overview(vhosts=[])["queue_totals"]["messages"] == 0


def test_channels_exchanges_and_connections(observed: Observed) -> None:
    client = SimulatedClient.opened(observed.server, channels=1)
    observed.sample()
    connection = client.connection
    client.ask(1, methods.BasicGet(queue="q", no_ack=True))
    connection.octets.recv_oct += 500
    observed.pass_five_seconds(5)
    (channel,) = connection.channels
    statistics = observed.statistics
    assert statistics.channel(channel)["message_stats"]["get_empty_details"] == {"rate": 0.2}
    assert statistics.connection(connection)["recv_oct_details"] == {"rate": 100.0}
    assert statistics.vhost(observed.server.vhost)["recv_oct"] == 500
    default = observed.server.vhost.router.default_counters
    assert statistics.exchange(default)["message_stats"]["publish_in_details"] == {"rate": 1.0}
    churn = statistics.overview()["churn_rates"]
    assert (churn["connection_created"], churn["channel_created"]) == (1, 1)
    client.lose()
    churn = statistics.overview()["churn_rates"]
    assert (churn["connection_closed"], churn["channel_closed"]) == (1, 1)


def test_what_is_idle_or_gone_has_no_series(observed: Observed) -> None:
    observed.pass_five_seconds(1)
    queues = observed.sampler.queues
    assert queues.active == 1
    assert queues.series(observed.queue.counters) is not None
    for _ in range(sampling._KEPT_MS // 5000 + 1):
        observed.server.clock.advance(5000)
        for _ in observed.sampler.sample_objects():
            pass
    assert queues.active == 0
    observed.pass_five_seconds(1)
    observed.server.vhost.delete_queue(observed.queue)
    observed.sample()
    assert queues.series(observed.queue.counters) is None
    assert not queues._seen


def test_many_active_queues_keep_a_shorter_past(
    observed: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed.pass_five_seconds(1)
    assert observed.sampler.share == 1.0
    monkeypatch.setattr(sampling, "MAX_BYTES", observed.sampler.history_bytes // 4)
    assert 0.2 < observed.sampler.share < 0.3
    monkeypatch.setattr(sampling, "MAX_BYTES", observed.sampler.history_bytes // 100)
    assert observed.sampler.share == 0.0
    late = observed.server.queue("late")
    observed.sample()
    observed.client.publish("", "late", "a")
    observed.pass_five_seconds(1)
    assert observed.sampler.queues.series(late.counters) is None
    assert observed.statistics.queue(late)["message_stats"]["publish"] == 1


def test_a_pass_is_made_in_steps_and_finds_what_it_has_not_reached(observed: Observed) -> None:
    queues: list[Queue] = [observed.server.queue(f"q{number}") for number in range(300)]
    observed.sample()
    for queue in queues:
        observed.client.publish("", queue.name, "a")
    observed.pass_five_seconds()
    steps = observed.sampler.sample_objects()
    next(steps)
    rows: list[Any] = [observed.statistics.queue(queue) for queue in queues]
    assert all(row["message_stats"]["publish_details"]["rate"] > 0 for row in rows)
    assert len(list(steps)) >= 1
