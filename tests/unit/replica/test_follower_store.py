"""The store of a follower: what it takes, what it refuses, and what it can lead with."""

from __future__ import annotations

import uuid

import pytest

from amqpstore import (
    DamageError,
    DiskFullError,
    DivergedError,
    MembershipError,
    RefusedBatchError,
    StoreLockedError,
)
from amqpstore.catalog import tables
from amqpstore.catalog.catalog import Change
from amqpstore.catalog.tables import StoreRows
from amqpstore.format.records import encode_segment_header
from amqpstore.replica import FollowerStore, Membership, SealedBatch, read_membership
from amqpstore.replica.follower_store import SHIPPED
from amqpstore.system.filenames import segment_number
from amqpstore_tools.simulation import stores
from amqpstore_tools.simulation.memory_catalog import MemoryCatalog
from tests.replicas import DIRECTORY, OPTIONS, Group, busy, content_of, create, log_files, promoted


def joined(rounds: int = 0) -> Group:
    """A group whose follower is up to date."""
    group = Group.new()
    group.join()
    busy(group, rounds)
    return group


def content_on_leader(group: Group) -> object:
    fork = group.leader_disk.fork()
    with promoted(fork, group.term + 1) as store:
        return content_of(store)


def content_on_follower(group: Group) -> object:
    fork = group.follower_disk.fork()
    with promoted(fork, group.term + 1) as store:
        return content_of(store)


def assert_same_log(group: Group) -> None:
    """Each segment of the log that both have is the same, as far as it is written."""
    leader, follower = log_files(group.leader_disk), log_files(group.follower_disk)
    both = leader.keys() & follower.keys()
    assert max(leader) == max(follower)
    assert both
    for number in both:
        assert leader[number].rstrip(b"\0") == follower[number].rstrip(b"\0")


def test_who_catches_up_over_segments_finds_the_messages_of_each() -> None:
    """The first checkpoint of the follower writes the offset tables of all of them."""
    group = Group.new()
    for number in range(8):
        group.publish(["orders"], b"%d" % number, bytes(900))
        group.sync()
    group.join()
    assert group.follower is not None
    group.follower.close()
    catalog = MemoryCatalog(group.follower_disk, f"{DIRECTORY}/catalog", False)
    accounts = tables.SEGMENTS.read(catalog.rows)
    assert len(accounts) > 3
    found = tables.OFFSET_TABLES.read(catalog.rows)
    for number, account in accounts.items():
        assert found[number].first_id <= account.first_id < found[number].end_id == account.end_id
    assert content_on_follower(group) == content_on_leader(group)


def test_batches_are_the_leaders_byte_for_byte() -> None:
    group = joined(6)
    assert_same_log(group)
    assert content_on_follower(group) == content_on_leader(group)


def test_a_follower_has_checkpoints_and_a_compaction_of_its_own() -> None:
    group = joined(30)
    assert group.follower is not None
    for _ in range(40):
        group.follower.housekeep()
    assert 1 not in log_files(group.follower_disk)
    assert len(log_files(group.follower_disk)) < 6
    assert group.follower_disk.list_directory(f"{DIRECTORY}/index")
    assert content_on_follower(group) == content_on_leader(group)


def test_a_promotion_reads_only_what_no_checkpoint_covers() -> None:
    group = joined(30)
    fork = group.follower_disk.fork()
    with promoted(fork, 2) as store:
        assert store.recovery_report.is_clean
        assert store.recovery_report.scanned_bytes < 3 * OPTIONS.checkpoint_bytes


def test_a_follower_that_was_away_catches_up() -> None:
    group = joined(3)
    group.kill_follower()
    busy(group)
    group.join()
    busy(group)
    assert_same_log(group)
    assert content_on_follower(group) == content_on_leader(group)


def test_a_lost_connection_costs_what_was_missed() -> None:
    group = joined(3)
    follower, group.follower = group.follower, None
    busy(group, 2)
    group.follower = follower
    group.join()
    busy(group)
    assert_same_log(group)
    assert content_on_follower(group) == content_on_leader(group)


def test_queues_come_and_go() -> None:
    group = joined(2)
    group.publish(["short-lived", "orders"], b"in two queues")
    group.sync()
    group.store.delete_queue(group.queue("short-lived"))
    group.sync()
    busy(group)
    group.kill_follower()
    group.store.delete_queue(group.queue("slow"))
    group.join()
    busy(group, 2)
    assert content_on_follower(group) == content_on_leader(group)


def test_another_process_is_refused() -> None:
    group = joined()
    with pytest.raises(StoreLockedError):
        stores.open_follower(DIRECTORY, group.follower_disk, OPTIONS)
    with pytest.raises(StoreLockedError):
        promoted(group.follower_disk, 2)


def test_a_common_batch_is_agreed_on_after_the_definitions() -> None:
    """The log must not name a queue that the catalog does not have."""
    group = joined(2)
    follower = restarted(group)
    with pytest.raises(RefusedBatchError, match="definitions come first"):
        follower.resume(follower.last.lsn)


def test_an_earlier_term_is_refused() -> None:
    group = joined(1)
    follower = restarted(group)
    follower.adopt_term(3)
    with pytest.raises(RefusedBatchError, match="term 1 ended when term 3 began"):
        follower.adopt_term(1)
    follower = restarted(group)
    assert follower.term == 3
    with pytest.raises(RefusedBatchError, match="term 2 ended"):
        follower.adopt_term(2)


def restarted(group: Group) -> FollowerStore:
    group.kill_follower()
    return group.start_follower()


def test_only_the_next_batch_of_the_term_is_taken() -> None:
    group = joined(2)
    follower = group.follower
    assert follower is not None
    group.publish(["orders"], b"next")
    sealed = group.seal()
    assert sealed is not None
    wrong = {
        "is of term 0": sealed._replace(lsn=sealed.lsn & 0xFFFF),
        "already": sealed._replace(lsn=follower.last.lsn),
        "the log ends at": sealed._replace(offset=sealed.offset + 1),
        r"it is for \(999": sealed._replace(segment=999, offset=0),
        "its first id": sealed._replace(first_id=1),
        "is not its TRANSACTION": sealed._replace(lsn=sealed.lsn + 1),
        "no TRANSACTION": sealed._replace(content=sealed.content[:-1] + b"x"),
        "the record at 60 is": sealed._replace(lengths=sealed.lengths[:0]),
    }
    before = log_files(group.follower_disk)
    for reason, batch in wrong.items():
        with pytest.raises(RefusedBatchError, match=reason):
            follower.append(batch)
    assert log_files(group.follower_disk) == before
    follower.append(sealed)
    assert follower.last.lsn == sealed.lsn


def test_nothing_is_taken_before_a_common_batch_is_agreed_on() -> None:
    group = joined(2)
    follower = restarted(group)
    group.follower = None
    follower.adopt_term(1)
    group.publish(["orders"], b"next")
    sealed = group.seal()
    assert sealed is not None
    with pytest.raises(RefusedBatchError, match="not agreed on"):
        follower.append(sealed)


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("size", [10, 3000])
def test_what_nobody_committed_is_discarded(size: int, is_killed: bool) -> None:
    """The batch is in the segment of the common one, or after a large one begins the next."""
    group = joined(2)
    if size > 10:
        group.publish(["orders"], bytes(1600))
        group.sync()
    group.lose_leader(b"discarded", bytes(size))
    if is_killed:
        group.kill_follower()
    busy_alone(group)
    old = log_files(group.follower_disk)
    group.join()
    busy(group, 3)
    assert group.follower is not None
    (discarded,) = group.follower.discarded
    assert [lsn >> 44 for lsn in discarded.lsns] == [1]
    (name,) = group.follower_disk.list_directory(discarded.path)
    number = segment_number(name)
    assert number is not None
    kept = group.follower_disk.content(f"{discarded.path}/{name}")
    assert kept.rstrip(b"\0") == old[number].rstrip(b"\0")
    assert b"discarded" in kept
    assert_same_log(group)
    assert content_on_follower(group) == content_on_leader(group)
    group.kill_follower()
    group.join()
    assert group.follower.discarded == []


def busy_alone(group: Group) -> None:
    """Have a leader write while its follower is not connected."""
    follower, group.follower = group.follower, None
    busy(group, 1)
    group.follower = follower


def test_a_batch_of_the_same_place_and_size_is_discarded_as_well() -> None:
    group = joined(2)
    group.lose_leader(b"of term 1")
    group.publish(["orders", "slow"], b"of term 2")
    follower, group.follower = group.follower, None
    group.sync()
    group.follower = follower
    group.join()
    assert_same_log(group)
    assert content_on_follower(group) == content_on_leader(group)


def test_what_is_committed_is_not_discarded() -> None:
    group = joined(3)
    follower = group.follower
    assert follower is not None
    committed = follower.last.lsn
    assert committed == group.committed
    before = log_files(group.follower_disk)
    with pytest.raises(DivergedError, match="is committed"):
        follower.resume(follower.lsns()[1])
    with pytest.raises(DivergedError, match="it has no batch 17"):
        follower.resume(17)
    assert log_files(group.follower_disk) == before


def test_what_a_checkpoint_covers_is_not_discarded_after_a_restart() -> None:
    group = joined(3)
    assert group.follower is not None
    group.follower.checkpoint()
    follower = restarted(group)
    group.replace_definitions()
    with pytest.raises(DivergedError, match="is committed"):
        follower.resume(follower.lsns()[1])


def test_no_checkpoint_forgets_a_queue_that_was_defined_while_the_follower_was_away() -> None:
    """The queue's messages are committed at once; its definition is known to be only later."""
    group = Group.new()
    group.join()
    busy(group, 2)
    follower, group.follower = group.follower, None
    assert follower is not None
    group.publish(["late"], b"confirmed", bytes(900))
    group.sync()
    late = group.queue("late").id
    group.follower = follower
    group.join(is_defined=False)
    follower.checkpoint()
    with promoted(group.follower_disk.fork(), group.term + 1) as store:
        assert [body for _, body, _ in content_of(store)[late]] == [b"confirmed", bytes(900)]
    busy(group, 1)
    follower.checkpoint()
    assert follower.committed_lsn == follower.last.lsn
    group.kill_follower()
    with promoted(group.follower_disk, group.term + 1) as store:
        assert [body for _, body, _ in content_of(store)[late]] == [b"confirmed", bytes(900)]


def test_a_deletion_that_nobody_committed_is_taken_back() -> None:
    group = joined(3)
    follower = group.follower
    assert follower is not None
    follower.checkpoint()
    slow = tables.QUEUES.remove(group.queue("slow").id)
    follower.define(group.definitions + 1, [slow])
    for _ in range(3):
        follower.commit(group.committed, group.definitions)
        follower.checkpoint()
    group.definitions += 1
    group.join()
    follower.commit(group.committed, group.definitions)
    follower.checkpoint()
    assert content_on_follower(group) == content_on_leader(group)


def test_a_checkpoint_covers_what_is_committed_and_no_more() -> None:
    group = joined(3)
    follower = group.follower
    assert follower is not None
    for _ in range(3):
        group.publish(["orders"], bytes(900))
        sealed = group.seal()
        assert sealed is not None
        follower.append(sealed)
    follower.housekeep()
    follower.checkpoint()
    assert checkpointed(group) == group.committed + 1
    last = follower.last.lsn
    follower.commit(last - 1, group.definitions)
    follower.checkpoint()
    assert checkpointed(group) == last


def checkpointed(group: Group) -> int:
    """The LSN of the follower's last checkpoint."""
    catalog = MemoryCatalog(group.follower_disk, f"{DIRECTORY}/catalog", False)
    position = StoreRows.read(catalog.rows).position
    assert position is not None
    return position.lsn


def test_only_a_leaders_tables_are_defined() -> None:
    group = joined(1)
    follower = group.follower
    assert follower is not None
    for change in (Change("heads", "1", {}), StoreRows(term=9).changes()[0]):
        with pytest.raises(RefusedBatchError, match="is a member's own"):
            follower.define(group.definitions + 1, [change])
    with pytest.raises(RefusedBatchError, match="do not continue"):
        follower.define(group.definitions, [])
    with pytest.raises(RefusedBatchError, match="definitions without policies"):
        follower.replace_definitions(9, 1, {table: {} for table in SHIPPED[:-1]})


def test_a_damaged_range_is_refused_and_changes_nothing() -> None:
    group = joined(1)
    follower, group.follower = group.follower, None
    assert follower is not None
    busy(group, 1)
    before = log_files(group.follower_disk)
    reader = group.reader()
    common = follower.last
    content = bytearray(reader.read(common.segment, common.offset, 1 << 20))
    content[50] ^= 1
    rewrite = follower.resume(common.lsn)
    rewrite.append(bytes(content))
    with pytest.raises(DamageError, match="a batch from another member"):
        follower.adopt(rewrite)
    assert log_files(group.follower_disk) == before
    group.follower = follower
    group.join()
    assert_same_log(group)


def test_a_batch_of_another_store_or_format_is_refused() -> None:
    group, other = joined(), Group.new()
    other.publish(["orders"], b"of another store")
    foreign = other.seal()
    assert foreign is not None
    assert group.follower is not None
    with pytest.raises(RefusedBatchError, match="it is of another store"):
        group.follower.append(foreign)
    group.publish(["orders"], b"ours")
    sealed = group.seal()
    assert sealed is not None
    rest = sealed.content[60:]
    newer = encode_segment_header(1, 99, group.follower.store_id, 0)
    with pytest.raises(RefusedBatchError, match="its format version is 99"):
        group.follower.append(sealed._replace(content=newer + rest))
    group.follower.append(sealed)


def test_a_batch_is_as_it_was_sent_or_refused() -> None:
    group = joined()
    group.publish(["orders", "audit"], b"one", b"two")
    sealed = group.seal()
    assert sealed is not None
    layout, content = sealed.layout(), sealed.content
    assert SealedBatch.of_layout(layout, content) == sealed
    both = layout + content
    for place in range(len(both)):
        flipped = bytearray(both)
        flipped[place] ^= 0x40
        with pytest.raises(RefusedBatchError):
            SealedBatch.of_layout(bytes(flipped[: len(layout)]), bytes(flipped[len(layout) :]))
        with pytest.raises(RefusedBatchError):
            SealedBatch.of_layout(both[:place][: len(layout)], both[len(layout) : place])


def test_a_directory_becomes_a_members_once() -> None:
    disk = stores.new_disk(DIRECTORY)
    store_id = uuid.uuid4()
    create(disk, store_id)
    assert read_membership(disk, DIRECTORY) == Membership("2" * 16)
    with pytest.raises(MembershipError, match="is a member's already"):
        create(disk, store_id)
    single = stores.new_disk(DIRECTORY)
    stores.open_store(DIRECTORY, single, OPTIONS).close()
    with pytest.raises(MembershipError, match="is a store already"):
        create(single, store_id)


def test_a_full_disk_costs_no_batch() -> None:
    group = joined(2)
    disk = group.follower_disk
    assert group.follower is not None
    group.publish(["orders"], bytes(400))
    sealed = group.seal()
    assert sealed is not None
    disk.capacity_bytes = sum(map(len, disk.contents())) + 100
    with pytest.raises(DiskFullError):
        group.follower.append(sealed)
    with pytest.raises((DiskFullError, RefusedBatchError)):
        group.follower.append(sealed)
    disk.capacity_bytes = None
    group.join()
    busy(group)
    assert_same_log(group)
    assert content_on_follower(group) == content_on_leader(group)


@pytest.mark.parametrize("starts_segment", [False, True])
def test_a_disk_that_fills_up_during_a_write_costs_no_batch(starts_segment: bool) -> None:
    # Nothing is filled ahead: there, a batch needs no space.
    limits = OPTIONS.limits._replace(fill_from_bytes=1 << 60)
    group = Group.new(OPTIONS._replace(limits=limits))
    group.join()
    busy(group, 1)
    disk, follower = group.follower_disk, group.follower
    assert follower is not None
    if starts_segment:
        group.publish(["orders"], bytes(1600))
        group.sync()
    group.publish(["orders"], bytes(300))
    sealed = group.seal()
    assert sealed is not None
    assert (sealed.offset == 0) == starts_segment
    last = follower.last
    # Enough for the messages, and not for the TRANSACTION behind them.
    disk.capacity_bytes = sum(map(len, disk.contents())) + sum(sealed.lengths) + 10
    with pytest.raises(DiskFullError):
        follower.append(sealed)
    disk.capacity_bytes = None
    assert follower.last == last
    with pytest.raises(RefusedBatchError, match="not agreed on"):
        follower.append(sealed)
    group.join()
    busy(group)
    assert_same_log(group)
    assert content_on_follower(group) == content_on_leader(group)


def test_a_batch_for_which_there_was_no_room_in_a_new_segment_is_appended_when_there_is() -> None:
    """The batch may not be on the leader's own disk yet, so no catch-up brings it."""
    group = joined(1)
    disk, follower = group.follower_disk, group.follower
    assert follower is not None
    group.publish(["orders"], bytes(1600))
    group.sync()
    last, reader = follower.last, group.reader()
    for body in (bytes(300), bytes(1600)):
        group.publish(["orders"], body)
        sealed = group.seal()
        assert sealed is not None
        if not sealed.offset:
            disk.capacity_bytes = sum(map(len, disk.contents())) + sum(sealed.lengths) + 10
            with pytest.raises(DiskFullError):
                follower.append(sealed)
            disk.capacity_bytes = None
            rewrite = follower.resume(last.lsn)
            while piece := reader.read(rewrite.number, rewrite.size, 700):
                rewrite.append(piece)
            follower.adopt(rewrite)
        follower.append(sealed)
    assert follower.last.segment > last.segment


def test_a_start_changes_nothing_before_a_leader_is_found() -> None:
    group = joined(3)
    assert group.follower is not None
    group.lose_leader(b"of an earlier term")
    before = checkpointed(group)
    follower = restarted(group)
    follower.commit(follower.last.lsn, group.definitions)
    follower.checkpoint()
    assert checkpointed(group) == before
    catalog = MemoryCatalog(group.follower_disk, f"{DIRECTORY}/catalog", False)
    assert catalog.rows("ends") == {}
