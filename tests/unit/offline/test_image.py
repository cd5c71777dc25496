"""A store read without being opened: what it says is what opening finds, and nothing changes."""

import contextlib
import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any, NoReturn

import lmdb
import pytest

from amqpstore import Envelope, FormatVersionError, Message, NotAStoreError, StoreLockedError
from amqpstore.catalog.backing import Backing
from amqpstore_tools.offline import image
from amqpstore_tools.offline.catalog import CatalogImage
from amqpstore_tools.offline.queues import QueueTotals
from amqpstore_tools.offline.recovering import recover_image
from amqpstore_tools.offline.segments import SegmentState
from amqpstore_tools.repair.imaging import RemainingImage
from amqpstore_tools.transfer.exporting import queues_of
from tests.unit.offline.stores import FIXTURES, copied, create, files_of, open_store, publish, take

STORES = ("golden", "torn", "damaged")


def expected(name: str) -> dict[str, list[dict[str, Any]]]:
    """Messages by queue, but those that opening cannot read."""
    content = json.loads((FIXTURES / name / "expected.json").read_text())
    return {
        queue: [one for one in found["messages"] if "error" not in one]
        for queue, found in content["queues"].items()
    }


def messages_of(directory: str, *, live: bool = False) -> dict[str, list[dict[str, Any]]]:
    """Return messages by queue, as an image has them."""
    queues: dict[str, list[dict[str, Any]]] = {}
    with RemainingImage.open(directory, live=live) as image:
        for queue in image.queues:
            messages = queues[queue.label] = []
            entries = [one for one in queue.entries() if one.sequence not in queue.lost]
            stored = dict(image.messages(entry.message_id for entry in entries))
            for entry in entries:
                stored_message = stored[entry.message_id]
                assert stored_message is not None
                message = stored_message.message(image.decoder)
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


@pytest.mark.parametrize("name", STORES)
def test_it_says_what_opening_finds(name: str, tmp_path: Path) -> None:
    assert messages_of(copied(name, tmp_path)) == expected(name)


@pytest.mark.parametrize("name", STORES)
def test_nothing_changes(name: str, tmp_path: Path) -> None:
    directory = copied(name, tmp_path)
    before = files_of(directory)
    messages_of(directory)
    with RemainingImage.open(directory) as image:
        assert image.catalog_reason is None
        for segment in image.segments:
            list(segment.scan())
        for file in image.index_files:
            list(file.blocks())
    assert files_of(directory) == before


def test_a_crashed_store_of_many_segments(busy: str) -> None:
    before = files_of(busy)
    found = messages_of(busy)
    with RemainingImage.open(busy) as image:
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
    with RemainingImage.open(busy) as image:
        live = {one.number: one.live_bytes for one in image.segments}
        assert all(0 <= one.live_bytes <= one.size for one in image.segments)
    with open_store(busy) as store:
        store.upkeep.checkpoint()
        rows = {account.number: account for account in store._maintenance._state.accounts}
    for number, account in rows.items():
        assert abs(live[number] - (account.end_bytes - account.garbage_bytes)) <= 1


def test_what_a_deleted_queue_had_is_garbage(data_directory: str) -> None:
    """The queue was deleted after the last checkpoint, and nothing came after that."""
    store = open_store(data_directory)
    deleted, kept = (create(store, name) for name in ("deleted", "kept"))
    for queue in (deleted, kept):
        publish(store, queue, 10)
    store.upkeep.checkpoint()
    store.delete_queue(deleted)
    store.abandon()
    test_live_and_garbage_are_the_accounts_of_recovery(data_directory)
    with RemainingImage.open(data_directory) as image:
        live_bytes = sum(one.live_bytes for one in image.segments)
        assert 0 < live_bytes < sum(one.size for one in image.segments) * 0.7


def test_who_holds_a_message(busy: str) -> None:
    with RemainingImage.open(busy) as image:
        names = {holder.queue.name: holder.entry.sequence for holder in image.holders(102)}
        assert names == {"o": 102, "a": 2}
        assert image.holders(2) == []
        assert image.message(10_000) is None


def test_a_transaction_by_its_lsn(busy: str) -> None:
    with RemainingImage.open(busy) as image:
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
        orders = create(store, "orders")
        publish(store, orders, 20)
        store.upkeep.checkpoint()
        publish(store, orders, 5)
        with pytest.raises(StoreLockedError, match=f"process {os.getpid()}"):
            RemainingImage.open(data_directory)
        before = files_of(data_directory)
        with RemainingImage.open(data_directory, live=True) as image:
            assert image.is_live
            # What happens meanwhile is not in it, even where its files go.
            later = create(store, "later")
            publish(store, later, 50)
            store.purge(orders)
            store.sync()
            store.upkeep.checkpoint()
            assert not os.path.exists(image.segments[0].path)
            [queue] = image.queues
            assert [entry.sequence for entry in queue.entries()] == list(range(1, 26))
            stored_messages = [stored for _, stored in image.messages(range(1, 26))]
            assert all(stored_messages)
        # Only what the store did changed: a snapshot leaves nothing.
        assert set(files_of(data_directory)) - set(before) <= {
            os.path.relpath(segment.path, data_directory) for segment in store.log.segments
        } | {name for name in files_of(data_directory) if name.startswith("index/")}


def test_while_it_is_read_no_broker_gets_in_and_other_readers_do(busy: str) -> None:
    with RemainingImage.open(busy), RemainingImage.open(busy), pytest.raises(StoreLockedError):
        open_store(busy)
    open_store(busy).abandon()


def test_a_catalog_that_is_lost_leaves_segments_and_index_files(busy: str) -> None:
    found = messages_of(busy)
    shutil.rmtree(os.path.join(busy, "catalog"))
    with RemainingImage.open(busy) as image:
        assert image.catalog_reason == "the file is missing"
        assert [queue.name for queue in image.queues] == ["amq.recovered.1", "amq.recovered.2"]
        ids = {queue.id: {entry.message_id for entry in queue.entries()} for queue in image.queues}
        # All that is live, by the ids of the queues, and perhaps what was acked long ago.
        for queue_id, name in ((1, "o"), (2, "a")):
            assert ids[queue_id] >= {message["id"] for message in found[name]}
        assert image.message(min(ids[1])) is not None


@pytest.mark.parametrize("name", ["golden", "torn"])
def test_without_the_catalog_the_same_messages_are_there(name: str, tmp_path: Path) -> None:
    directory = copied(name, tmp_path)
    shutil.rmtree(os.path.join(directory, "catalog"))
    with RemainingImage.open(directory) as image:
        found = {
            queue.id: {entry.message_id for entry in queue.entries()} for queue in image.queues
        }
        missing = {queue.id: sum(one.live for one in queue.missing) for queue in image.queues}
    content = json.loads((FIXTURES / name / "expected.json").read_text())["queues"]
    for queue in content.values():
        if queue["messages"]:
            # What was compressed with a dictionary cannot be read without the catalog.
            ids = {message["id"] for message in queue["messages"]}
            assert len(ids - found[queue["id"]]) <= missing[queue["id"]]


def test_a_row_that_is_no_row_of_ours_is_named(busy: str) -> None:
    path = os.path.join(busy, "catalog")
    with lmdb.open(path, max_dbs=50) as environment:
        table = environment.open_db(b"index")
        with environment.begin(table, write=True) as transaction:
            key = next(iter(transaction.cursor()))[0]
            transaction.put(bytes(key), b"\xc1")
    with RemainingImage.open(busy) as image:
        assert image.catalog_reason is not None
        assert "table index" in image.catalog_reason
        # What the catalog says besides is still there.
        assert [queue.name for queue in image.queues] == ["a", "o"]


def test_the_catalog_of_another_store_is_none(busy: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    open_store(other).close()
    shutil.copy(os.path.join(other, "catalog", "data.mdb"), os.path.join(busy, "catalog"))
    with RemainingImage.open(busy) as image:
        assert image.catalog_reason is not None
        assert "another store" in image.catalog_reason
        # The copy of the definitions beside it is this store's.
        assert [queue.name for queue in image.queues] == ["a", "o"]


@pytest.mark.parametrize("marker", [None, b"amqpstore\nformat-"])
def test_a_marker_that_is_lost_or_cut(busy: str, marker: bytes | None) -> None:
    found = messages_of(busy)
    path = os.path.join(busy, "STORE")
    os.remove(path)
    if marker is not None:
        Path(path).write_bytes(marker)
    with RemainingImage.open(busy) as image:
        assert image.marker_reason
        assert image.store_id is not None
    assert messages_of(busy) == found
    shutil.rmtree(os.path.join(busy, "catalog"))
    with RemainingImage.open(busy) as image:
        assert image.store_id is not None, "segments say of which store they are"
        assert image.queues


def test_a_newer_version_is_refused(busy: str) -> None:
    path = Path(busy) / "STORE"
    path.write_text(path.read_text().replace("format-version: 2", "format-version: 3"))
    with pytest.raises(FormatVersionError, match="version 3"):
        RemainingImage.open(busy)


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file", tmp_path / "nowhere"):
        with pytest.raises(NotAStoreError):
            RemainingImage.open(str(path))


def test_an_index_file_that_is_lost_is_named(busy: str) -> None:
    with RemainingImage.open(busy) as image:
        [path] = [file.path for file in image.index_files if file.queue_id == 1]
    os.remove(path)
    with RemainingImage.open(busy) as image:
        [orders] = [queue for queue in image.queues if queue.name == "o"]
        assert orders.totals() == QueueTotals(0, 0, 0, 0, 43, None)
        assert [(one.path, one.live) for one in orders.unreadable] == [(path, 43)]


def test_a_segment_that_is_lost_is_missing(busy: str) -> None:
    with RemainingImage.open(busy) as image:
        [compacted] = [one for one in image.segments if one.is_compacted]
    os.remove(compacted.path)
    with RemainingImage.open(busy) as image:
        [missing] = [one for one in image.segments if one.state is SegmentState.MISSING]
        assert missing.number == compacted.number
        assert image.message(compacted.first_id) is None


def test_a_prepared_transaction_locks_what_it_is_to_ack(data_directory: str) -> None:
    store = open_store(data_directory)
    orders, audit = create(store, "orders"), create(store, "audit")
    publish(store, orders, 5)
    transaction = store.transaction()
    for run in take(store, orders, 2):
        transaction.ack(orders, run)
    transaction.publish([audit], [Message(Envelope("", "audit"), b"later")] * 3)
    transaction.prepare({"xid": [1, b"\xff", b"b"]})
    store.sync()
    store.abandon()
    with RemainingImage.open(data_directory) as image:
        [prepared] = image.prepared
        assert prepared.label == {"xid": [1, b"\xff", b"b"]}
        assert prepared.is_undecided
        assert sum(one.message_count for one in prepared.locked) == 2
        assert [(one.message_count, one.queue_ids) for one in prepared.publishes] == [
            (3, (audit.id,))
        ]
        totals = {queue.name: queue.totals() for queue in image.queues if not queue.is_hidden}
        assert totals["orders"][:2] == (3, 2)
        assert totals["audit"][:2] == (0, 0)
        [hidden] = [queue for queue in image.queues if queue.is_hidden]
        assert hidden.id == prepared.queue_id
    with open_store(data_directory) as store:
        kept = {queue.id: queue.ready_count for queue in store.queues.values()}
        assert kept[orders.id] == 3


def test_what_the_log_and_an_index_file_have_counts_once(data_directory: str) -> None:
    store = open_store(data_directory)
    orders = create(store, "orders")
    for _ in range(3):
        # Each checkpoint puts into an index file what the log still has too.
        publish(store, orders, 10)
        store.upkeep.checkpoint()
    for run in take(store, orders, 4):
        store.ack(orders, run)
    store.sync()
    store.abandon()
    shutil.rmtree(os.path.join(data_directory, "catalog"))
    with RemainingImage.open(data_directory) as image:
        [queue] = image.queues
        assert [entry.sequence for entry in queue.entries()] == list(range(5, 31))
        assert image.catalog_reason == "the file is missing"


@pytest.mark.parametrize("name", STORES)
def test_no_file_is_open_once_it_is_closed(name: str, tmp_path: Path) -> None:
    """A process that reads one store after the other does not have more files open for each."""
    directory = copied(name, tmp_path)
    with RemainingImage.open(directory) as found:
        assert sum(len(list(queue.columns())) for queue in queues_of(found))
        assert any(path.endswith(".segment") for path in open_files(directory))
    assert not open_files(directory)


def test_no_file_is_open_if_it_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = copied("golden", tmp_path)

    def recover_and_fail(backing: Backing, catalog: CatalogImage) -> NoReturn:
        for segment in recover_image(backing, catalog).segments:
            segment.file()
        assert open_files(directory)
        raise OSError(errno.EIO, "it cannot be read any more")

    monkeypatch.setattr(image, "recover_image", recover_and_fail)
    with pytest.raises(OSError, match="any more"):
        RemainingImage.open(directory)
    assert not open_files(directory)


def open_files(directory: str) -> list[str]:
    """Return the files below a directory that this process has open."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [path for path in found if path.startswith(directory)]
