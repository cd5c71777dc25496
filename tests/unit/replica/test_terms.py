"""Terms in LSNs, and what a member of a group may be opened as."""

import os
from pathlib import Path

import pytest

from amqpstore import DamageError, MembershipError, Store
from amqpstore.catalog.catalog import LmdbCatalog
from amqpstore.catalog.tables import Position, StoreRows
from amqpstore.errors import RefusedBatchError
from amqpstore.recovery.next_term import begin_term
from amqpstore.replica.membership import Membership, read_membership, write_membership
from amqpstore.system.files import OsFiles
from amqpstore.terms import MAX_TERM, lsn_of, number_of, term_of
from tests.unit.engine.stores import publish_batches, queue_named

MEMBER = Membership("0123456789abcdef", 2**64 - 1)


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """A store with three batches and two queues, closed, that became a member's."""
    directory = str(tmp_path / "store")
    with Store.open(directory) as store:
        publish_batches(store, store.create_queue("q"), [[b"one"], [b"two"], [b"three"]])
        store.create_queue("other")
    write_membership(OsFiles(), directory, MEMBER)
    return directory


def make_durable(directory: str, term: int) -> None:
    catalog = LmdbCatalog(os.path.join(directory, "catalog"), False)
    catalog.commit(StoreRows(term=term).changes())
    catalog.close()


def test_an_lsn_is_a_term_and_a_number() -> None:
    assert lsn_of(0, 7) == 7
    assert (term_of(lsn_of(3, 7)), number_of(lsn_of(3, 7))) == (3, 7)
    assert lsn_of(3, 7) < lsn_of(3, 8) < lsn_of(4, 1)
    assert lsn_of(MAX_TERM, (1 << 44) - 1) < 1 << 62
    assert str(RefusedBatchError(lsn_of(3, 7), "...")).startswith("batch 7 of term 3 was refused")


def test_numbers_of_a_term_skip_all_that_a_discarded_batch_can_have() -> None:
    end = Position(4, 500, lsn_of(2, 11), 1000)
    position, next_queue_id = begin_term(end, 70, 5)
    assert position == Position(4, 500, lsn_of(5, 11), 1000 + 3 * 2**32)
    assert next_queue_id == 70 + 3 * 2**16


@pytest.mark.parametrize("term", [1, 2, MAX_TERM + 1])
def test_a_term_begins_once(term: int) -> None:
    with pytest.raises(ValueError, match="the log is in term 2 already"):
        begin_term(Position(4, 500, lsn_of(2, 11), 1000), 70, term)


def test_the_store_of_a_member_is_not_opened_as_a_single_node(directory: str) -> None:
    with pytest.raises(MembershipError, match="belongs to a member of a group"):
        Store.open(directory)
    assert read_membership(OsFiles(), directory) == MEMBER


def test_a_single_node_leads_no_term(tmp_path: Path) -> None:
    Store.open(str(tmp_path)).close()
    with pytest.raises(MembershipError, match="has no file MEMBER"):
        Store.open(str(tmp_path), term=1)


def test_a_term_that_is_not_durable_is_not_led(directory: str) -> None:
    with pytest.raises(MembershipError, match="cannot lead term 1: its highest term is 0"):
        Store.open(directory, term=1)


def test_a_leader_writes_in_its_term(directory: str) -> None:
    for term, queue_id in ((1, 2**16 + 3), (4, 4 * 2**16 + 4)):
        make_durable(directory, term)
        with Store.open(directory, term=term) as store:
            queue = queue_named(store, "q")
            assert store.create_queue(f"of term {term}").id == queue_id
            publish_batches(store, queue, [[b"of this term"]])
            assert term_of(store.statistics.figures().log.sequence - 1) == term
    assert number_of(store.statistics.figures().log.sequence - 1) == 5
    assert queue.ready_count == 5


def test_a_term_is_not_led_twice(directory: str) -> None:
    make_durable(directory, 1)
    with Store.open(directory, term=1) as store:
        publish_batches(store, queue_named(store, "q"), [[b"of this term"]])
    with pytest.raises(MembershipError, match="the log is in term 1 already"):
        Store.open(directory, term=1)


def test_a_damaged_member_file_names_nobody(directory: str) -> None:
    Path(directory, "MEMBER").write_text("amqpstore member\nmember: 0123\netcd-cluster: 0\n")
    with pytest.raises(DamageError, match="MEMBER is damaged at offset 0"):
        read_membership(OsFiles(), directory)


@pytest.mark.parametrize("wrong", [Membership("0123"), Membership("g" * 16), Membership("0" * 17)])
def test_only_a_member_id_is_written(tmp_path: Path, wrong: Membership) -> None:
    with pytest.raises(ValueError, match="is not a member of a group"):
        write_membership(OsFiles(), str(tmp_path), wrong)
    assert os.listdir(tmp_path) == []
