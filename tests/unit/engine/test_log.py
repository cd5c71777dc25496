"""The log: how a batch comes together, in which segment it lies, and who is told of it."""

import errno
import os
from pathlib import Path

import pytest

from amqpstore import DurabilityError, Envelope, Message, MessageDamagedError
from amqpstore.format.records import (
    SEGMENT_PAYLOAD,
    Gap,
    Kind,
    Operation,
    OperationKind,
    Record,
    checksum_seed,
    decode_transaction,
    scan,
)
from amqpstore.log.log import Log
from amqpstore.system.descriptors import Descriptors
from amqpstore.system.filenames import SEGMENTS, segment_path
from tests.unit.engine.stores import ENVELOPE, FailingFiles, messages

ENQUEUE, ACK, DELIVERED, PURGE = OperationKind
STORE_ID = bytes(range(16))
SEED = checksum_seed(STORE_ID)


@pytest.fixture
def files() -> FailingFiles:
    return FailingFiles()


@pytest.fixture
def log(tmp_path: Path, files: FailingFiles) -> Log:
    return new_log(tmp_path, files)


def new_log(directory: Path, files: FailingFiles, segment_bytes: int = 1 << 20) -> Log:
    (directory / SEGMENTS).mkdir()
    return Log(
        Descriptors(files),
        str(directory),
        store_id=STORE_ID,
        segment_bytes=segment_bytes,
        segments=[],
    )


def sync(log: Log) -> None:
    """Take the open batch through its three steps."""
    batch = log.seal(5)
    assert batch is not None
    log.write(batch)
    log.complete(batch)


def publish(log: Log, *bodies: bytes, queue_id: int = 1, first_sequence: int = 1) -> int:
    first_id = log.append_messages(messages(*bodies), sum(map(len, bodies)))
    log.append_operation(Operation(ENQUEUE, len(bodies), queue_id, first_sequence, first_id))
    return first_id


def records(directory: Path, number: int = 1) -> list[Record]:
    content = Path(segment_path(str(directory), number)).read_bytes()
    found = list(scan(content, number, SEED))
    sound = [record for record in found if isinstance(record, Record)]
    assert sound == found
    return sound


def operations(directory: Path, number: int = 1) -> list[list[Operation]]:
    """The operations of each TRANSACTION of a segment."""
    content = Path(segment_path(str(directory), number)).read_bytes()
    return [
        decode_transaction(content[record.payload_offset : record.end], 1 << 30)[1]
        for record in records(directory, number)
        if record.kind == Kind.TRANSACTION
    ]


def test_a_batch_is_its_messages_and_then_one_transaction(tmp_path: Path, log: Log) -> None:
    publish(log, b"one", b"two")
    publish(log, b"three", queue_id=2)
    sync(log)
    publish(log, b"four", first_sequence=3)
    sync(log)
    kinds = [(record.kind, record.number) for record in records(tmp_path)]
    message, transaction = Kind.MESSAGE, Kind.TRANSACTION
    assert kinds == [
        (Kind.SEGMENT, 1),
        *[(message, 1), (message, 2), (message, 3), (transaction, 1)],
        *[(message, 4), (transaction, 2)],
    ]


def test_operations_that_go_on_where_the_last_ended_become_one(tmp_path: Path, log: Log) -> None:
    publish(log, b"one")
    publish(log, b"two", b"three", first_sequence=2)
    log.append_operation(Operation(ACK, 1, 1, 1))
    log.append_operation(Operation(ACK, 2, 1, 2))
    sync(log)
    assert operations(tmp_path) == [[Operation(ENQUEUE, 3, 1, 1, 1), Operation(ACK, 3, 1, 1)]]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Operation(ACK, 2, 1, 1), Operation(ACK, 1, 1, 4)),
        (Operation(ACK, 2, 1, 4), Operation(ACK, 1, 1, 1)),
        (Operation(DELIVERED, 2, 1, 1), Operation(DELIVERED, 2, 1, 1)),
        (Operation(ENQUEUE, 2, 1, 1, 1), Operation(ENQUEUE, 1, 1, 3, 9)),
    ],
    ids=["a gap", "a step back", "twice the same", "other ids"],
)
def test_operations_that_do_not_go_on_stay_apart_and_in_order(
    tmp_path: Path, log: Log, before: Operation, after: Operation
) -> None:
    log.append_operation(before)
    log.append_operation(after)
    sync(log)
    assert operations(tmp_path) == [[before, after]]


def test_operations_are_sorted_by_kind_and_then_by_queue(tmp_path: Path, log: Log) -> None:
    kinds = [PURGE, DELIVERED, ACK, ENQUEUE]
    for queue_id in (2, 1):
        for kind in kinds:
            log.append_operation(Operation(kind, 1, queue_id, 1, int(kind == ENQUEUE)))
    sync(log)
    (found,) = operations(tmp_path)
    assert [(one.kind, one.queue_id) for one in found] == [
        (kind, queue_id) for kind in (ENQUEUE, ACK, DELIVERED, PURGE) for queue_id in (1, 2)
    ]


def test_nothing_to_seal_is_no_batch(log: Log) -> None:
    assert log.seal(5) is None
    assert log.current is None


def test_what_comes_after_seal_is_the_next_batch(tmp_path: Path, log: Log) -> None:
    publish(log, b"one")
    batch = log.seal(5)
    assert batch is not None
    publish(log, b"two", first_sequence=2)
    log.write(batch)
    log.complete(batch)
    sync(log)
    assert [len(found) for found in operations(tmp_path)] == [1, 1]


def test_ids_are_contiguous_and_never_given_twice(log: Log) -> None:
    assert publish(log, b"one", b"two") == 1
    sync(log)
    assert publish(log, b"three") == 3
    assert publish(log, b"four", b"five", first_sequence=2) == 4


def test_a_segment_gets_no_further_batch_once_it_has_its_size(
    tmp_path: Path, files: FailingFiles
) -> None:
    log = new_log(tmp_path, files, segment_bytes=400)
    for number in range(6):
        publish(log, b"x" * 100, first_sequence=number + 1)
        sync(log)
    numbers = sorted(int(path.name[:10]) for path in (tmp_path / SEGMENTS).iterdir())
    assert numbers == [1, 2, 3]
    for number in numbers:
        kinds = [record.kind for record in records(tmp_path, number)]
        assert kinds == [Kind.SEGMENT, *[Kind.MESSAGE, Kind.TRANSACTION] * 2]
    log.close()


def test_a_batch_larger_than_a_segment_lies_in_one(tmp_path: Path, files: FailingFiles) -> None:
    log = new_log(tmp_path, files, segment_bytes=400)
    publish(log, *[b"x" * 100] * 20)
    sync(log)
    assert len(records(tmp_path)) == 22
    log.close()


def test_a_segment_says_which_store_it_is_of(tmp_path: Path, log: Log) -> None:
    publish(log, b"one")
    sync(log)
    header = records(tmp_path)[0]
    content = Path(segment_path(str(tmp_path), 1)).read_bytes()
    assert SEGMENT_PAYLOAD.unpack(content[header.payload_offset : header.end]) == (2, STORE_ID, 5)


def test_a_new_segment_is_durable_with_its_directory_entry(log: Log, files: FailingFiles) -> None:
    publish(log, b"one")
    sync(log)
    assert files.calls == ["create", "append", "datasync", "sync_directory"]
    del files.calls[:]
    publish(log, b"two", first_sequence=2)
    sync(log)
    assert files.calls == ["append", "datasync"]


def test_who_waits_for_the_open_batch_is_told_when_it_is_durable(log: Log) -> None:
    told: list[str] = []
    publish(log, b"one")
    log.when_durable(lambda: told.append("open"))
    assert log.is_promised
    batch = log.seal(5)
    assert batch is not None
    log.when_durable(lambda: told.append("under way"))
    log.write(batch)
    assert told == []
    log.complete(batch)
    assert told == ["open", "under way"]


def test_who_waits_for_nothing_is_told_at_once(log: Log) -> None:
    told: list[str] = []
    log.when_durable(lambda: told.append("now"))
    assert told == ["now"]
    publish(log, b"one")
    sync(log)
    log.when_durable(lambda: told.append("again"))
    assert told == ["now", "again"]


def test_who_waits_for_the_next_batch_is_not_told_by_the_one_under_way(log: Log) -> None:
    told: list[str] = []
    publish(log, b"one")
    batch = log.seal(5)
    assert batch is not None
    publish(log, b"two", first_sequence=2)
    log.when_durable(lambda: told.append("next"))
    log.write(batch)
    log.complete(batch)
    assert told == []
    sync(log)
    assert told == ["next"]


def test_operations_alone_are_nothing_promised_until_somebody_waits(log: Log) -> None:
    log.append_operation(Operation(DELIVERED, 1, 1, 1))
    assert not log.is_promised
    log.when_durable(lambda: None)
    assert log.is_promised


def test_pending_bytes_are_those_of_properties_as_well(log: Log) -> None:
    envelope = Envelope("", "q", bytes(100_000))
    log.append_messages([Message(envelope, b"") for _ in range(3)], 0)
    assert 300_000 < log.pending_bytes < 301_000


def test_pending_bytes_are_those_of_the_open_batch_and_of_the_one_under_way(log: Log) -> None:
    assert log.pending_bytes == 0
    publish(log, b"x" * 1000)
    assert 1000 < log.pending_bytes < 1500
    batch = log.seal(5)
    assert batch is not None
    publish(log, b"x" * 1000, first_sequence=2)
    assert 2000 < log.pending_bytes < 3000
    log.write(batch)
    log.complete(batch)
    assert 1000 < log.pending_bytes < 1500
    sync(log)
    assert log.pending_bytes == 0


@pytest.mark.parametrize("call", ["create", "append", "datasync", "sync_directory"])
def test_a_failing_write_is_a_durability_error_and_tells_nobody(
    log: Log, files: FailingFiles, call: str
) -> None:
    told: list[str] = []
    publish(log, b"one")
    log.when_durable(lambda: told.append("durable"))
    batch = log.seal(5)
    assert batch is not None
    files.fails = {call}
    with pytest.raises(DurabilityError) as raised:
        log.write(batch)
    assert isinstance(raised.value.cause, OSError)
    assert raised.value.path.endswith("0000000001.segment")
    assert told == []
    log.close()


def test_durable_messages_are_read_back_some_at_a_time(tmp_path: Path, files: FailingFiles) -> None:
    log = new_log(tmp_path, files, segment_bytes=400)
    written = [b"%d" % number * 40 for number in range(30)]
    for number, body in enumerate(written):
        publish(log, body, first_sequence=number + 1)
        sync(log)
    found: list[Message] = []
    while len(found) < len(written):
        some = log.read(len(found) + 1, len(written) - len(found))
        assert isinstance(some, list)
        assert some
        found += some
    assert [message.body for message in found] == written
    assert len(found) == 30
    assert {message.envelope.routing_key for message in found} == {ENVELOPE.routing_key}
    log.close()


def test_one_read_is_about_a_mebibyte(log: Log) -> None:
    publish(log, *[b"x" * 100_000] * 40)
    sync(log)
    some = log.read(1, 40)
    assert isinstance(some, list)
    assert 10 <= len(some) <= 12
    # And never less than a message, however long.
    publish(log, b"y" * 3_000_000, b"z", first_sequence=41)
    sync(log)
    some = log.read(41, 2)
    assert isinstance(some, list)
    assert [len(message.body) for message in some] == [3_000_000]


@pytest.mark.parametrize("message_id", [0, 2, 1000])
def test_a_message_that_no_segment_has_is_an_error_that_says_so(log: Log, message_id: int) -> None:
    publish(log, b"one")
    sync(log)
    found = log.read(message_id, 1)
    assert isinstance(found, MessageDamagedError)
    assert found.message_id == message_id


def test_a_message_that_is_published_twice_is_written_under_two_ids(
    tmp_path: Path, log: Log
) -> None:
    (message,) = messages(b"one")
    for first_sequence in (1, 2):
        first_id = log.append_messages([message], len(message.body))
        log.append_operation(Operation(ENQUEUE, 1, 1, first_sequence, first_id))
    sync(log)
    assert [one.number for one in records(tmp_path) if one.kind == Kind.MESSAGE] == [1, 2]


def test_the_log_is_idle_but_from_seal_to_settle(log: Log) -> None:
    seen = [(log.is_idle, log.is_empty)]
    publish(log, b"one")
    seen.append((log.is_idle, log.is_empty))
    batch = log.seal(5)
    assert batch is not None
    seen.append((log.is_idle, log.is_empty))
    log.write(batch)
    seen.append((log.is_idle, log.is_empty))
    log.complete(batch)
    seen.append((log.is_idle, log.is_empty))
    assert seen == [(True, True), (True, False), (False, True), (False, True), (True, True)]


@pytest.mark.parametrize("limit", ["BYTES", "MESSAGES", "OPERATIONS"])
def test_a_large_batch_is_encoded_when_it_is_written(
    tmp_path: Path, files: FailingFiles, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    contents = []
    for large in (0, 1000):
        monkeypatch.setattr(f"amqpstore.log.batch._LARGE_BATCH_{limit}", large)
        directory = tmp_path / str(large)
        directory.mkdir()
        log = new_log(directory, files)
        for sequence in (1, 3):
            publish(log, b"one", b"two", first_sequence=sequence)
            batch = log.seal(5)
            assert batch is not None
            assert bool(batch.buffers and batch.lengths) is (large == 1000)
            publish(log, b"later", first_sequence=9)
            log.write(batch)
            log.complete(batch)
        messages_read = log.read(1, 2)
        assert isinstance(messages_read, list)
        assert [message.body for message in messages_read] == [b"one", b"two"]
        contents.append(Path(segment_path(str(directory), 1)).read_bytes())
    assert contents[0] == contents[1]


def small_batches(log: Log, count: int, size: int = 4000) -> list[int]:
    """Publish messages one at a time; return the size of the file after each."""
    sizes = []
    for number in range(count):
        publish(log, b"x" * size, first_sequence=number + 1)
        sync(log)
        assert log.current is not None
        sizes.append(os.path.getsize(log.current.path))
    return sizes


def test_a_segment_of_small_batches_is_filled_ahead_of_use(
    log: Log, tmp_path: Path, files: FailingFiles
) -> None:
    sizes = small_batches(log, 40)
    assert log.current is not None
    # From 16 KiB on as much again as there was, and no further growth until that was used.
    assert [sizes.index(size) for size in sorted({*sizes})] == [0, 1, 2, 3, 4, 8, 16, 32]
    assert log.current.size < sizes[-1] <= 2 * log.current.size
    assert records_before_zeros(tmp_path) == 1 + 2 * 40
    # Each growth has a sync of its own, before the batch is written over the zeros.
    assert files.calls.count("datasync") == 40 + 4
    log.trim()
    assert os.path.getsize(log.current.path) == log.current.size
    assert len(records(tmp_path)) == 1 + 2 * 40


def records_before_zeros(directory: Path) -> int:
    path = segment_path(str(directory), 1)
    found = list(scan(Path(path).read_bytes(), 1, SEED))
    assert isinstance(found.pop(), Gap)
    assert all(isinstance(one, Record) for one in found)
    return len(found)


def test_a_segment_is_not_filled_beyond_its_size(tmp_path: Path, files: FailingFiles) -> None:
    log = new_log(tmp_path, files, segment_bytes=50_000)
    small_batches(log, 30)
    for segment in log.segments[:-1]:
        assert segment.size >= 50_000
        assert os.path.getsize(segment.path) == segment.size
        records(tmp_path, segment.number)


def test_a_segment_is_not_filled_for_large_batches(log: Log) -> None:
    sizes = small_batches(log, 5, size=100_000)
    assert log.current is not None
    assert sizes[-1] == log.current.size


def test_a_batch_for_which_a_segment_is_filled_is_not_written_by_the_owner_of_the_log(
    log: Log,
) -> None:
    small_batches(log, 4)
    asked = []
    for _ in range(3):
        publish(log, b"x" * 4000)
        batch = log.seal(5)
        assert batch is not None
        asked.append((batch.fills, batch.is_small))
        log.write(batch)
        log.complete(batch)
    assert asked == [(True, False), (False, True), (False, True)]


def test_filling_that_fails_ends_all_writing(log: Log, files: FailingFiles) -> None:
    small_batches(log, 4)
    files.fails = {"fill"}
    publish(log, b"x" * 4000)
    with pytest.raises(DurabilityError, match="fill fails"):
        sync(log)
    assert log.failure is not None


def test_a_disk_that_is_too_full_to_be_filled_takes_the_batch_all_the_same(
    log: Log, files: FailingFiles, tmp_path: Path
) -> None:
    small_batches(log, 4)
    files.fails, files.error = {"fill"}, OSError(errno.ENOSPC, "fill fails")
    small_batches(log, 3)
    assert len(records(tmp_path)) == 1 + 2 * 7
