"""A store read without being opened: what it says is what opening finds, and nothing changes."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from amqpstore import (
    Envelope,
    FormatVersionError,
    Message,
    NotAStoreError,
    Options,
    Queue,
    Run,
    Store,
    StoreLockedError,
)
from amqpstore.worker import InlineWorker
from tools.offline.image import StoreImage
from tools.offline.segments import SegmentState

FIXTURES = Path(__file__).parents[3] / "fixtures" / "v1"
STORES = ("golden", "torn", "damaged")
SMALL = Options(segment_bytes=4096, reserve_bytes=0, checkpoint_ms=1 << 60)
ENVELOPE = Envelope("logs", "eu.de", bytes.fromhex("100002"))


def files_of(directory: str) -> dict[str, tuple[bytes, int]]:
    """Bytes and time of every file, and the directories."""
    found = {}
    for root, directories, names in os.walk(directory):
        for name in directories:
            found[os.path.relpath(os.path.join(root, name), directory)] = b"", 0
        for name in names:
            path = os.path.join(root, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, directory)] = file.read(), os.stat(path).st_mtime_ns
    return found


def copied(name: str, tmp_path: Path) -> str:
    target = str(tmp_path / name)
    shutil.copytree(FIXTURES / name / "store", target)
    return target


def expected(name: str) -> dict[str, list[dict[str, Any]]]:
    """Messages by queue, but those that opening cannot read."""
    content = json.loads((FIXTURES / name / "expected.json").read_text())
    return {
        queue: [one for one in found["messages"] if "error" not in one]
        for queue, found in content["queues"].items()
    }


def messages_of(directory: str, *, live: bool = False) -> dict[str, list[dict[str, Any]]]:
    """The same, as an image has it."""
    queues: dict[str, list[dict[str, Any]]] = {}
    with StoreImage.open(directory, live=live) as image:
        for queue in image.queues:
            messages = queues[queue.label] = []
            entries = [one for one in queue.entries() if one.sequence not in queue.lost]
            stored = dict(image.messages(entry.message_id for entry in entries))
            for entry in entries:
                found = stored[entry.message_id]
                assert found is not None
                message = found.message(image.decoder)
                messages.append(
                    {
                        "sequence": entry.sequence,
                        "id": entry.message_id,
                        "delivery_count": entry.delivery_count,
                        "priority": entry.priority,
                        "expires_ms": entry.expires_ms,
                        "exchange": message.envelope.exchange,
                        "routing_key": message.envelope.routing_key,
                        "properties": message.envelope.properties.hex(),
                        "body": message.body.hex(),
                    }
                )
    return queues


def open_store(directory: str) -> Store:
    return Store.open(directory, options=SMALL, worker=InlineWorker())


def publish(store: Store, queue: Queue, count: int) -> None:
    """Each in a batch of its own, so that segments fill up."""
    for number in range(count):
        store.publish([queue], [Message(ENVELOPE, b"%d" % number * 100)])
        store.sync()


def take(store: Store, queue: Queue, count: int) -> list[Run]:
    found = []
    while count and isinstance(run := store.take(queue, limit=count), Run):
        found.append(run)
        count -= run.count
    return found


@pytest.fixture
def busy(data_directory: str) -> str:
    """A store with several segments, index files, a compacted segment, and a log behind that."""
    store = open_store(data_directory)
    orders, audit = (store.create_queue({"vhost": "/", "name": name}) for name in ("o", "a"))
    publish(store, orders, 100)
    store.publish([orders, audit], [Message(ENVELOPE, b"both")] * 3)
    store.checkpoint()
    for number in range(80):
        [run] = take(store, orders, 1)
        if number % 4:
            store.ack(orders, run)
    store.sync()
    store.checkpoint()
    for _ in range(5):
        store.housekeep()
    publish(store, audit, 10)
    take(store, audit, 2)
    store.sync()
    store.abandon()
    return data_directory


@pytest.mark.parametrize("name", STORES)
def test_it_says_what_opening_finds(name: str, tmp_path: Path) -> None:
    assert messages_of(copied(name, tmp_path)) == expected(name)


@pytest.mark.parametrize("name", STORES)
def test_nothing_changes(name: str, tmp_path: Path) -> None:
    directory = copied(name, tmp_path)
    before = files_of(directory)
    messages_of(directory)
    with StoreImage.open(directory) as image:
        assert image.catalog_reason is None
        for segment in image.segments:
            list(segment.scan())
        for file in image.index_files:
            list(file.blocks())
    assert files_of(directory) == before


def test_a_crashed_store_of_many_segments(busy: str) -> None:
    before = files_of(busy)
    found = messages_of(busy)
    with StoreImage.open(busy) as image:
        states = {segment.state for segment in image.segments}
        assert {SegmentState.COMPACTED, SegmentState.OPEN} <= states
        kept = image.report.kept
        assert {queue.id: queue.live_count for queue in image.queues} == kept
        assert sum(queue.totals().ready for queue in image.queues) == sum(kept.values())
        assert [queue.totals().delivered for queue in image.queues] == [2, 20]
        assert image.tail.batches > 0
    assert files_of(busy) == before
    with open_store(busy) as store:
        assert {queue.id: queue.ready_count for queue in store.queues.values()} == kept
    assert messages_of(busy) == found


def test_live_and_garbage_are_the_accounts_of_recovery(busy: str) -> None:
    with StoreImage.open(busy) as image:
        live = {one.number: one.live_bytes for one in image.segments}
        assert all(0 <= one.live_bytes <= one.size for one in image.segments)
    with open_store(busy) as store:
        store.checkpoint()
        rows = {account.number: account for account in store._keeper._ledger.accounts}
    for number, account in rows.items():
        assert abs(live[number] - (account.end_bytes - account.garbage_bytes)) <= 1


def test_who_holds_a_message(busy: str) -> None:
    with StoreImage.open(busy) as image:
        names = {holder.queue.name: holder.entry.sequence for holder in image.holders(102)}
        assert names == {"o": 102, "a": 2}
        assert image.holders(2) == []
        assert image.message(10_000) is None


def test_a_transaction_by_its_lsn(busy: str) -> None:
    with StoreImage.open(busy) as image:
        lsn = image.tail.end.lsn - 2
        found = image.transaction(lsn)
        assert found is not None
        assert found.lsn == lsn
        assert found.message_count == 1
        assert found.operations[0].message_count == 1
        assert image.transaction(image.tail.end.lsn) is None
        assert image.transaction(0) is None


def test_a_store_that_is_open_is_refused_or_a_snapshot_is_read(data_directory: str) -> None:
    with open_store(data_directory) as store:
        orders = store.create_queue({"vhost": "/", "name": "orders"})
        publish(store, orders, 20)
        store.checkpoint()
        publish(store, orders, 5)
        with pytest.raises(StoreLockedError, match=f"process {os.getpid()}"):
            StoreImage.open(data_directory)
        before = files_of(data_directory)
        with StoreImage.open(data_directory, live=True) as image:
            assert image.is_live
            # What happens meanwhile is not in it, even where its files go.
            later = store.create_queue({"vhost": "/", "name": "later"})
            publish(store, later, 50)
            store.purge(orders)
            store.sync()
            store.checkpoint()
            assert not os.path.exists(image.segments[0].path)
            [queue] = image.queues
            assert [entry.sequence for entry in queue.entries()] == list(range(1, 26))
            found = [stored for _, stored in image.messages(range(1, 26))]
            assert all(found)
        # Only what the store did changed: a snapshot leaves nothing.
        assert set(files_of(data_directory)) - set(before) <= {
            os.path.relpath(segment.path, data_directory) for segment in store.log.segments
        } | {name for name in files_of(data_directory) if name.startswith("index/")}


def test_while_it_is_read_no_broker_gets_in_and_other_readers_do(busy: str) -> None:
    with StoreImage.open(busy), StoreImage.open(busy), pytest.raises(StoreLockedError):
        open_store(busy)
    open_store(busy).abandon()


def test_a_catalog_that_is_lost_leaves_segments_and_index_files(busy: str) -> None:
    found = messages_of(busy)
    shutil.rmtree(os.path.join(busy, "catalog"))
    with StoreImage.open(busy) as image:
        assert image.catalog_reason == "the file is missing"
        assert image.is_rebuilt
        names = [queue.name for queue in image.queues]
        assert names == [None, None]
        ids = {queue.id: {entry.message_id for entry in queue.entries()} for queue in image.queues}
        # All that is live, by the ids of the queues, and perhaps what was acked long ago.
        for queue_id, name in ((1, "o"), (2, "a")):
            assert ids[queue_id] >= {message["id"] for message in found[name]}
        assert image.message(min(ids[1])) is not None


@pytest.mark.parametrize("name", ["golden", "torn"])
def test_without_the_catalog_the_same_messages_are_there(name: str, tmp_path: Path) -> None:
    directory = copied(name, tmp_path)
    shutil.rmtree(os.path.join(directory, "catalog"))
    with StoreImage.open(directory) as image:
        found = {
            queue.id: {entry.message_id for entry in queue.entries()} for queue in image.queues
        }
    content = json.loads((FIXTURES / name / "expected.json").read_text())["queues"]
    for queue in content.values():
        if queue["messages"]:
            assert found[queue["id"]] >= {message["id"] for message in queue["messages"]}


def test_a_row_that_is_no_row_of_ours_is_named(busy: str) -> None:
    import lmdb

    path = os.path.join(busy, "catalog")
    with lmdb.open(path, max_dbs=50) as environment:
        table = environment.open_db(b"index")
        with environment.begin(table, write=True) as transaction:
            key = next(iter(transaction.cursor()))[0]
            transaction.put(bytes(key), b"\xc1")
    with StoreImage.open(busy) as image:
        assert image.is_rebuilt
        assert image.catalog_reason is not None
        assert "table index" in image.catalog_reason
        # What the catalog says besides is still there.
        assert [queue.name for queue in image.queues] == ["a", "o"]


def test_the_catalog_of_another_store_is_none(busy: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    open_store(other).close()
    shutil.copy(os.path.join(other, "catalog", "data.mdb"), os.path.join(busy, "catalog"))
    with StoreImage.open(busy) as image:
        assert image.catalog_reason is not None
        assert "another store" in image.catalog_reason
        assert [queue.name for queue in image.queues] == [None, None]


@pytest.mark.parametrize("marker", [None, b"amqpstore\nformat-"])
def test_a_marker_that_is_lost_or_cut(busy: str, marker: bytes | None) -> None:
    found = messages_of(busy)
    path = os.path.join(busy, "STORE")
    os.remove(path)
    if marker is not None:
        Path(path).write_bytes(marker)
    with StoreImage.open(busy) as image:
        assert image.marker_reason
        assert image.store_id is not None
    assert messages_of(busy) == found
    shutil.rmtree(os.path.join(busy, "catalog"))
    with StoreImage.open(busy) as image:
        assert image.store_id is not None, "segments say of which store they are"
        assert image.queues


def test_a_newer_version_is_refused(busy: str) -> None:
    path = Path(busy) / "STORE"
    path.write_text(path.read_text().replace("format-version: 1", "format-version: 2"))
    with pytest.raises(FormatVersionError, match="version 2"):
        StoreImage.open(busy)


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file", tmp_path / "nowhere"):
        with pytest.raises(NotAStoreError):
            StoreImage.open(str(path))


def test_an_index_file_that_is_lost_is_named(busy: str) -> None:
    with StoreImage.open(busy) as image:
        [path] = [file.path for file in image.index_files if file.queue_id == 1]
    os.remove(path)
    with StoreImage.open(busy) as image:
        [orders] = [queue for queue in image.queues if queue.name == "o"]
        assert orders.totals() == (0, 0, 0, 43)
        assert [(one.path, one.live) for one in orders.unreadable] == [(path, 43)]


def test_a_segment_that_is_lost_is_missing(busy: str) -> None:
    with StoreImage.open(busy) as image:
        [compacted] = [one for one in image.segments if one.is_compacted]
    os.remove(compacted.path)
    with StoreImage.open(busy) as image:
        [missing] = [one for one in image.segments if one.state is SegmentState.MISSING]
        assert missing.number == compacted.number
        assert image.message(compacted.first_id) is None
