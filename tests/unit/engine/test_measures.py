"""Tests of what a store measures: histograms, and figures of what is in it."""

from pathlib import Path

import pytest

from amqpstore import Envelope, Message, Options, Store
from amqpstore.log.measures import BucketHistogram, StoreMeasures


@pytest.mark.parametrize(
    ("value", "bucket"),
    [(0, 0), (255, 0), (256, 0), (257, 1), (512, 1), (513, 2), (1024, 2), (1 << 40, 4)],
)
def test_a_bucket_holds_what_is_not_above_its_bound(value: int, bucket: int) -> None:
    histogram = BucketHistogram(256, 4)
    histogram.observe(value, 3)
    assert list(histogram.bounds) == [256, 512, 1024, 2048]
    assert [index for index, count in enumerate(histogram.buckets) if count] == [bucket]
    assert (sum(histogram.counts), histogram.total) == (3, 3 * value)


def test_seconds_go_from_microseconds_to_many_seconds() -> None:
    histogram = BucketHistogram.of_seconds()
    for seconds in (0.0, 10e-6, 0.001, 1.5, 1000.0):
        histogram.observe(seconds)
    assert histogram.bounds[0] == 16e-6
    assert 16 < histogram.bounds[-1] < 17
    assert histogram.buckets[0] == 2
    assert histogram.buckets[-1] == 1


def test_a_batch_is_counted_as_its_histograms_count() -> None:
    for messages, size, seconds in ((0, 1, 0.0), (1, 256, 0.5), (5, 70_000, 99.0), (1 << 30,) * 3):
        measures, expected = StoreMeasures(), StoreMeasures()
        measures.batches.append((messages, size, seconds))
        measures.count_batches()
        expected.batch_messages.observe(messages)
        expected.batch_bytes.observe(size)
        expected.sync_s.observe(seconds)
        for name in ("batch_messages", "batch_bytes", "sync_s"):
            assert getattr(measures, name).counts == getattr(expected, name).counts
            assert getattr(measures, name).total == getattr(expected, name).total


def test_a_store_measures_its_work(tmp_path: Path) -> None:
    with Store.open(str(tmp_path / "store"), options=Options(segment_bytes=1 << 16)) as store:
        queue = store.create_queue({"name": "q"})
        envelope = Envelope(exchange="", routing_key="q")
        for _ in range(4):
            store.publish([queue], [Message(envelope, b"x" * 40_000) for _ in range(2)])
            store.sync()
        measures = store.measures
        assert sum(measures.batch_messages.counts) == sum(measures.sync_s.counts) == 4
        assert measures.batch_messages.total == measures.written_messages == 8
        assert measures.batch_bytes.total > 320_000
        assert measures.sync_s.total > 0
        assert sum(measures.commit_s.counts) > 0
        assert store.statistics.figures().log.tail_messages == 8
        store.upkeep.checkpoint()
        log = store.statistics.figures().log
        assert (log.segments, log.tail_bytes, log.pending_bytes, log.work) == (4, 0, 0, "")
        assert log.live_bytes > 320_000
        assert log.garbage_bytes < 1000
        store.purge(queue)
        store.sync()
        store.upkeep.checkpoint()
        figures = store.statistics.figures()
        assert figures.log.segment_bytes < log.segment_bytes
        assert figures.opening_s > 0
        assert figures.memory_bytes >= 0
        assert (figures.torn_bytes, figures.lost, figures.damaged) == (0, 0, 0)


def test_batches_are_counted_though_the_measurements_are_never_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amqpstore.log.log.MAX_UNCOUNTED", 3)
    with Store.open(str(tmp_path / "store")) as store:
        queue = store.create_queue({"name": "q"})
        for _ in range(7):
            store.publish([queue], [Message(Envelope(exchange="", routing_key="q"), b"x")])
            store.sync()
        assert len(store.measures.batches) < 3
        store.measures.count_batches()
        assert store.measures.written_messages == 7


def test_a_compaction_counts_what_it_frees(tmp_path: Path) -> None:
    with Store.open(str(tmp_path / "store"), options=Options(segment_bytes=1 << 16)) as store:
        queue = store.create_queue({"name": "q"})
        envelope = Envelope(exchange="", routing_key="q")
        for _ in range(6):
            store.publish([queue], [Message(envelope, b"x" * 20_000) for _ in range(4)])
            store.sync()
        for sequence in range(1, 25):
            if sequence % 4:
                (run,) = store.withdrawals.withdraw_range(queue, sequence, 1)
                store.ack(queue, run)
        store.sync()
        before = store.statistics.figures().log
        compacted = list(store.upkeep.compact())
        assert compacted
        after = store.statistics.figures().log
        measures = store.measures
        assert measures.freed_bytes == before.segment_bytes - after.segment_bytes > 0
        assert measures.compacted_bytes == sum(one.moved_bytes for one in compacted)
