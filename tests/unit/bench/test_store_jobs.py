"""The jobs of `bench store`, small and in this process: what they do to a store and say of it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from amqpstore import Envelope, Message, Options, Queue, Run, Store
from tests.bench.store.commits import Commits
from tests.bench.store.job import Job
from tests.bench.store.jobs import JOBS
from tests.bench.store.watch import WatchedWorker, disk_bytes, used_bytes


def do(job: Job, tell: Callable[[int], None] = lambda _: None) -> Any:
    return JOBS[job.name](job, tell)


def taken(store: Store, queue: Queue, limit: int) -> Run:
    run = store.take(queue, limit)
    assert isinstance(run, Run)
    return run


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job("fill", str(tmp_path / "store"), messages=2500, size=100, batch=1000)


@pytest.mark.parametrize("inline", [False, True])
def test_drain_takes_what_fill_left(job: Job, inline: bool) -> None:
    told: list[int] = []
    filled = do(job._replace(inline=inline), told.append)
    assert told == [1000, 2000, 2500]
    assert filled["messages"] == 2500
    assert filled["publish_ms"]["samples"] == 3
    assert filled["disk_segments_bytes"] > 2500 * 100
    assert filled["written_bytes"] > 2500 * 100
    assert filled["resident_peak_mib"] >= filled["resident_mean_mib"] > 0
    drained = do(job._replace(name="drain", inline=inline), told.append)
    assert drained["messages"] == told[-1] == 2500
    with Store.open(job.directory) as store:
        assert [queue.ready_count for queue in store.queues.values()] == [0]


@pytest.mark.parametrize("size", [1, 8, 100])
def test_bodies_have_their_size_and_differ_where_they_can(job: Job, size: int) -> None:
    do(job._replace(size=size, messages=20))
    with Store.open(job.directory) as store:
        (queue,) = store.queues.values()
        bodies = {message.body for message in taken(store, queue, 20).messages or ()}
    assert {len(body) for body in bodies} == {size}
    assert len(bodies) == 20


def test_a_store_with_another_count_is_not_measured(job: Job) -> None:
    do(job)
    with pytest.raises(RuntimeError, match="2500 messages are ready, but 2501 were due"):
        do(job._replace(name="drain", messages=2501))


def test_opening_reads_count_and_first_message_and_changes_nothing(job: Job) -> None:
    do(job)
    opened = do(job._replace(name="open"))
    assert opened["messages"] == 2500
    assert 0 < opened["open_and_count_s"] < opened["first_message_s"]
    with Store.open(job.directory) as store:
        assert [queue.ready_count for queue in store.queues.values()] == [2500]


def test_fill_publishes_to_every_queue(job: Job) -> None:
    do(job._replace(queues=3))
    with Store.open(job.directory) as store:
        assert [queue.ready_count for queue in store.queues.values()] == [2500] * 3


@pytest.mark.parametrize("immortal", [0, 1, 7])
def test_churn_keeps_the_immortal_and_nothing_else(job: Job, immortal: int) -> None:
    churned = do(job._replace(name="churn", messages=10_000, immortal=immortal))
    assert churned["live_bytes"] == immortal * 100
    assert churned["disk_peak_bytes"] >= churned["disk_bytes"] > 0
    assert churned["background_failures"] == 0
    assert churned["publish_ms"]["samples"] == 10
    with Store.open(job.directory) as store:
        counts = {queue.id: queue.ready_count for queue in store.queues.values()}
    assert sorted(counts.values()) == sorted([immortal, 0])


def test_commits_overlap_and_are_durable_at_the_end(tmp_path: Path) -> None:
    directory = str(tmp_path / "store")
    store = Store.open(directory)
    queue = store.create_queue({})
    commits = Commits(store, inline=False)
    durable: list[int] = []
    for number in range(3):
        store.publish([queue], [Message(Envelope("", "q"), b"body")])
        store.log.when_durable(partial(durable.append, number))
        commits.commit()
        assert not store.log.is_idle
        # Each hand-over waited for the one before it.
        assert durable == list(range(number))
    commits.finish()
    assert durable == [0, 1, 2]
    store.abandon()
    with Store.open(directory) as store:
        assert [queue.ready_count for queue in store.queues.values()] == [3]


def test_compaction_is_watched(tmp_path: Path) -> None:
    options = Options(segment_bytes=100_000, reserve_bytes=0)
    worker = WatchedWorker(options.compaction_bytes_s)
    store = Store.open(str(tmp_path / "store"), options=options, worker=worker)
    queue = store.create_queue({})
    for _ in range(8):
        store.publish([queue], [Message(Envelope("", "q"), b"x" * 1000) for _ in range(200)])
        store.sync()
    for _ in range(16):
        store.take(queue, 1)
        store.ack(queue, taken(store, queue, 99))
    store.sync()
    store.upkeep.checkpoint()
    store.upkeep.housekeep()
    states = [worker.is_compacting, worker.wait(), worker.is_compacting]
    assert states == [True, True, False]
    store.upkeep.housekeep()
    assert worker.compactions == 1
    assert worker.compaction_read_bytes > 100_000
    store.close()


def test_disk_bytes_are_told_apart(job: Job) -> None:
    do(job)
    found = disk_bytes(job.directory)
    assert {"STORE", "catalog", "index", "segments"} <= found.keys()
    assert used_bytes(found) == sum(found.values()) - found.get("reserve", 0)
