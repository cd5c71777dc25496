"""Every reader of the log agrees on its batches and its torn tail, whatever a crash or a disk did.

Segments are cut, bytes of them are damaged, lost or repeated, and some are missing: of a log in one
segment, and of one in several, with a checkpoint in the middle of it and noted ends. What recovery
makes of it is the truth: check, on Spark too, repair, copy, inspect, Spark and the tap must say the
same.
"""

import atexit
import functools
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadMaxBytes

from amqpstore import Envelope, Message, Options, Queue, Run, Store
from amqpstore.catalog.catalog import LmdbCatalog
from amqpstore.catalog.tables import SEGMENT_ENDS, Position, SegmentEndRow
from amqpstore.format.batches import StoredBatch
from amqpstore.format.records import HEADER, SEGMENT_PAYLOAD
from amqpstore.identity.expected_segments import MISSING
from amqpstore.system.filenames import CATALOG, segment_number, segment_path
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.check import steps
from amqpstore_tools.check.engine import StoreCheck, check
from amqpstore_tools.check.jobs import ReadJob, StoreContext
from amqpstore_tools.check.store import ReadableStore, opened
from amqpstore_tools.copying.copier import CopyOptions, copy_store
from amqpstore_tools.inspect.follow import follow
from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.offline.read_only_files import ReadOnlyFiles
from amqpstore_tools.repair.facts import gather
from amqpstore_tools.spark.check import _told
from amqpstore_tools.spark.reading.leases import release
from amqpstore_tools.spark.reading.options import TapOptions
from amqpstore_tools.spark.reading.scanning import ColumnScanner
from amqpstore_tools.spark.reading.schemas import spark_schema
from amqpstore_tools.spark.streams.tap import TapReader

NUMBER = 1
ENVELOPE = Envelope("", "q", bytes.fromhex("100002"))

BatchEnd = tuple[int, int]
"""A segment, and an offset in it."""


class Log(NamedTuple):
    """The log from the checkpoint's position on: where batches end whose TRANSACTION counts, where
    the segments end that are there, and which are missing."""

    ends: list[BatchEnd]
    sizes: dict[int, int]
    missing: list[int]


def behind(position: Position, ends: Sequence[BatchEnd]) -> list[BatchEnd]:
    """Return the ends of batches behind a position, in the order of the log."""
    return sorted(end for end in ends if end > (position.segment, position.offset))


def publish(store: Store, queues: list[Queue], numbers: range) -> None:
    """A batch for each number: of one to three messages, to one or two queues."""
    for number in numbers:
        bodies = [b"%d" % number * (50 * place) for place in range(number % 3 + 1)]
        store.publish(queues[: 1 + number % 2], [Message(ENVELOPE, body) for body in bodies])
        if number == 3:
            run = store.take(queues[0], 2)
            assert isinstance(run, Run)
            store.ack(queues[0], run)
        store.sync()


@functools.cache
def written() -> str:
    """A store that was left without a checkpoint, in one segment whose end is not noted."""
    directory = tempfile.mkdtemp(prefix="amqpstore-readers-")
    atexit.register(shutil.rmtree, directory)
    store = Store.open(directory, options=Options(compress_from_bytes=200))
    queues = [store.create_queue({"library": 1, "name": name}) for name in ("one", "two")]
    publish(store, queues, range(6))
    store.abandon()
    return directory


@functools.cache
def several() -> str:
    """A store with eight segments of the log, the last checkpoint in the second of them.

    The ends of the fourth and of the fifth, which has one batch only, are noted by starts; that of
    the last is not.
    """
    directory = tempfile.mkdtemp(prefix="amqpstore-readers-")
    atexit.register(shutil.rmtree, directory)
    options = Options(segment_bytes=700, checkpoint_ms=1 << 40, reserve_bytes=0)
    store = Store.open(directory, options=options, worker=InlineWorker())
    queues = [store.create_queue({"library": 1, "name": name}) for name in ("one", "two")]
    publish(store, queues, range(4))
    store.upkeep.checkpoint()
    publish(store, queues, range(4, 11))
    store.abandon()
    for numbers in (range(11, 12), range(12, 21)):
        store = Store.open(directory, options=options, worker=InlineWorker())
        publish(store, list(store.queues.values()), numbers)
        store.abandon()
    return directory


def test_the_log_of_several_segments_is_as_it_is_meant() -> None:
    """Otherwise the tests below would prove less than they say."""
    with StoreImage.open(several()) as image:
        found = image.recovered
        assert (found.start.segment, found.open_segment) == (2, 8)
        assert 60 < found.start.offset < image.log_segments()[1].sound_size
        noted = [one.number for one in image.log_segments() if one.end is not None]
        assert noted == [4, 5]
        batches = [one.segment for one in found.batches]
        assert {2, 3, 4, 5, 6, 7, 8} == {*batches}
        assert min(map(batches.count, (2, 3, 4, 6, 7))) > 1
        assert (batches.count(5), batches.count(8)) == (1, 3)


def of_recovery(directory: str) -> Log:
    with StoreImage.open(directory) as image:
        recovered = image.recovered
        log = [one for one in recovered.segments if one.number >= recovered.start.segment]
        named = [os.path.basename(one[0]) for one in recovered.report.damage if one[3] == MISSING]
        missing = sorted(number for name in named if (number := segment_number(name)))
        return Log(
            [(one.segment, one.end_bytes) for one in recovered.batches],
            {one.number: one.size for one in log if one.number not in missing},
            missing,
        )


def of_image(directory: str) -> Log:
    with StoreImage.open(directory) as image:
        start = image.recovered.start
        log = [one for one in image.log_segments() if one.number >= start.segment]
        ends = [(one.number, found.record.end) for one in log for found in image.transactions(one)]
        return Log(behind(start, ends), {one.number: one.sound_size for one in log}, [])


def of_check(
    directory: str, told: Callable[[StoreContext], StoreContext] = lambda shared: shared
) -> Log:
    """Return what the steps of a check read; told as the executor tells them."""
    with opened(directory, live=False) as store:
        run = StoreCheck(store, lambda *_: None)
        run.begin()
        shared = told(run.shared())
        found = {job.number: steps.read(shared, ReadJob(0, job)).segment for job in run.jobs}
    log = [one for one in found.values() if one and one.number >= shared.position_segment]
    ends = [(one.number, batch.end) for one in log for batch in one.scanned.batches if batch.lsn]
    return Log(
        behind(position_of(directory), ends),
        {one.number: one.end for one in log},
        [number for number, one in found.items() if one is None],
    )


def of_spark_check(directory: str) -> Log:
    def told(shared: StoreContext) -> StoreContext:
        sent = pickle.loads(pickle.dumps(_told(shared, is_local=True)))
        assert isinstance(sent, StoreContext)
        return sent

    return of_check(directory, told)


def position_of(directory: str) -> Position:
    with StoreImage.open(directory) as image:
        return image.recovered.start


def of_repair(directory: str) -> Log:
    facts = gather(ReadableStore.stopped(directory), check(directory), lambda *_: None)
    position = position_of(directory)
    log = [one for one in facts.segments if one.number >= position.segment]
    ends = [(one.number, batch.end) for one in log for batch in one.scanned.batches if batch.lsn]
    return Log(behind(position, ends), {one.number: one.end for one in log}, [])


def of_spark(directory: str) -> Log:
    """Return what tasks are given of each segment, and what they find in it."""
    ends, sizes = [], {}
    with StoreImage.open(directory) as image:
        start = image.recovered.start
        for one in image.log_segments():
            if one.number < start.segment:
                continue
            file = ReadOnlyFiles().open(one.path)
            scanner = ColumnScanner(file, one.number, one.sound_size, image.seed, want_bodies=False)
            ends += [(one.number, found.end) for found in scanner.batches() if found.lsn]
            sizes[one.number] = one.sound_size
            file.close()
    return Log(behind(start, ends), sizes, [])


def of_copy(directory: str) -> Log:
    """Return what recovery makes of a copy; and what the copy says is missing."""
    with tempfile.TemporaryDirectory(prefix="amqpstore-readers-") as scratch:
        target = os.path.join(scratch, "copy")
        copied = copy_store(directory, target, CopyOptions(verify="none"))
        named = [os.path.basename(one.path) for one in copied.damage]
        found = of_recovery(target)
        missing = sorted(number for name in named if (number := segment_number(name)))
        return found._replace(missing=missing)


def of_follow(directory: str) -> list[int]:
    """Return where the batches of the last segment end."""
    ends = []

    def wait() -> None:
        raise KeyboardInterrupt

    def show(found: dict[str, object]) -> None:
        if found["event"] == "transaction":
            ends.append(found["end"])

    follow(directory, show, None, wait)
    return [end for end in ends if isinstance(end, int)]


def of_tap(directory: str) -> list[BatchEnd]:
    """Return where the batches end that it gives out, one at a time."""
    options = TapOptions.of({"path": directory, "fail_on_loss": "false"})
    reader = TapReader(options, spark_schema("tap"))
    offset = {"segment": 0, "offset": 0, "lsn": 0}
    ends = []
    try:
        while (following := reader.latestOffset(offset, ReadMaxBytes(1)))["lsn"] > offset["lsn"]:
            read = {
                lsn
                for part in reader.partitions(offset, following)
                for events in reader.read(part)
                for lsn in events.column("lsn").to_pylist()
            }
            assert read == {following["lsn"]}
            offset = following
            ends.append((offset["segment"], offset["offset"]))
    finally:
        release(reader._lease)
    return ends


SEGMENT_BYTES = os.path.getsize(segment_path(written(), NUMBER))
offsets = st.integers(0, SEGMENT_BYTES - 1)
changes = st.one_of(
    st.tuples(st.just("flip"), offsets, st.integers(1, 255)),
    st.tuples(st.just("zeros"), offsets, st.integers(1, 600)),
    st.tuples(st.just("repeat"), offsets, st.integers(1, 600)),
    st.tuples(st.just("cut"), offsets, st.just(0)),
    # Filled with zeros ahead of use, and so are the batches that the disk did not write.
    st.tuples(st.just("fill"), offsets, st.integers(1, 3000)),
    st.tuples(st.just("fill"), st.just(SEGMENT_BYTES), st.integers(1, 3000)),
)


def changed(content: bytes, change: tuple[str, int, int]) -> bytes:
    kind, place, value = change
    if kind == "cut":
        return content[:place]
    if kind == "repeat":
        return content + content[place : place + value]
    if kind == "fill":
        return content[:place] + bytes(value)
    before, after = content[:place], content[place:]
    if kind == "zeros":
        return before + bytes(min(value, len(after))) + after[value:]
    return before + bytes(byte ^ value for byte in after[:1]) + after[1:]


def disagreements(directory: str) -> dict[str, object]:
    """Return which readers do not say of a store what recovery says, and what they say."""
    wanted = of_recovery(directory)
    # A segment without a file and one without a byte that counts are the same to all readers.
    there = {number: size for number, size in wanted.sizes.items() if size}

    def plain(log: Log) -> Log:
        return log._replace(sizes={number: size for number, size in log.sizes.items() if size})

    truth = Log(wanted.ends, there, wanted.missing)
    is_known = {"check": True, "check on Spark": True, "copy": True}
    readers = {
        "image": of_image,
        "check": of_check,
        "check on Spark": of_spark_check,
        "repair": of_repair,
        "spark": of_spark,
        "copy": of_copy,
    }
    results: dict[str, tuple[object, object]] = {}
    for name, reader in readers.items():
        # The other readers name missing segments by the report of recovery, or of check.
        expected = truth if name in is_known else truth._replace(missing=[])
        results[name] = plain(reader(directory)), expected
    last = max(wanted.sizes, default=0)
    with StoreImage.open(directory) as image:
        is_open = last == image.recovered.open_segment
    position = position_of(directory)
    if is_open:
        # `follow` reads the last segment alone, and does not ask the catalog where that ends.
        follows = behind(position, [(last, end) for end in of_follow(directory)])
        results["follow"] = follows, [end for end in wanted.ends if end[0] == last]
    # A new stream begins behind the missing segments, and leaves what may be a torn tail undecided.
    first = max((one for one in wanted.missing if one < last), default=0)
    taps = [end for end in behind(position, of_tap(directory)) if end[0] > first]
    results["tap"] = (
        taps,
        [end for end in wanted.ends if end[0] > first and (is_open or end in taps)],
    )
    return {name: (says, truth) for name, (says, truth) in results.items() if says != truth}


def of_one_segment(content: bytes) -> dict[str, object]:
    """Return the disagreements about a store whose one segment has this content."""
    with tempfile.TemporaryDirectory(prefix="amqpstore-readers-") as scratch:
        directory = os.path.join(scratch, "store")
        shutil.copytree(written(), directory)
        Path(segment_path(directory, NUMBER)).write_bytes(content)
        return disagreements(directory)


# What is left of the header of a damaged record does not say which batch it is of.
@example([("zeros", 1039, 210)])
@settings(max_examples=6)
@given(st.lists(changes, min_size=1, max_size=3))
def test_all_readers_of_a_damaged_log_agree_with_recovery(
    all_changes: list[tuple[str, int, int]],
) -> None:
    read_by_all(all_changes)


@pytest.mark.long
@settings(max_examples=500)
@given(st.lists(changes, min_size=1, max_size=3))
def test_all_readers_of_a_damaged_log_agree_with_recovery_at_length(
    all_changes: list[tuple[str, int, int]],
) -> None:
    read_by_all(all_changes)


def read_by_all(all_changes: list[tuple[str, int, int]]) -> None:
    content = functools.reduce(
        changed, all_changes, Path(segment_path(written(), NUMBER)).read_bytes()
    )
    assert of_one_segment(content) == {}


def test_all_readers_of_a_filled_log_that_was_torn_anywhere_agree_with_recovery() -> None:
    """The last batch is not whole, whether its TRANSACTION is there or not."""
    content = Path(segment_path(written(), NUMBER)).read_bytes()
    start = of_recovery(written()).ends[-2][1]
    for place in range(start, len(content), 97):
        filled = content[:place] + bytes(len(content) - place + 500)
        assert of_one_segment(filled) == {}, place
        hole = content[:place] + bytes(40) + content[place + 40 :] + bytes(500)
        assert of_one_segment(hole[: len(content) + 500]) == {}, place


def test_a_reader_that_takes_zeros_for_the_start_of_a_batch_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = Path(segment_path(written(), NUMBER)).read_bytes()
    _, last = of_recovery(written()).ends[-2]
    filled = changed(content, ("zeros", last, 40)) + bytes(500)
    assert of_one_segment(filled) == {}
    monkeypatch.setattr("amqpstore_tools.offline.scanning.is_blank", lambda content: False)
    misled = of_one_segment(filled).keys()
    assert misled == {"check", "check on Spark", "repair", "tap"}


def test_all_readers_of_a_log_that_was_cut_anywhere_agree_with_recovery() -> None:
    content = Path(segment_path(written(), NUMBER)).read_bytes()
    for size in range(0, len(content), 211):
        assert of_one_segment(content[:size]) == {}, size


def test_a_reader_that_believes_a_transaction_alone_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last batch's first message is damaged: its TRANSACTION is there, and it is torn."""
    content = Path(segment_path(written(), NUMBER)).read_bytes()
    _, last = of_recovery(written()).ends[-2]
    damaged = changed(content, ("flip", last + 40, 1))
    assert of_one_segment(damaged) == {}
    monkeypatch.setattr(StoredBatch, "is_whole", lambda self: self.lsn > 0)
    assert of_one_segment(damaged) != {}


NUMBERS = range(1, 9)
SEGMENT_HEADER_BYTES = HEADER.size + SEGMENT_PAYLOAD.size

fractions = st.floats(0, 1, exclude_max=True)
hurts = st.tuples(
    st.sampled_from(["flip", "zeros", "repeat", "cut", "cut", "remove"]),
    st.sampled_from(NUMBERS),
    fractions,
    st.integers(1, 255),
)


Hurt = tuple[str, int, float, int]


def hurt(directory: str, kind: str, number: int, part: float, value: int) -> None:
    """Damage a segment at a part of its size, or remove it."""
    path = Path(segment_path(directory, number))
    if kind == "remove":
        path.unlink(missing_ok=True)
    elif path.exists() and (content := path.read_bytes()):
        path.write_bytes(changed(content, (kind, int(part * len(content)), value)))


def of_several(hurts: Sequence[Hurt], noted: set[int], torn: set[int]) -> dict[str, object]:
    """Hurt the store of several segments. Args: noted, segments whose ends are noted; torn, those
    whose last batch was torn, and taken back by a start."""
    with tempfile.TemporaryDirectory(prefix="amqpstore-readers-") as scratch:
        directory = os.path.join(scratch, "store")
        shutil.copytree(several(), directory)
        note_ends(directory, noted)
        for number in torn:
            tear(directory, number)
        for one in hurts:
            hurt(directory, *one)
        return disagreements(directory)


hurt_logs = given(
    st.lists(hurts, max_size=3),
    st.sets(st.sampled_from([3, 6, 7, 8, 9])),
    st.sets(st.sampled_from([3, 4, 5, 6, 7, 8])),
)


@settings(max_examples=6)
@hurt_logs
def test_all_readers_of_a_log_of_several_segments_agree_with_recovery(
    all_hurts: list[Hurt], noted: set[int], torn: set[int]
) -> None:
    assert of_several(all_hurts, noted, torn) == {}


@pytest.mark.long
@settings(max_examples=500)
@hurt_logs
def test_all_readers_of_a_log_of_several_segments_agree_at_length(
    all_hurts: list[Hurt], noted: set[int], torn: set[int]
) -> None:
    assert of_several(all_hurts, noted, torn) == {}


CASES: dict[str, tuple[list[Hurt], set[int], set[int]]] = {
    "the last segment is torn": ([("cut", 8, 0.95, 1)], set(), set()),
    "the last segment is torn from its start on": ([("cut", 8, 0.02, 1)], set(), set()),
    "torn behind a damaged batch": ([("flip", 8, 0.25, 1), ("cut", 8, 0.95, 1)], set(), set()),
    "what is noted is not torn": ([("cut", 8, 0.95, 1)], {8}, set()),
    "a start took the torn tail back": ([], set(), {8}),
    "starts took several back": ([], set(), {3, 4, 5, 7}),
    "the log had gone on in a segment that is missing": ([("cut", 8, 0.95, 1)], {9}, set()),
    "the last segment is missing": ([("remove", 8, 0.0, 1)], set(), set()),
    "the last segment is missing, and its end is noted": ([("remove", 8, 0.0, 1)], {8}, set()),
    "one in the middle is missing": ([("remove", 6, 0.0, 1)], set(), set()),
    "that of the position is missing": ([("remove", 2, 0.0, 1)], set(), set()),
    "one is cut in the middle": ([("cut", 4, 0.6, 1)], set(), set()),
    "the last is empty, and the one before is damaged": (
        [("cut", 8, 0.0, 1), ("cut", 7, 0.95, 1)],
        set(),
        set(),
    ),
    "a message of the last batch is damaged": ([("flip", 8, 0.8, 1)], set(), set()),
    "an earlier batch's TRANSACTION follows the last one": (
        [("repeat", 7, 0.375, 99)],
        set(),
        set(),
    ),
    "and in the last segment": ([("repeat", 8, 0.103, 80)], set(), set()),
}


@pytest.mark.parametrize("case", CASES)
def test_all_readers_agree_where(case: str) -> None:
    assert of_several(*CASES[case]) == {}


def note_ends(directory: str, numbers: set[int]) -> None:
    """Note in the catalog where these segments end; a ninth one was lost."""
    catalog = LmdbCatalog(os.path.join(directory, CATALOG), False)
    for number in numbers:
        path = segment_path(directory, number)
        size = os.path.getsize(path) if os.path.exists(path) else 100
        catalog.commit([SEGMENT_ENDS.put(number, SegmentEndRow(size))])
    catalog.close()


def tear(directory: str, number: int) -> None:
    """Have a crash tear the last batch of a segment, except its TRANSACTION, and a start take the
    batch back.
    """
    found = [end for segment, end in of_recovery(several()).ends if segment == number]
    start = found[-2] if len(found) > 1 else SEGMENT_HEADER_BYTES
    path = Path(segment_path(directory, number))
    path.write_bytes(changed(path.read_bytes(), ("flip", start + HEADER.size, 1)))
    catalog = LmdbCatalog(os.path.join(directory, CATALOG), False)
    catalog.commit([SEGMENT_ENDS.put(number, SegmentEndRow(start))])
    catalog.close()
