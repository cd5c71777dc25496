"""Tests of what a member knows of its log, and of segments that it keeps for others."""

import time
from pathlib import Path

import pytest

from amqpstore import Message, Store
from amqpstore.replica import LogReader, SealedBatch, log_ends
from amqpstore.replica.log_reading import named_batch
from amqpstore.system.files import OsFiles
from amqpstore_server.cluster.frames import START, HeldBatch, ReplicaPosition
from amqpstore_server.replication.kept_segments import KeptSegments
from amqpstore_server.replication.member_log import MemberLog
from tests.replicas import LEADER_OPTIONS, NOW_MS
from tests.unit.engine.stores import ENVELOPE

PLENTY_BYTES = 1 << 30


class Member:
    """A store whose log a `MemberLog` hears of."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.store = Store.open(directory, options=LEADER_OPTIONS)
        self.queue = self.store.create_queue("orders")
        self.log = self.new_log()
        self.sealed: list[SealedBatch] = []

    def new_log(self) -> MemberLog:
        seed = self.store.log.seed
        log = MemberLog(OsFiles(), self.directory, seed, KeptSegments(self.directory, PLENTY_BYTES))
        log.begin(LogReader(OsFiles(), self.directory, seed, log_ends(self.store.log)))
        return log

    def publish(self, count: int) -> None:
        """Write batches of 500 bytes, of which three fill a segment."""
        for _ in range(count):
            self.store.publish([self.queue], [Message(ENVELOPE, bytes(500))])
            self.write()

    def write(self) -> None:
        """Write the open batch."""
        batch = self.store.log.seal(NOW_MS)
        assert batch is not None
        self.store.log.write(batch)
        self.sealed.append(SealedBatch.of(batch))
        self.store.log.complete(batch)
        self.log.wrote(named_batch(self.sealed[-1], 0))

    def held(self, number: int) -> HeldBatch:
        """Batch `number` of the log."""
        one = self.sealed[number - 1]
        return HeldBatch(ReplicaPosition.of_lsn(one.lsn), one.checksum)

    def drain(self) -> None:
        """Ack everything, and have the store remove what is garbage."""
        while self.queue.ready_count:
            self.store.take(self.queue, limit=1000, acked=True)
        for _ in range(2):
            self.publish(1)
            self.store.upkeep.checkpoint()


@pytest.fixture
def member(tmp_path: Path) -> Member:
    return Member(str(tmp_path / "data"))


def test_the_tail_is_named_newest_first(member: Member) -> None:
    assert member.log.last() == START
    assert member.log.tail() == ()
    member.publish(4)
    assert member.log.tail() == tuple(member.held(number) for number in (4, 3, 2, 1))
    assert member.log.last() == member.held(4).position
    assert member.new_log().tail() == member.log.tail()


def test_a_batch_is_known_by_its_checksum(member: Member) -> None:
    member.publish(2)
    assert member.log.has(member.held(2))
    assert not member.log.has(member.held(2)._replace(checksum=1))


def test_an_old_batch_is_looked_up(member: Member) -> None:
    """The batch is not among the last ones, which the log has in memory."""
    member.publish(100)
    old = member.held(5)
    assert not member.log.has(old)
    member.log.look_up([member.held(5)._replace(checksum=1), old])
    assert member.log.has(old)
    assert not member.log.has(old._replace(checksum=1))
    place = member.log.end_of(old.position)
    assert place is not None
    assert [one.lsn for one in member.log.reader().sealed(place)][:2] == [6, 7]
    assert member.log.keeps_behind(old.position)


def test_what_the_store_has_removed_is_kept_for_members_that_are_away(member: Member) -> None:
    """Removed segments are still kept after a restart of this member."""
    member.publish(9)
    there = [one.content for one in member.sealed]
    member.drain()
    names = [path.name for path in (Path(member.directory) / "segments").iterdir()]
    assert "0000000001.segment" not in names
    for log in (member.log, member.new_log()):
        assert log.keeps_behind(START)
        log.look_up([member.held(2)])
        assert log.has(member.held(2))
        place = log.end_of(member.held(2).position)
        assert place is not None
        assert [one.content for one in log.reader().sealed(place)][:7] == there[2:]


def test_no_more_is_kept_than_is_configured(member: Member) -> None:
    def kept_bytes() -> int:
        return sum(path.stat().st_size for path in (Path(member.directory) / "kept").iterdir())

    member.log.keep(4000)
    member.publish(30)
    member.drain()
    assert not member.log.keeps_behind(START)
    assert 2000 < kept_bytes() <= 4000
    member.log.keep(2000)
    assert 0 < kept_bytes() <= 2000
    member.log.keep(0)
    assert kept_bytes() == 0
    member.publish(9)
    assert kept_bytes() == 0
    member.log.keep(4000)
    member.publish(6)
    assert 0 < kept_bytes() <= 4000


def test_what_is_held_is_kept_although_there_is_too_much(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A held segment is kept for a minute after it was last asked for, while the disk has room."""
    member.log.keep(4000)
    member.publish(9)
    member.log.hold(2)
    member.publish(21)
    member.drain()
    assert not member.log.keeps_behind(START)
    kept = KeptSegments(member.directory, PLENTY_BYTES)
    assert min(kept.ends) == 2
    assert sum(kept.ends.values()) > 4000
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    member.publish(2)
    member.drain()
    assert sum(KeptSegments(member.directory, PLENTY_BYTES).ends.values()) <= 4000


def test_a_batch_is_not_looked_up_in_front_of_what_is_missing(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has it no longer: that is no error, and costs few reads."""
    member.log.keep(8000)
    member.publish(100)
    old = member.held(5)
    member.drain()
    read: list[int] = []
    reads = LogReader.read

    def count(self: LogReader, number: int, offset: int, size: int) -> bytes:
        read.append(number)
        return reads(self, number, offset, size)

    monkeypatch.setattr(LogReader, "read", count)
    member.log.look_up([old])
    assert not member.log.has(old)
    assert not member.log.keeps_behind(old.position)
    assert 0 < len(read) < 6


def test_a_kept_segment_that_somebody_has_removed_is_not_promised(member: Member) -> None:
    member.publish(9)
    member.drain()
    assert member.log.keeps_behind(START)
    next((Path(member.directory) / "kept").glob("0000000001-*")).unlink()
    assert not member.log.keeps_behind(START)


def test_what_is_discarded_is_not_kept(member: Member) -> None:
    member.publish(9)
    place = member.log.end_of(member.held(2).position)
    assert place is not None
    member.log.discarded(place)
    assert member.log.last() == member.held(2).position
    assert KeptSegments(member.directory, PLENTY_BYTES).ends == {}
