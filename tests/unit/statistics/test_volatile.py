"""The file that says what would be lost with the process."""

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from amqpstore.format.departures import Departure
from amqpstore.system.clock import SimulatedClock
from amqpstore_server.statistics.sampler import Sampler
from amqpstore_server.statistics.volatile import FILE, VolatileFile
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client

COUNTS = {("/", "q"): 3, ("/", "long" * 20): 12345}


@pytest.fixture
def simulated() -> Iterator[SimulatedBroker]:
    broker = SimulatedBroker()
    yield broker
    broker.store.abandon()


def opened(directory: Path) -> VolatileFile:
    return VolatileFile(str(directory), SimulatedClock(7))


def sampled(simulated: SimulatedBroker) -> dict[tuple[str, str], int]:
    sampler = Sampler(simulated.broker, list)
    for _ in sampler.sample_totals():
        pass
    return dict(sampler.volatile)


def test_what_was_written_last_is_taken_once(tmp_path: Path) -> None:
    file = opened(tmp_path)
    assert file.take() is None
    for counts in (COUNTS, {("/", "q"): 1}):
        file.write(counts)
    assert file.has({("/", "q"): 1})
    lost = opened(tmp_path).take()
    assert lost is not None
    assert (lost.time_ms, lost.is_final, lost.queues) == (7, False, [("/", "q", 1)])
    assert opened(tmp_path).take() is None


def test_a_broker_that_stops_says_that_it_knows(tmp_path: Path) -> None:
    file = opened(tmp_path)
    file.write(COUNTS)
    file.write(COUNTS, is_final=True)
    lost = opened(tmp_path).take()
    assert lost is not None
    assert lost.is_final


def test_nothing_that_can_be_lost_needs_no_file(tmp_path: Path) -> None:
    file = opened(tmp_path)
    file.write({}, is_final=True)
    assert not (tmp_path / FILE).exists()
    file.write(COUNTS)
    file.write({})
    assert opened(tmp_path).take() is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"time_ms": 1, "queues": 7}', b"\xff"])
def test_a_file_that_says_nothing_is_told_and_removed(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).write_bytes(content)
    assert opened(tmp_path).take() is None
    assert "it is unknown which transient messages were lost" in caplog.text
    assert not (tmp_path / FILE).exists()


def test_a_disk_that_refuses_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    (tmp_path / FILE).mkdir()
    file = opened(tmp_path)
    for number in range(3):
        file.write({("/", "q"): 1 + number})
    assert len(caplog.records) == 1
    os.rmdir(tmp_path / FILE)
    file.write(COUNTS)
    assert len(json.loads((tmp_path / FILE).read_bytes())["queues"]) == 2


def test_what_ends_with_the_process_is_counted_where_it_is(simulated: SimulatedBroker) -> None:
    simulated.queue("q")
    simulated.queue("short", durable=False)
    simulated.queue("quorum", queue_type="quorum")
    client = Client(simulated)
    for queue in ("q", "short", "quorum"):
        client.publish("", queue, "kept")
        client.publish("", queue, "one", "two", delivery_mode=1)
    simulated.settle()
    assert sampled(simulated) == {("/", "q"): 2, ("/", "short"): 3}
    # What is with a consumer is lost, too, until it is acked.
    for body in ("kept", "one"):
        assert client.get("q") == body
    assert sampled(simulated)["/", "q"] == 2
    client.ack("one")
    simulated.settle()
    assert sampled(simulated)["/", "q"] == 1


def test_a_start_counts_what_was_lost_by_queue_though_it_is_gone(
    simulated: SimulatedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    simulated.queue("q")
    simulated.broker.note_lost_before([("/", "q", 3), ("/", "gone", 2), ("gone", "r", 1)])
    simulated.services.statistics.departures.write()
    assert simulated.vhost.queue("q").departures.left[Departure.LOST_AT_RESTART] == 3
    assert simulated.vhost.departures.left[Departure.LOST_AT_RESTART] == 5
    assert simulated.broker.departures().left[Departure.LOST_AT_RESTART] == 6
    (record,) = [one for one in caplog.records if one.message == "messages left their queues"]
    assert vars(record)["reasons"] == "lost_at_restart=6"
    assert vars(record)["queues"] == (
        "/ q lost_at_restart=3, / gone lost_at_restart=2, gone r lost_at_restart=1"
    )
