"""The log as a stream, without Spark: offsets, batches and what becomes of them."""

import os
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from amqpstore import Store
from amqpstore_tools.spark.reading.leases import release
from amqpstore_tools.spark.reading.options import TapOptions
from amqpstore_tools.spark.reading.schemas import spark_schema
from amqpstore_tools.spark.streams.tap import LogGoneError, Offset, TapReader
from tests.unit.offline.stores import create, open_store, publish, take

Event = tuple[str, int, bytes | None]


def reader_of(directory: str, **options: str) -> TapReader:
    return TapReader(TapOptions.of({"path": directory, **options}), spark_schema("tap"))


def events(reader: TapReader, start: Offset, end: Offset) -> list[Event]:
    return [
        (row["event"], row["position"], row["body"])
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Open, as a broker has it: readers see what is durable."""
    return open_store(str(tmp_path / "s"))


def test_batches_are_cut_by_size_and_together_are_the_log(store: Store, tmp_path: Path) -> None:
    queue = create(store, "q")
    publish(store, queue, 100)
    for run in take(store, queue, 30):
        store.ack(queue, run)
    store.sync()
    reader, other = reader_of(str(tmp_path / "s")), reader_of(str(tmp_path / "s"))
    start = reader.initialOffset()
    log_events: list[Event] = []
    batches = 0
    while (end := reader.latestOffset(start, ReadMaxBytes(2000))) != start:
        part = events(reader, start, end)
        assert part == events(other, start, end), "asked for again"
        log_events += part
        start = end
        batches += 1
        reader.commit(end)
    assert batches > 5
    bodies = [body for event, _, body in log_events if event == "publish"]
    assert bodies == [b"%d" % number * 100 for number in range(100)]
    assert [one for event, one, _ in log_events if event == "ack"] == list(range(1, 31))
    publish(store, queue, 1)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert [event for event, _, _ in events(reader, start, end)] == ["publish"]
    store.close()
    release(reader._lease)
    release(other._lease)


def test_a_batch_that_is_there_in_part_is_not_given_out(store: Store, tmp_path: Path) -> None:
    publish(store, create(store, "q"), 5)
    store.close()
    directory = str(tmp_path / "s")
    (name,) = os.listdir(f"{directory}/segments")
    whole = Path(directory, "segments", name).read_bytes()
    reader = reader_of(directory)
    start = reader.initialOffset()
    ends = set()
    for size in range(100, len(whole), 7):
        Path(directory, "segments", name).write_bytes(whole[:size])
        end = reader.latestOffset(start, ReadAllAvailable())
        assert end["offset"] <= size
        ends.add((end["lsn"], end["offset"]))
    assert {lsn for lsn, _ in ends} == {0, 1, 2, 3, 4}
    assert len(ends) == 5
    release(reader._lease)


def test_what_compaction_removed_meanwhile_is_said(store: Store, tmp_path: Path) -> None:
    publish(store, create(store, "q"), 100)
    directory = str(tmp_path / "s")
    reader = reader_of(directory)
    start = reader.latestOffset(reader.initialOffset(), ReadMaxBytes(3000))
    held = [reader]
    numbers = sorted(os.listdir(f"{directory}/segments"))
    for name in numbers[2:4]:
        os.unlink(f"{directory}/segments/{name}")
    # This one holds them.
    reader.latestOffset(start, ReadAllAvailable())
    later = reader_of(directory)
    held.append(later)
    with pytest.raises(LogGoneError, match=r"segment 3 of .* continues in segment 5"):
        later.latestOffset(start, ReadAllAvailable())
    anyway = reader_of(directory, fail_on_loss="false")
    held.append(anyway)
    assert anyway.latestOffset(start, ReadAllAvailable())["lsn"] == 100
    held.append(reader_of(directory))
    assert held[-1].initialOffset()["segment"] == 5
    store.close()
    for holder in held:
        release(holder._lease)


def test_what_the_disk_failed_to_write_is_not_given_out(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page cache has the batch of a broker that died of it; the next start takes it back."""
    queue = create(store, "q")
    publish(store, queue, 1)
    directory = str(tmp_path / "s")
    (name,) = os.listdir(f"{directory}/segments")
    path = Path(directory, "segments", name)
    on_disk = path.stat().st_size
    publish(store, queue, 1)
    synced: list[int] = []

    def drop(descriptor: int, offset: int, length: int, advice: int) -> None:
        assert (length, advice) == (0, os.POSIX_FADV_DONTNEED)
        assert offset <= on_disk
        assert synced == [descriptor]
        os.truncate(path, on_disk)

    monkeypatch.setattr(os, "fdatasync", synced.append)
    monkeypatch.setattr(os, "posix_fadvise", drop)
    reader = reader_of(directory)
    end = reader.latestOffset({"segment": 1, "offset": 0, "lsn": 0}, ReadAllAvailable())
    assert (end["lsn"], end["offset"]) == (1, on_disk)
    store.abandon()
    release(reader._lease)


def test_what_is_appended_while_it_is_synced_is_for_the_next_time(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sync need not have it."""
    queue = create(store, "q")
    publish(store, queue, 1)
    directory = str(tmp_path / "s")
    fdatasync = os.fdatasync
    is_first = True

    def append(descriptor: int) -> None:
        nonlocal is_first
        fdatasync(descriptor)
        if is_first:
            is_first = False
            publish(store, queue, 1)

    reader = reader_of(directory)
    start: Offset = {"segment": 1, "offset": 0, "lsn": 0}
    monkeypatch.setattr(os, "fdatasync", append)
    assert reader.latestOffset(start, ReadAllAvailable())["lsn"] == 1
    assert reader.latestOffset(start, ReadAllAvailable())["lsn"] == 2
    store.close()
    release(reader._lease)
