"""The jobs on a real Spark session: the same as in one process, and what only Spark does."""

import dataclasses
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pika
import pytest
from pyspark.sql import SparkSession

from amqpstore import Envelope, Message, Options, Run, Store
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.archive import reading
from amqpstore_tools.archive.archiving import archive
from amqpstore_tools.archive.layout import QueueName
from amqpstore_tools.archive.writing import ArchiveResult, SegmentItem
from amqpstore_tools.check.engine import check, check_all
from amqpstore_tools.check.store import Checked
from amqpstore_tools.client.connection import Address
from amqpstore_tools.drill.run import DrillSettings
from amqpstore_tools.drill.scenarios.rounds import drill
from amqpstore_tools.repair.plan import make_plan
from amqpstore_tools.report.gathering import gather
from amqpstore_tools.report.page import page
from amqpstore_tools.report.tally import Item, Tally
from amqpstore_tools.spark.check import SparkExecutor
from amqpstore_tools.spark.cluster import Cluster, JobError
from amqpstore_tools.spark.drill import SparkTasks
from amqpstore_tools.transfer.lines import MessageLine
from amqpstore_tools.transfer.publishing import publish_lines
from amqpstore_tools.verbs.check import as_json
from fixtures.damaging import damage
from fixtures.make_damage import CASES, ROOT
from tests.broker_process import BrokerProcess
from tests.spark.conftest import Connect
from tests.unit.check.stores import History
from tests.unit.jobs.archives import held_in

pytestmark = pytest.mark.timeout(300)

_PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture(scope="session")
def cluster(spark: SparkSession) -> Cluster:
    return Cluster(spark)


def test_what_a_task_raised_is_said(cluster: Cluster) -> None:
    def fail(number: int) -> int:
        raise ValueError(f"number {number} is none")

    with pytest.raises(JobError, match=r"a task of the job failed: ValueError: number 7 is none$"):
        cluster.collect(cluster.one_by_one([7]).map(fail))


def expected_of(outcome: Checked | Exception) -> dict[str, Any]:
    """Return what cases of damage say of a check."""
    if isinstance(outcome, Exception):
        return {"exit": 2, "error": type(outcome).__name__}
    return {"exit": int(outcome.is_damaged), "findings": as_json(outcome)["findings"]}


def looked_at(outcome: Checked | Exception) -> object:
    """All that a check says."""
    assert isinstance(outcome, Checked), outcome
    return (
        list(outcome.findings),
        outcome.queues,
        outcome.messages,
        outcome.segments,
        outcome.segment_bytes,
        outcome.index_files,
        outcome.prepared,
        outcome.is_compared,
    )


def test_a_check_finds_in_every_case_of_damage_what_one_process_finds(
    cluster: Cluster, tmp_path: Path
) -> None:
    with open(CASES, encoding="utf-8") as file:
        cases = json.load(file)
    directories = []
    for number, case in enumerate(cases):
        directory = str(tmp_path / str(number))
        shutil.copytree(os.path.join(ROOT, case["store"]), directory)
        damage(directory, case["operations"])
        directories.append(directory)
    found = check_all(directories, executor=SparkExecutor(cluster))
    for case, outcome in zip(cases, found, strict=True):
        # Held against `check` by tests/format.
        expected = {key: case[key] for key in ("exit", "findings", "error") if key in case}
        assert expected_of(outcome) == expected, case["name"]


@pytest.mark.parametrize("most_broadcast", [pytest.param(1_000_000, marks=pytest.mark.long), 0])
def test_a_check_finds_in_larger_stores_what_one_process_finds(
    cluster: Cluster, tmp_path: Path, most_broadcast: int
) -> None:
    # Many segments, compacted ones, deleted queues, a torn tail; and damage anywhere.
    directories = []
    for seed in range(4):
        directories.append(str(tmp_path / str(seed)))
        history = History(directories[-1], seed)
        history.steps(300)
        history.abandon()
        if seed >= 2:
            flip_bits(directories[-1], random.Random(seed))
    found = check_all(directories, executor=SparkExecutor(cluster, most_broadcast))
    for directory, outcome in zip(directories, found, strict=True):
        assert looked_at(outcome) == looked_at(check(directory)), directory


def flip_bits(directory: str, rng: random.Random) -> None:
    """Flip bits in segments and index files, and remove one file of each."""
    for name in ("segments", "index"):
        paths = sorted(Path(directory, name).iterdir())
        paths.pop(rng.randrange(len(paths))).unlink()
        for path in rng.sample(paths, min(2, len(paths))):
            content = bytearray(path.read_bytes())
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            path.write_bytes(content)


def test_a_repair_has_the_same_plan(cluster: Cluster, tmp_path: Path) -> None:
    directory = str(tmp_path / "store")
    history = History(directory, 3)
    history.steps(300)
    history.abandon()
    flip_bits(directory, random.Random(3))
    plans = [
        make_plan(directory, lambda *_: None, made_ms=1, executor=executor).plan.as_json()
        for executor in (None, SparkExecutor(cluster))
    ]
    assert plans[0]["steps"]
    assert plans[0] == plans[1]


def test_the_store_of_a_running_broker_is_checked(
    cluster: Cluster, broker: BrokerProcess, connect: Connect, directory: str
) -> None:
    channel = connect().channel()
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True)
    for number in range(20):
        channel.basic_publish("", "orders", b"%d" % number, _PERSISTENT)
    checked = check(directory, live=True, executor=SparkExecutor(cluster))
    assert not checked.is_damaged
    assert checked.is_compared
    assert checked.messages == 20


def spread(
    cluster: Cluster,
) -> Callable[
    [Sequence[SegmentItem], Callable[[Iterable[SegmentItem]], ArchiveResult]], list[ArchiveResult]
]:
    return lambda items, write: cluster.by_group(items, lambda item: item.size, write)


class Recorded:
    """A store with one queue of two levels, and what it held when."""

    def __init__(self, directory: str, seed: int) -> None:
        options = Options(segment_bytes=4096, reserve_bytes=0, checkpoint_ms=1 << 60)
        self.directory = directory
        self.held: dict[int, list[tuple[int, int, bytes]]] = {}
        self._rng = random.Random(seed)
        self._store = Store.open(directory, options=options, worker=InlineWorker())
        define = {"vhost": "/", "name": "orders"}
        self._queues = [
            self._store.create_queue(define),
            self._store.create_queue({**define, "level": 5}),
        ]
        self._bodies: dict[int, dict[int, bytes]] = {queue.id: {} for queue in self._queues}

    def step(self) -> None:
        """Publish, or take and settle, messages in a batch with a time of its own, and remember
        it.
        """
        rng, store = self._rng, self._store
        level, queue = rng.choice([*enumerate(self._queues)])
        bodies = self._bodies[queue.id]
        if rng.random() < 0.6 or not queue.ready_count:
            made = [rng.randbytes(rng.randint(0, 300)) for _ in range(rng.randint(1, 5))]
            first = queue.next_sequence
            envelope = Envelope("", "orders", b"\x10\x00\x02")
            store.publish([queue], [Message(envelope, body) for body in made], priority=5 * level)
            bodies |= dict(enumerate(made, first))
        else:
            run = store.take(queue, rng.randint(1, 4))
            assert isinstance(run, Run)
            if rng.random() < 0.7:
                store.ack(queue, run)
                for sequence in range(run.first_sequence, run.first_sequence + run.count):
                    del bodies[sequence]
            else:
                store.requeue(queue, run)
        store.sync()
        now = wait_for_next_ms()
        self.held[now] = [
            (5 * level, sequence, body)
            for level, queue in reversed([*enumerate(self._queues)])
            for sequence, body in sorted(self._bodies[queue.id].items())
        ]
        wait_for_next_ms()

    def close(self) -> None:
        self._store.close()


def wait_for_next_ms() -> int:
    """The time, when no batch before has it."""
    before = time.time_ns() // 1_000_000
    while (now := time.time_ns() // 1_000_000) <= before:
        pass
    return now


def test_an_archive_says_what_a_queue_held_at_any_time(
    cluster: Cluster, directory: str, tmp_path: Path
) -> None:
    out = str(tmp_path / "archive")
    recorded = Recorded(directory, 1)
    for _ in range(40):
        recorded.step()
    recorded.close()
    assert archive(directory, out, spread(cluster)) is not None
    name = QueueName("/", "orders")
    times = [*recorded.held]
    for at_ms in (random.Random(2).choice(times), times[-1]):
        found = reading.find(out, name, least_ms=None, most_ms=at_ms)
        frame = reading.held_at(cluster.spark, found.paths, at_ms)
        rows = [(row["level"], row["position"], bytes(row["body"])) for row in frame.collect()]
        assert rows == recorded.held[at_ms]
    held = set(held_in(directory).values())
    assert held == {body for _, _, body in recorded.held[times[-1]]}


def test_an_archive_is_read_by_anyone_with_its_partitions_as_columns(
    cluster: Cluster, tmp_path: Path
) -> None:
    directory, out = str(tmp_path / "store"), str(tmp_path / "archive")
    names = ["a/b=c:d", "Größe %41", "plain"]
    with Store.open(directory) as store:
        for name in names:
            queue = store.create_queue({"vhost": "/", "name": name})
            envelope = Envelope("ex", name, b"\x10\x00\x02", persistent=True)
            store.publish([queue], [Message(envelope, name.encode())] * 3)
        store.sync()
    archive(directory, out, spread(cluster))
    frame = cluster.spark.read.parquet(out)
    rows = frame.groupBy("vhost", "queue", "event").count().collect()
    assert {(row["vhost"], row["queue"], row["event"], row["count"]) for row in rows} == {
        ("/", name, "publish", 3) for name in names
    }


def test_a_time_of_an_archive_is_published_again(
    cluster: Cluster, broker: BrokerProcess, connect: Connect, directory: str, tmp_path: Path
) -> None:
    out = str(tmp_path / "archive")
    channel = connect().channel()
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True)
    channel.queue_declare("again", durable=True)
    bodies = [b"%d " % number + bytes(number) for number in range(30)]
    cuts = []
    for number, body in enumerate(bodies):
        if number in (10, 20):
            cuts.append(wait_for_next_ms())
        channel.basic_publish("", "orders", body, _PERSISTENT)
    for _ in range(15):
        channel.basic_get("orders", auto_ack=True)
    # Of the live store of a broker that goes on.
    archive(directory, out, spread(cluster))
    name = QueueName("/", "orders")
    archived = reading.find(out, name, least_ms=cuts[0], most_ms=cuts[1])
    frame = reading.published(cluster.spark, archived.paths, cuts[0], cuts[1])
    lines = [line for line in reading.lines(frame, name) if isinstance(line, MessageLine)]
    published = publish_lines(
        Address.parse(broker.url), lines, route=lambda _line: ("", "again"), vhost="/"
    )
    assert published.confirmed == 10
    assert [channel.basic_get("again", auto_ack=True)[2] for _ in range(10)] == bodies[10:20]
    assert channel.basic_get("again")[0] is None


@pytest.mark.parametrize(
    ("name", "rounds", "operations"),
    [
        ("power-cut", 1, None),
        ("power-cut", 2, 4),
        ("failing-sync", 6, None),
        ("torn-catalog", 2, None),
    ],
)
def test_a_drill_says_what_it_says_on_one_core(
    cluster: Cluster, tmp_path: Path, name: str, rounds: int, operations: int | None
) -> None:
    settings = DrillSettings("seven", str(tmp_path), rounds=rounds, operations=operations)
    expected, found = drill(name, settings), drill(name, settings, SparkTasks(cluster))
    assert found.verdicts == expected.verdicts
    assert (found.did, found.checks) == (expected.did, expected.checks)
    assert found.findings == expected.findings
    # What was done names files, which are in other places.
    steps = [
        [dataclasses.replace(step, did="") for step in one.timeline] for one in (found, expected)
    ]
    assert steps[0] == steps[1]


def test_a_report_counts_what_one_process_counts(
    cluster: Cluster, directory: str, tmp_path: Path
) -> None:
    history = History(directory, 4)
    history.steps(300)
    history.close()

    def on_spark(items: Sequence[Item], count: Any) -> list[Tally]:
        return cluster.by_group(items, lambda item: item.size, count)

    figures = gather(directory, on_spark, is_local=True)
    here = gather(directory, lambda items, count: [count(items)], is_local=True)
    # How old something is depends on when that is asked.
    assert dataclasses.replace(figures.tally, ages=here.tally.ages) == here.tally
    assert figures.queues == here.queues
    assert sum(here.tally.ages.values()) == len(held_in(directory))
    text = page(figures)
    assert "<svg" in text
    assert "<script" not in text
    assert "http" not in text.replace("http://www.w3.org/", "")
