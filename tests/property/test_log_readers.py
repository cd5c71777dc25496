"""Every reader of the log agrees on its batches and its torn tail, whatever a crash or a disk did.

A segment is cut, and bytes of it are damaged, lost or repeated. What recovery makes of it is the
truth: check, repair, copy, inspect, Spark and the tap must say the same.
"""

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

from amqpstore import Envelope, Message, Options, Run, Store, marker
from amqpstore.batches import StoredBatch, whole_end
from amqpstore.filenames import segment_path
from amqpstore.files import OsFiles
from amqpstore_tools.check.engine import check
from amqpstore_tools.check.findings import Findings
from amqpstore_tools.check.segments import SegmentReader
from amqpstore_tools.inspect.follow import follow
from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.offline.reading import ReadOnlyFiles
from amqpstore_tools.repair.facts import gather
from amqpstore_tools.spark.reading.leases import release
from amqpstore_tools.spark.reading.options import TapOptions
from amqpstore_tools.spark.reading.scanning import ColumnScanner
from amqpstore_tools.spark.reading.schemas import spark_schema
from amqpstore_tools.spark.streams.tap import TapReader

NUMBER = 1
ENVELOPE = Envelope("", "q", bytes.fromhex("100002"))


class Log(NamedTuple):
    """Where batches end whose TRANSACTION counts, and where the torn tail starts."""

    ends: list[int]
    end: int


@functools.cache
def written() -> str:
    """A store that was left without a checkpoint, in one segment whose end is not noted."""
    directory = tempfile.mkdtemp(prefix="amqpstore-readers-")
    atexit.register(shutil.rmtree, directory)
    store = Store.open(directory, options=Options(compress_from_bytes=200))
    queues = [store.create_queue({"library": 1, "name": name}) for name in ("one", "two")]
    for number in range(6):
        bodies = [b"%d" % number * (50 * place) for place in range(number % 3 + 1)]
        store.publish(queues[: 1 + number % 2], [Message(ENVELOPE, body) for body in bodies])
        if number == 3:
            run = store.take(queues[0], 2)
            assert isinstance(run, Run)
            store.ack(queues[0], run)
        store.sync()
    store.abandon()
    return directory


def of_recovery(directory: str) -> Log:
    with StoreImage.open(directory) as image:
        recovered = image.recovered
        return Log([one.end_bytes for one in recovered.batches], recovered.position.offset)


def of_image(directory: str) -> Log:
    with StoreImage.open(directory) as image:
        found = Log([], 0)
        # One that is empty is none.
        for segment in image.log_segments():
            ends = [one.record.end for one in image.transactions(segment)]
            found = Log(ends, segment.sound_size)
        return found


def of_check(directory: str) -> Log:
    found = marker.read(OsFiles(), directory)
    assert found is not None
    reader = SegmentReader(
        ReadOnlyFiles(),
        directory,
        Findings(),
        store_id=found.store_id.bytes,
        seed=found.seed,
        measure=len,
    )
    segment = reader.read(NUMBER, end=None, least=0, is_open=True)
    assert segment is not None
    return Log([one.end for one in segment.scanned.batches if one.lsn], segment.end)


def of_repair(directory: str) -> Log:
    facts = gather(directory, check(directory), lambda *_: None)
    segment = facts.segments[NUMBER]
    return Log([one.end for one in segment.scanned.batches if one.lsn], segment.end)


def of_spark(directory: str) -> Log:
    found = marker.read(OsFiles(), directory)
    assert found is not None
    file = ReadOnlyFiles().open(segment_path(directory, NUMBER))
    scanner = ColumnScanner(
        file, NUMBER, file.size(), found.seed, decompress=bytes, want_bodies=False
    )
    ends = [one.end for one in scanner.durable_batches() if one.lsn]
    file.close()
    return Log(ends, scanner.whole_end)


def of_copy(directory: str) -> int:
    found = marker.read(OsFiles(), directory)
    assert found is not None
    content = Path(segment_path(directory, NUMBER)).read_bytes()
    return whole_end(content, NUMBER, found.seed)


def of_follow(directory: str) -> list[int]:
    ends = []

    def wait() -> None:
        raise KeyboardInterrupt

    def show(found: dict[str, object]) -> None:
        if found["event"] == "transaction":
            ends.append(found["end"])

    follow(directory, show, None, wait)
    return [end for end in ends if isinstance(end, int)]


def of_tap(directory: str) -> int:
    reader = TapReader(TapOptions.of({"path": directory}), spark_schema("tap"))
    try:
        offset = reader.latestOffset({"segment": 0, "offset": 0, "lsn": 0}, ReadAllAvailable())
        return offset["offset"]
    finally:
        release(reader._lease)


SEGMENT_BYTES = os.path.getsize(segment_path(written(), NUMBER))
places = st.integers(0, SEGMENT_BYTES - 1)
changes = st.one_of(
    st.tuples(st.just("flip"), places, st.integers(1, 255)),
    st.tuples(st.just("zeros"), places, st.integers(1, 600)),
    st.tuples(st.just("repeat"), places, st.integers(1, 600)),
    st.tuples(st.just("cut"), places, st.just(0)),
)


def changed(content: bytes, change: tuple[str, int, int]) -> bytes:
    kind, place, value = change
    if kind == "cut":
        return content[:place]
    if kind == "repeat":
        return content + content[place : place + value]
    before, after = content[:place], content[place:]
    if kind == "zeros":
        return before + bytes(min(value, len(after))) + after[value:]
    return before + bytes(byte ^ value for byte in after[:1]) + after[1:]


def disagreements(content: bytes) -> dict[str, object]:
    """Which readers do not say of a segment what recovery says, and what they say."""
    with tempfile.TemporaryDirectory(prefix="amqpstore-readers-") as scratch:
        directory = os.path.join(scratch, "store")
        shutil.copytree(written(), directory)
        Path(segment_path(directory, NUMBER)).write_bytes(content)
        wanted = of_recovery(directory)
        found = {
            "image": (of_image(directory), wanted),
            "check": (of_check(directory), wanted),
            "repair": (of_repair(directory), wanted),
            "spark": (of_spark(directory), wanted),
            "copy": (of_copy(directory), wanted.end),
            "follow": (of_follow(directory), wanted.ends),
            "tap": (of_tap(directory), max(wanted.ends, default=0)),
        }
    return {name: (says, truth) for name, (says, truth) in found.items() if says != truth}


# What is left of the header of a damaged record does not say which batch it is of.
@example([("zeros", 1039, 210)])
@given(st.lists(changes, min_size=1, max_size=3))
def test_all_readers_of_a_damaged_log_agree_with_recovery(
    all_changes: list[tuple[str, int, int]],
) -> None:
    content = functools.reduce(
        changed, all_changes, Path(segment_path(written(), NUMBER)).read_bytes()
    )
    assert disagreements(content) == {}


def test_all_readers_of_a_log_that_was_cut_anywhere_agree_with_recovery() -> None:
    content = Path(segment_path(written(), NUMBER)).read_bytes()
    for size in range(0, len(content), 211):
        assert disagreements(content[:size]) == {}, size


def test_a_reader_that_believes_a_transaction_alone_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last batch's first message is damaged: its TRANSACTION is there, and it is torn."""
    content = Path(segment_path(written(), NUMBER)).read_bytes()
    last = of_recovery(written()).ends[-2]
    damaged = changed(content, ("flip", last + 40, 1))
    assert disagreements(damaged) == {}
    monkeypatch.setattr(StoredBatch, "is_whole", lambda self: self.lsn > 0)
    assert disagreements(damaged) != {}
