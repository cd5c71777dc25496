"""Stores whose checksums are right and whose content is not: what a bug of a writer would leave."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from amqpstore import Message, Run, Store
from amqpstore.catalog.catalog import Change, LmdbCatalog
from amqpstore.catalog.tables import SEGMENT_ENDS, SegmentEndRow
from amqpstore.format.index import decode_block, encode_block
from amqpstore.format.records import (
    FORMAT_VERSION,
    HEADER,
    Kind,
    encode_record,
    encode_segment_header,
)
from amqpstore.system.files import File
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.check.engine import check
from amqpstore_tools.offline.read_only_files import ReadOnlyFiles
from tests.unit.check.forged import (
    ACK,
    BODY,
    ENQUEUE,
    ENVELOPE,
    OPTIONS,
    PURGE,
    Forged,
    op,
)


@pytest.fixture
def forged(tmp_path: object) -> Forged:
    return Forged(os.path.join(str(tmp_path), "store"))


@pytest.fixture
def kept(forged: Forged) -> Forged:
    """The store with two messages in each queue, in index files, by a checkpoint."""
    store = Store.open(forged.directory, options=OPTIONS, worker=InlineWorker())
    queues = list(store.queues.values())
    store.publish(queues, [Message(ENVELOPE, b"one"), Message(ENVELOPE, b"two")])
    store.publish(queues[:1], [Message(ENVELOPE, b"x" * 300)] * 3)
    store.sync()
    store.close()
    return forged


def test_what_is_written_as_it_should_be(forged: Forged) -> None:
    forged.segment(1, forged.batch(1, range(1, 4)), forged.batch(2, range(4, 5)))
    forged.segment(2, forged.batch(3, range(5, 7), segment=2))
    assert forged.found() == {}


@pytest.mark.parametrize(
    ("code", "batches"),
    [
        ("batch-broken", lambda it: [it.batch(1, range(1, 3), op(ENQUEUE, 1, 1, 1, 1))]),
        ("batch-broken", lambda it: [it.batch(1, range(1, 2), op(ENQUEUE, 2, 1, 1, 1))]),
        (
            "batch-broken",
            lambda it: [it.batch(2, range(1, 2))[: 32 + len(BODY)], it.batch(3, range(2, 3))],
        ),
        ("log-order", lambda it: [it.batch(1, range(1, 2)), it.batch(3, range(2, 3))]),
        ("operation-malformed", lambda it: [it.batch(1, range(0), op(9, 1, 1, 1))]),
        ("operation-malformed", lambda it: [it.batch(1, range(0), op(ACK, 0, 1, 1))]),
        ("operation-malformed", lambda it: [it.batch(1, range(0), op(ACK, 1, 1, 1, 7))]),
        ("operation-malformed", lambda it: [it.batch(1, range(0), op(PURGE, 1, 1, 1, 0, 7))]),
        (
            "operation-malformed",
            lambda it: [it.batch(1, range(1, 2), op(ENQUEUE, 1, 2, 1, 1), op(ENQUEUE, 1, 1, 1, 1))],
        ),
        ("operation-queue-unknown", lambda it: [it.batch(1, range(1, 2), op(ENQUEUE, 1, 3, 1, 1))]),
        (
            "operation-sequence-unknown",
            lambda it: [it.batch(1, range(1, 2)), it.batch(2, range(0), op(ACK, 2, 1, 1))],
        ),
        (
            "sequence-reused",
            lambda it: [
                it.batch(1, range(1, 2)),
                it.batch(2, range(2, 3), op(ENQUEUE, 1, 1, 1, 2)),
            ],
        ),
        ("message-malformed", lambda it: [it.batch(1, range(1, 2), payload=b"\xff\0\0\0\0\0x")]),
        ("message-malformed", lambda it: [it.batch(1, range(1, 2), payload=b"\1\0\0\0\0\0\xff")]),
        ("message-malformed", lambda it: [it.batch(1, range(1, 2), payload=b"\1")]),
        ("body-damaged", lambda it: [it.batch(1, range(1, 2), flags=1)]),
        (
            "segment-header",
            lambda it: (
                [encode_segment_header(2, FORMAT_VERSION, it.store_id, 1).replace(b"", b"")]
                and [forge_second_header(it)]
            ),
        ),
    ],
)
def test_a_log_that_says_what_cannot_be(
    forged: Forged, code: str, batches: Callable[[Forged], list[bytes]]
) -> None:
    forged.segment(1, *batches(forged))
    assert code in forged.found()


def forge_second_header(forged: Forged) -> bytes:
    """A SEGMENT record of a higher number, that says it is in segment 1."""
    return encode_record(Kind.SEGMENT, 2, 1, b"\0" * 28, seed=0) + forged.batch(1, range(1, 2))


def test_lsns_and_ids_ascend_from_segment_to_segment(forged: Forged) -> None:
    forged.segment(1, forged.batch(5, range(5, 6)))
    forged.segment(2, forged.batch(4, range(4, 5), op(ENQUEUE, 1, 2, 1, 4), segment=2))
    assert forged.found()["log-order"] == "LSN 4 is behind 5"


def test_a_torn_tail_is_a_note(forged: Forged) -> None:
    batch = forged.batch(2, range(2, 3))
    forged.segment(1, forged.batch(1, range(1, 2)), batch[:-1], note_end=False)
    assert set(forged.found()) == {"batch-torn"}
    assert not check(forged.directory).is_damaged


def test_a_segment_of_which_a_start_took_all_back_needs_no_header(forged: Forged) -> None:
    """The first batch of the segment was torn from the header on, and its end was noted as 0."""
    forged.segment(1, forged.batch(1, range(1, 2)))
    name = forged.segment(2, forged.batch(2, range(2, 3), segment=2))
    path = Path(forged.directory, name)
    path.write_bytes(path.read_bytes()[:70])
    forged.rows(SEGMENT_ENDS.put(2, SegmentEndRow(0)))
    assert forged.found() == {}


def test_a_segment_that_is_missing_though_its_end_is_noted(forged: Forged) -> None:
    forged.segment(1, forged.batch(1, range(1, 2)))
    forged.rows(SEGMENT_ENDS.put(5000, SegmentEndRow(100)))
    missing = [one for one in check(forged.directory).findings if one.code == "segment-missing"]
    assert len(missing) == 1001
    assert missing[0].text == "the file is missing, and so are the 3998 after it"


def test_a_whole_batch_behind_the_noted_end(forged: Forged) -> None:
    name = forged.segment(1, forged.batch(1, range(1, 2)))
    with open(os.path.join(forged.directory, name), "ab") as file:
        file.write(forged.batch(2, range(2, 3)))
    assert set(forged.found()) == {"batch-behind-end"}


def test_a_message_that_is_damaged_is_lost_unless_it_was_acked(forged: Forged) -> None:
    name = forged.segment(
        1, forged.batch(1, range(1, 4)), forged.batch(2, range(0), op(ACK, 1, 1, 2))
    )
    path = os.path.join(forged.directory, name)
    with open(path, "rb") as file:
        content = bytearray(file.read())
    for message in range(3):
        content[60 + (message + 1) * (HEADER.size + len(BODY)) - 1] ^= 1
    with open(path, "wb") as file:
        file.write(content)
    lost = [one for one in check(forged.directory).findings if one.code == "message-lost"]
    assert [(one.queue, one.sequence, one.message_id, one.messages) for one in lost] == [
        ("/orders", 1, 1, 1),
        ("/orders", 3, 3, 1),
    ]


@pytest.mark.parametrize(
    ("code", "table", "key", "row"),
    [
        ("row-damaged", "heads", "1", {"next_sequence": 9}),
        ("row-damaged", "heads", f"{1:020}", {"next_sequence": -1}),
        ("row-damaged", "queues", "x", {}),
        ("row-damaged", "store", "position", [1]),
        ("row-damaged", "store", "more", 1),
        ("row-damaged", "quarantine", f"{3:010}", "none"),
        ("head-too-low", "heads", f"{1:020}", {"next_sequence": 3}),
        ("row-orphaned", "heads", f"{1:020}", None),
        (
            "row-orphaned",
            "marks",
            f"{1 << 31:010}",
            {"first_id": 1, "end_id": 1, "ids": [], "offsets": []},
        ),
        (
            "marks-wrong",
            "marks",
            f"{1:010}",
            {"first_id": 1, "end_id": 6, "ids": [1], "offsets": [9]},
        ),
        (
            "marks-wrong",
            "marks",
            f"{1:010}",
            {"first_id": 1, "end_id": 5, "ids": [], "offsets": []},
        ),
        ("marks-wrong", "marks", f"{1:010}", None),
        ("quarantine-missing", "quarantine", f"{7:010}", [[0, 1, "zeros"]]),
        ("dictionary-damaged", "dictionaries", f"{7:010}", b"none at all"),
        ("store-id-differs", "store", "store_id", b"0123456789abcdef"),
        ("row-damaged", "store", "store_id", None),
        ("queue-id-too-low", "store", "next_queue_id", 2),
    ],
)
def test_a_row_that_is_not_so(kept: Forged, code: str, table: str, key: str, row: Any) -> None:
    assert kept.found() == {}
    kept.rows(Change(table, key, row))
    assert code in kept.found()


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("index-order", {"ids": [1, 1]}),
        ("index-row-differs", {"sequences": [1, 3]}),
        ("message-size-differs", {"sizes": [99, 99]}),
        ("references-differ", {"ids": [1, 5]}),
        ("message-lost", {"ids": [2, 77]}),
        ("index-row-differs", {"expires_ms": [5, 5]}),
        ("index-row-differs", {"body_sizes": [77, 77]}),
        ("index-damaged", {"flags": [0, 1]}),
    ],
)
def test_an_index_file_that_is_not_so(kept: Forged, code: str, changes: dict[str, Any]) -> None:
    directory = os.path.join(kept.directory, "index")
    (name,) = [one for one in os.listdir(directory) if one.startswith(f"{2:020}")]
    path = os.path.join(directory, name)
    with open(path, "rb") as file:
        _, entries = decode_block(file.read()[HEADER.size :])
    for column, numbers in changes.items():
        for place, number in enumerate(numbers):
            getattr(entries, column)[place] = number
    forge = encode_block(2, 1, entries, kept.seed)
    with open(path, "wb") as file:
        file.write(forge)
    catalog = LmdbCatalog(os.path.join(kept.directory, "catalog"), False)
    row = catalog.rows("index")[name.removesuffix(".index")]
    catalog.close()
    kept.rows(Change("index", name.removesuffix(".index"), row | {"end_bytes": len(forge)}))
    assert code in kept.found()


def test_a_segment_in_quarantine_is_a_note(kept: Forged) -> None:
    os.mkdir(os.path.join(kept.directory, "quarantine"))
    with open(os.path.join(kept.directory, "quarantine", "0000000009.segment"), "wb"):
        pass
    assert set(kept.found()) == {"quarantined"}


@pytest.mark.parametrize("call", ["segments", "index"])
def test_a_disk_that_cannot_read(kept: Forged, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = ReadOnlyFiles.open

    class Failing:
        def __init__(self, file: File) -> None:
            self.path, self.size, self.close = file.path, file.size, file.close

        def read(self, offset: int, size: int) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    def failing(self: ReadOnlyFiles, path: str) -> Any:
        file = opened(self, path)
        return Failing(file) if f"/{call}/" in path else file

    monkeypatch.setattr(ReadOnlyFiles, "open", failing)
    assert "file-unreadable" in kept.found()


def test_a_table_that_this_version_does_not_write(kept: Forged) -> None:
    path = os.path.join(kept.directory, "catalog")
    with lmdb.open(path, max_dbs=64) as environment:
        database = environment.open_db(b"strange")
        with environment.begin(database, write=True) as transaction:
            transaction.put(b"key", b"value")
    assert set(kept.found()) == {"table-unknown"}


def prepared(*locked: list[int], publishes: list[Any] | None = None) -> dict[str, Any]:
    return {"label": "one", "locked": list(locked), "publishes": publishes or []}


@pytest.mark.parametrize(
    ("code", "queue_id", "row"),
    [
        ("prepared-queue-missing", 9, prepared()),
        ("prepared-incomplete", 2, prepared(publishes=[[2, 5, 0, [[1, 0, None]]]])),
        ("prepared-incomplete", 2, prepared([1, 1, 1])),
        ("row-damaged", 2, {"label": "one"}),
        ("row-damaged", 2, prepared([1, 2])),
        ("row-damaged", 2, prepared(publishes=[[2, 5, 0, [[1, 0]]]])),
        ("row-damaged", 2, prepared(publishes=[[2, 5, 0, 7]])),
    ],
)
def test_a_prepared_transaction_that_is_not_all_there(
    kept: Forged, code: str, queue_id: int, row: dict[str, Any]
) -> None:
    # The first message of queue 1 is acked behind the checkpoint.
    kept.segment(2, kept.batch(9, range(0), op(ACK, 1, 1, 1), segment=2))
    assert kept.found() == {}
    kept.rows(Change("prepared", f"{queue_id:020}", row))
    assert set(kept.found()) == {code}


def test_a_prepared_transaction_that_is_undecided(forged: Forged) -> None:
    store = Store.open(forged.directory, options=OPTIONS, worker=InlineWorker())
    orders, audit = store.queues.values()
    store.publish([orders], [Message(ENVELOPE, b"one"), Message(ENVELOPE, b"two")])
    store.sync()
    run = store.take(orders, 1)
    assert isinstance(run, Run)
    transaction = store.transaction()
    transaction.ack(orders, run)
    transaction.publish([audit], [Message(ENVELOPE, b"three")])
    transaction.prepare("one")
    store.close()
    checked = check(forged.directory)
    assert list(checked.findings) == []
    assert (checked.prepared, checked.queues, checked.messages) == (1, 2, 2)
