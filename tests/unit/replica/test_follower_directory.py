"""A follower on real files: the offline tools read it, and find nothing wrong."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from amqpstore import Message, Store
from amqpstore.catalog.catalog import LmdbCatalog
from amqpstore.catalog.tables import SEGMENTS, StoreRows
from amqpstore.replica import (
    FollowerStore,
    Membership,
    SealedBatch,
    create_follower,
    write_membership,
)
from amqpstore.replica.follower_store import SHIPPED
from amqpstore.system.files import OsFiles
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.__main__ import main
from tests.replicas import OPTIONS, content_of
from tests.unit.engine.stores import ENVELOPE


@pytest.fixture
def members(tmp_path: Path) -> tuple[str, str]:
    """The directories of a leader and of its follower, which are closed."""
    leader, follower = str(tmp_path / "leader"), str(tmp_path / "follower")
    Store.open(leader, options=OPTIONS).close()
    write_membership(OsFiles(), leader, Membership("1" * 16))
    put_term(leader, 1)
    with Store.open(leader, options=OPTIONS, worker=InlineWorker(), term=1) as store:
        create_follower(follower, uuid.UUID(bytes=store.store_id), Membership("2" * 16))
        with FollowerStore.open(follower, options=OPTIONS, worker=InlineWorker()) as second:
            second.adopt_term(1)
            replicate(store, second)
    return leader, follower


def put_term(directory: str, term: int) -> None:
    catalog = LmdbCatalog(os.path.join(directory, "catalog"), False)
    catalog.commit(StoreRows(term=term).changes())
    catalog.close()


def replicate(store: Store, follower: FollowerStore) -> None:
    """Publish and ack over some segments, on both."""
    queues = [store.create_queue({"name": name}) for name in ("orders", "slow")]
    shipped = {table: store.definitions.rows(table) for table in SHIPPED}
    follower.replace_definitions(1, store.next_queue_id, shipped)
    for number in range(40):
        store.publish(queues[: 1 + number % 2], [Message(ENVELOPE, bytes([number]) * 200)])
        if number % 3 == 2:
            store.take(queues[0], limit=3, acked=True)
        batch = store.log.seal(0)
        assert batch is not None
        store.log.write(batch)
        sealed = SealedBatch.of(batch)
        follower.append(SealedBatch.of_layout(sealed.layout(), sealed.content))
        store.log.complete(batch)
        follower.commit(sealed.lsn, 1)
        follower.housekeep()


def test_check_finds_nothing_wrong(
    members: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for directory in members:
        assert main(["check", directory]) == 0, capsys.readouterr().out


def test_inspect_shows_what_the_leader_has(
    members: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", members[1], "--json"]) == 0
    assert '"orders"' in capsys.readouterr().out


def test_it_can_lead(members: tuple[str, str]) -> None:
    contents = []
    for directory in members:
        put_term(directory, 2)
        with Store.open(directory, options=OPTIONS, worker=InlineWorker(), term=2) as store:
            contents.append(content_of(store))
    assert contents[0] == contents[1]
    assert any(contents[0].values())


def test_check_finds_nothing_wrong_with_messages_of_several_terms_in_a_segment(
    members: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Compaction puts them together, and their ids are far apart."""
    leader = members[0]
    for term in (2, 3):
        put_term(leader, term)
        with Store.open(leader, options=OPTIONS, worker=InlineWorker(), term=term) as store:
            orders, slow = store.queues.values()
            for number in range(40):
                queue = orders if number % 20 else slow
                store.publish([queue], [Message(ENVELOPE, bytes([number]) * 200)])
                store.sync()
            while orders.ready_count:
                store.take(orders, limit=1000, acked=True)
            store.sync()
            list(store.upkeep.compact())
    segment_rows = SEGMENTS.read(LmdbCatalog(os.path.join(leader, "catalog"), False).rows)
    spans = [row.end_id - row.first_id for row in segment_rows.values()]
    assert max(spans) > 1 << 32, spans
    assert main(["check", leader]) == 0, capsys.readouterr().out
