"""A copy of a leader's store takes the place of a follower's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amqpstore import RefusedCopyError
from amqpstore.catalog.catalog import TABLES
from amqpstore.catalog.tables import SEGMENT_ENDS, SEGMENTS, StoreRows
from amqpstore.replica import CopySource, Replacement, WholeCopy
from amqpstore.system.filenames import REPLACEMENT, segment_numbers
from amqpstore_tools.simulation.memory_catalog import MemoryCatalog
from tests.replicas import DIRECTORY, Group, busy, content_of, promoted

NAME = "segments/0000000001.segment"
LAST = f"{DIRECTORY}/catalog"


def behind() -> Group:
    """A group with a follower that lacks what the leader's log no longer has."""
    group = Group.new()
    for number in range(6):
        group.publish(["orders"], b"%d" % number, bytes(700))
        group.sync()
        group.take("orders", 2)
        group.sync()
    busy(group, 3)
    group.store.upkeep.checkpoint()
    group.publish(["orders"], b"behind the checkpoint")
    group.sync()
    return group


def test_a_follower_goes_on_from_where_a_copy_ends() -> None:
    group = behind()
    assert 1 not in segment_numbers(group.leader_disk.list_directory(f"{DIRECTORY}/segments"))
    group.copy(0)
    follower = group.follower
    assert follower is not None
    position = StoreRows.read(group.store._catalog.rows).position
    assert position is not None
    assert follower.last.lsn == position.lsn - 1
    assert (follower.last.segment, follower.last.offset) == (position.segment, position.offset)
    assert follower.term == group.term
    assert follower.definition_number == group.definitions
    assert not follower.recovery_report.damage
    assert not group.follower_disk.exists(f"{DIRECTORY}/{REPLACEMENT}")
    group.join()
    busy(group, 2)
    follower.close()
    with promoted(group.follower_disk.fork(), group.term + 1) as ours:
        content = content_of(ours)
        assert not ours.recovery_report.damage
    with promoted(group.leader_disk.fork(), group.term + 1) as theirs:
        assert content == content_of(theirs)


def test_a_leader_that_has_just_begun_a_segment_can_be_copied() -> None:
    """The leader was killed before it wrote to the segment, and leads again without a publish."""
    group = Group.new()
    busy(group, 2)
    group.kill_leader_in_new_segment()
    group.kill_leader_in_new_segment()
    group.store.upkeep.checkpoint()
    position = StoreRows.read(group.store._catalog.rows).position
    assert position is not None
    assert position.offset == 0
    last = group.committed
    group.copy(0)
    assert group.follower is not None
    assert group.follower.last.lsn == last
    group.join()
    busy(group, 1)
    assert group.follower.last.lsn == group.committed


def test_a_copy_that_is_cut_off_goes_on_where_it_was() -> None:
    """Files that are whole, and still the same, are not sent again; those that the leader no longer
    has are gone in the end.
    """
    whole = filled().copy(0)
    group = filled()
    assert group.copy(0, cut_off_behind=2) == whole[:2]
    assert group.copy(0, cut_off_behind=1) == whole[2:3]
    assert len(whole) > 3
    for other in ("segments/0000000999.segment", f"index/{1:020}-{999:010}.index"):
        group.follower_disk.create(f"{DIRECTORY}/{other}.new").close()
    path = f"{DIRECTORY}/{whole[1]}.new"
    group.follower_disk.replace(path, group.follower_disk.content(path)[:-1] + b"?")
    assert group.copy(0) == [whole[1], *whole[3:]]
    assert unfinished(group) == []
    group.join()
    assert group.follower is not None
    group.follower.close()
    with promoted(group.follower_disk.fork(), group.term + 1) as ours:
        content = content_of(ours)
        assert not ours.recovery_report.damage
    with promoted(group.leader_disk.fork(), group.term + 1) as theirs:
        assert content == content_of(theirs)


def filled() -> Group:
    """A group whose leader's store has several files."""
    group = Group.new()
    busy(group, 5)
    group.store.upkeep.checkpoint()
    return group


def unfinished(group: Group) -> list[str]:
    names = [
        name
        for folder in ("segments", "index")
        for name in group.follower_disk.list_directory(f"{DIRECTORY}/{folder}")
    ]
    return [name for name in names if name.endswith(".new")]


def lead(group: Group) -> None:
    promoted(group.follower_disk, group.term + 1).abandon()


@pytest.mark.parametrize("goes_on", [Group.join, lead])
def test_what_was_received_is_removed_when_no_copy_is_needed(
    goes_on: Callable[[Group], None],
) -> None:
    group = filled()
    group.copy(0, cut_off_behind=3)
    assert len(unfinished(group)) == 4
    goes_on(group)
    assert unfinished(group) == []


@pytest.mark.parametrize(
    ("name", "offset"),
    [
        ("segments/../STORE", 0),
        ("segments/0000000001.segment.new", 0),
        ("catalog/data.mdb", 0),
        ("index/0000000001.segment", 0),
        (NAME, 4),
        ("segments/0000000002.segment", 1),
    ],
)
def test_bytes_that_do_not_follow_are_refused(name: str, offset: int) -> None:
    group = Group.new()
    replacement = group.start_follower().replacement()
    replacement.append(NAME, 0, b"12345")
    with pytest.raises(RefusedCopyError, match="does not follow"):
        replacement.append(name, offset, b"6")
    replacement.append(NAME, 5, b"6")
    replacement.abandon()
    assert group.follower_disk.list_directory(f"{DIRECTORY}/segments") == []


def copy_of(group: Group) -> WholeCopy:
    return CopySource.of(group.store._catalog.rows, 1).copy({})


def test_a_copy_that_is_not_whole_is_refused() -> None:
    group = Group.new()
    follower = group.start_follower()
    replacement = follower.replacement()
    replacement.append(NAME, 0, b"12345")
    copy = copy_of(group)
    for files in ({}, {NAME: 6}, {NAME: 5, "segments/0000000002.segment": 1}):
        with pytest.raises(RefusedCopyError, match=r"should have .* bytes"):
            follower.replace(replacement, copy._replace(files=files), 0)
    copy.tables["store"]["store_id"] = bytes(16)
    with pytest.raises(RefusedCopyError, match="of another store"):
        follower.replace(replacement, copy._replace(files={NAME: 5}), 0)
    assert not group.follower_disk.exists(f"{DIRECTORY}/{REPLACEMENT}")
    follower.adopt_term(3)


def test_a_copy_that_was_changed_on_its_way_is_refused() -> None:
    copy = copy_of(Group.new())
    sound = copy.encode()
    assert WholeCopy.decode(sound) == copy
    for place in range(0, len(sound), 7):
        damaged = bytearray(sound)
        damaged[place] ^= 1
        with pytest.raises(ValueError, match="checksum"):
            WholeCopy.decode(bytes(damaged))
    for wrong, reason in (
        (copy._replace(files={"../STORE": 5}), "not a file of a store"),
        (copy._replace(tables={}), "cannot be read"),
        (copy._replace(tables={**copy.tables, "ends": {"x": {"end": 1}}}), "table ends, row 'x'"),
    ):
        with pytest.raises(ValueError, match=reason):
            WholeCopy.decode(wrong.encode())


def test_ends_that_are_noted_behind_the_copy_are_left_out() -> None:
    """The leader was started again: the segment that its checkpoint ends in has more batches, and a
    noted end.
    """
    group = Group.new()
    busy(group, 2)
    group.store.upkeep.checkpoint()
    position = StoreRows.read(group.store._catalog.rows).position
    assert position is not None
    rows = {table: group.store._catalog.rows(table) for table in TABLES}
    for number in (position.segment, position.segment + 1):
        rows["ends"][SEGMENT_ENDS.key(number)] = {"end": 5000}
    rows["ends"][SEGMENT_ENDS.key(1 << 31)] = {"end": 6000}
    source = CopySource.of(rows.__getitem__, 1)
    assert {*source.tables["ends"]} == {
        key for key in rows["ends"] if int(key) not in (position.segment, position.segment + 1)
    }
    assert source.sizes[f"segments/{position.segment:010}.segment"] == position.offset
    assert "term" not in source.tables["store"]
    rows["store"]["position"]["offset"] = 0
    with pytest.raises(ValueError, match="no batch yet"):
        CopySource.of(rows.__getitem__, 1)


def test_a_store_without_a_checkpoint_is_an_empty_copy() -> None:
    group = Group.new()
    busy(group, 1)
    rows = {table: group.store._catalog.rows(table) for table in TABLES}
    rows["store"].pop("position", None)
    assert not SEGMENTS.read_keys(rows.__getitem__)
    source = CopySource.of(rows.__getitem__, 1)
    assert (source.sizes, source.segment) == ({}, 0)


def test_kept_segments_of_the_other_log_are_removed() -> None:
    group = behind()
    disk = group.follower_disk
    disk.make_directory(f"{DIRECTORY}/kept")
    disk.create(f"{DIRECTORY}/kept/0000000001-5000.segment").close()
    group.copy(0)
    assert disk.list_directory(f"{DIRECTORY}/kept") == []
    assert isinstance(group.follower and group.follower.replacement(), Replacement)
    assert MemoryCatalog(disk, LAST, False).rows("segments")
