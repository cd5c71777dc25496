"""The thread that has a follower's store: what it tells the state machine is true on its disk."""

import queue
import threading
from collections.abc import Generator
from pathlib import Path

import msgspec
import pytest

from amqpstore import DiskFullError
from amqpstore.catalog.tables import StoreRows
from amqpstore.replica import CopySource, FollowerStore, SealedBatch
from amqpstore_server.cluster.effects import (
    Adopt,
    Append,
    CheckpointUpTo,
    Define,
    Dial,
    Discard,
    FindReceived,
    Open,
    Persist,
    Receive,
    Restore,
    Sync,
)
from amqpstore_server.cluster.frames import (
    START,
    Definition,
    DefinitionsSnapshot,
    ReceivedFile,
    ReplicaPosition,
    ShippedBatch,
    StoreCopy,
    StorePiece,
)
from amqpstore_server.replication.definitions import DefinitionTables
from amqpstore_server.replication.disk_lane import DiskJob, DiskLane, Follow
from amqpstore_server.replication.kept_segments import KeptSegments
from amqpstore_server.replication.member_log import MemberLog, held_batch
from amqpstore_tools.simulation import stores
from amqpstore_tools.simulation.memory_catalog import MemoryCatalog
from amqpstore_tools.simulation.memory_files import MemoryFiles
from tests.replicas import DIRECTORY, OPTIONS, Group, busy, log_files, tables_of
from tests.waiting import wait_until

WAIT_S = 60.0


def contents(disk: MemoryFiles) -> dict[int, bytes]:
    """The log's segments, without the zeros that they are filled with ahead of use."""
    return {number: content.rstrip(b"\0") for number, content in log_files(disk).items()}


class Answers:
    """Answers of the lane, each with the follower's log at that moment."""

    def __init__(self, group: Group) -> None:
        self.told: queue.SimpleQueue[tuple[object, ...]] = queue.SimpleQueue()
        self.errors: list[BaseException] = []
        self._group = group

    def _tell(self, *what: object) -> None:
        self.told.put((*what, contents(self._group.follower_disk)))

    def persisted(self, term: int) -> None:
        self._tell("persisted", term)

    def synced(self, term: int, seq: int) -> None:
        self._tell("synced", term, seq)

    def discarded(self) -> None:
        self._tell("discarded")

    def not_persisted(self, error: DiskFullError) -> None:
        self._tell("not persisted")

    def found_received(self, term: int, received: tuple[ReceivedFile, ...]) -> None:
        self._tell("found received", term, *received)

    def flushed(self, dial: Dial) -> None:
        self._tell("flushed", dial.member)

    def released(self, term: int) -> None:
        self._tell("released", term)

    def following(self) -> None:
        self._tell("following")

    def stream_failed(self) -> None:
        self._tell("stream failed")

    def failed(self, error: BaseException) -> None:
        self.errors.append(error)
        self._tell("failed")

    def next(self) -> tuple[object, ...]:
        """The next answer, without the log."""
        return self.next_with_log()[0]

    def next_with_log(self) -> tuple[tuple[object, ...], dict[int, bytes]]:
        *what, log = self.told.get(timeout=WAIT_S)
        assert isinstance(log, dict)
        return tuple(what), log


class Lane:
    """A leader's store, and a lane with a follower's."""

    def __init__(self, place: str) -> None:
        self.group = Group.new()
        self.answers = Answers(self.group)
        self.seq = 1
        store = self.group.start_follower()
        self.log = MemberLog(
            self.group.follower_disk, DIRECTORY, store.seed, KeptSegments(place, 1 << 30)
        )
        self.log.begin(store.reader())
        self.lane = DiskLane(store, self.reopen, self.log, self.answers)
        self.group.follower = None

    def reopen(self) -> FollowerStore:
        store = stores.open_follower(DIRECTORY, self.group.follower_disk, OPTIONS)
        self.log.begin(store.reader())
        self.log.covered(store.committed_lsn)
        return store

    def put(self, *effects: DiskJob) -> None:
        for one in effects:
            self.lane.put(one)

    def snapshot(self) -> Restore:
        """All definitions that the leader has now."""
        group = self.group
        group.definitions += 1
        catalog = MemoryCatalog(group.leader_disk, f"{DIRECTORY}/catalog", False)
        rows = StoreRows.read(catalog.rows)
        tables = DefinitionTables(0, rows.next_queue_id or 1, tables_of(catalog))
        content = msgspec.msgpack.encode(tables)
        return Restore(DefinitionsSnapshot(group.term, group.definitions, content))

    def append(self, sealed: SealedBatch, *, live: bool) -> Append:
        """A batch as it is sent: the next frame of the term, or one to catch up with."""
        self.seq += live
        position = ReplicaPosition.of_lsn(sealed.lsn)
        layout, content = sealed.layout(), sealed.content
        return Append(
            ShippedBatch(self.group.term, self.seq if live else 0, position, 0, layout, content)
        )

    def publish(self, *bodies: bytes) -> SealedBatch:
        self.group.publish(["orders"], *bodies)
        sealed = self.group.seal()
        assert sealed is not None
        return sealed

    def copy(self, common: ReplicaPosition) -> list[DiskJob]:
        """A copy of the leader's store, as it is received."""
        term, disk = self.group.term, self.group.leader_disk
        source = CopySource.of(self.group.store._catalog.rows, 1)
        paths = {name: f"{DIRECTORY}/{name}" for name in source.sizes}
        files = {name: disk.content(path)[: source.sizes[name]] for name, path in paths.items()}
        sizes = {name: len(content) for name, content in files.items()}
        pieces = [
            Receive(StorePiece(term, name, offset, 0, 0, content[offset : offset + 900]))
            for name, content in files.items()
            for offset in range(0, len(content), 900)
        ]
        return [*pieces, Adopt(StoreCopy(term, source.copy(sizes).encode()), common)]

    def join(self) -> None:
        """Connect to the leader, and catch up with what it has."""
        reader = self.group.reader()
        common = next(
            (one.position.lsn for one in self.log.tail() if reader.find(one.position.lsn)), 0
        )
        place = reader.find(common)
        assert place is not None
        self.put(Dial("leader", "127.0.0.1:1"))
        assert self.answers.next() == ("flushed", "leader")
        if common != self.log.last().lsn:
            self.put(Discard(ReplicaPosition.of_lsn(common)))
            assert self.answers.next() == ("discarded",)
        self.put(Persist(self.group.term), self.snapshot())
        self.put(*(self.append(one, live=False) for one in reader.sealed(place)))
        self.seq += 1
        self.put(Sync(self.group.term, self.seq))
        assert self.answers.next() == ("persisted", self.group.term)
        while (answer := self.answers.next()) == ("synced", self.group.term, 0):
            pass
        assert answer == ("synced", self.group.term, self.seq)
        assert contents(self.group.follower_disk) == contents(self.group.leader_disk)
        there = [held_batch(one) for one in self.group.reader().tail()]
        assert list(self.log.tail())[: len(there)] == there


@pytest.fixture
def lane(tmp_path: Path) -> Generator[Lane]:
    one = Lane(str(tmp_path))
    yield one
    one.lane.close()
    assert not one.answers.errors
    one.group.store.abandon()


def test_what_is_acked_is_on_disk(lane: Lane) -> None:
    """The follower acks missed batches of several segments, and each batch after them."""
    for number in range(6):
        lane.publish(b"missed %d" % number, bytes(500))
    lane.join()
    for number in range(6):
        sealed = lane.publish(b"live %d" % number, bytes(500))
        lane.put(lane.append(sealed, live=True))
        told, log = lane.answers.next_with_log()
        assert told == ("synced", lane.group.term, lane.seq)
        assert log == contents(lane.group.leader_disk)
        assert lane.log.last().lsn == sealed.lsn


def test_a_lost_connection_costs_what_was_missed(lane: Lane) -> None:
    lane.join()
    lane.put(lane.append(lane.publish(b"one"), live=True))
    lane.answers.next()
    lane.publish(b"missed")
    lane.join()


def test_a_catch_up_that_is_cut_off_goes_on_where_it_was(lane: Lane) -> None:
    """A catch-up goes on in the middle of a segment: otherwise it would never end over links that
    break before a segment is sent.
    """
    lane.join()
    behind = lane.log.last().lsn
    for number in range(4):
        lane.publish(b"missed %d" % number)
    reader = lane.group.reader()
    place = reader.find(behind)
    assert place is not None
    missed = list(reader.sealed(place))
    lane.put(Dial("leader", "127.0.0.1:1"))
    assert lane.answers.next() == ("flushed", "leader")
    lane.put(Persist(lane.group.term), lane.snapshot())
    lane.put(*(lane.append(one, live=False) for one in missed[:3]))
    lane.put(Dial("leader", "127.0.0.1:1"))
    while (answer := lane.answers.next()) != ("flushed", "leader"):
        assert answer in (("persisted", lane.group.term), ("synced", lane.group.term, 0))
    assert lane.log.last().lsn == missed[2].lsn
    lane.join()


def test_only_the_last_of_the_dials_that_have_waited_is_made(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk hung, and the dial was tried again each second meanwhile."""
    goes_on = threading.Event()
    monkeypatch.setattr(lane.answers, "persisted", lambda _term: goes_on.wait(WAIT_S))
    lane.put(Persist(lane.group.term), *(Dial(str(number), "127.0.0.1:1") for number in range(5)))
    goes_on.set()
    assert lane.answers.next() == ("flushed", "4")
    lane.put(FindReceived(lane.group.term))
    assert lane.answers.next() == ("found received", lane.group.term)


def test_what_was_never_committed_is_replaced(lane: Lane) -> None:
    lane.publish(b"committed")
    lane.join()
    fork = lane.group.leader_disk.fork()
    lane.put(lane.append(lane.publish(b"never committed"), live=True))
    lane.answers.next()
    lane.group._go_on(fork)
    lane.publish(b"of the next term")
    lane.join()


def test_what_does_not_continue_the_log_ends_the_stream_and_nothing_else(lane: Lane) -> None:
    """Nothing more of it is written; the next connection begins where the log ends."""
    lane.join()
    lane.publish(b"lost on its way")
    lane.put(lane.append(lane.publish(b"behind a gap"), live=True))
    assert lane.answers.next() == ("stream failed",)
    before = contents(lane.group.follower_disk)
    lane.put(lane.append(lane.publish(b"more"), live=True), Sync(lane.group.term, lane.seq))
    lane.join()
    assert before != contents(lane.group.follower_disk)


def test_definitions_are_durable_when_they_are_acked(lane: Lane) -> None:
    lane.join()
    group = lane.group
    number = group.definitions + 1
    content = msgspec.msgpack.encode([("vhosts", "/", {"a": 1})])
    lane.put(Define(Definition(group.term, 9, number, 0, content)))
    assert lane.answers.next() == ("synced", group.term, 9)
    catalog = MemoryCatalog(group.follower_disk, f"{DIRECTORY}/catalog", False)
    assert catalog.rows("vhosts") == {"/": {"a": 1}}
    lane.put(Define(Definition(group.term, 10, number + 1, 0, b"not msgpack")))
    assert lane.answers.next() == ("stream failed",)


def test_no_checkpoint_covers_what_is_not_committed(lane: Lane) -> None:
    lane.publish(b"missed")
    lane.join()
    lsns = []
    for number in range(3):
        sealed = lane.publish(b"live %d" % number)
        lsns.append(ReplicaPosition.of_lsn(sealed.lsn).number)
        lane.put(lane.append(sealed, live=True))
        lane.answers.next()
    lane.put(CheckpointUpTo(lsns[1]), Open(5))
    assert lane.answers.next() == ("released", 5)
    catalog = MemoryCatalog(lane.group.follower_disk, f"{DIRECTORY}/catalog", False)
    position = StoreRows.read(catalog.rows).position
    assert position is not None
    assert ReplicaPosition.of_lsn(position.lsn).number == lsns[1] + 1
    assert lane.log.checkpoint() == lsns[1]


def test_a_copy_of_the_leaders_store_takes_the_place_of_the_own_one(lane: Lane) -> None:
    lane.join()
    lane.put(lane.append(lane.publish(b"common", bytes(900)), live=True))
    lane.answers.next()
    common = lane.log.last()
    busy(lane.group, 3)
    lane.group.store.upkeep.checkpoint()
    position = StoreRows.read(lane.group.store._catalog.rows).position
    assert position is not None
    lane.publish(b"behind the copy")
    lane.put(*lane.copy(common), Dial("leader", "127.0.0.1:1"))
    assert lane.answers.next() == ("flushed", "leader")
    assert lane.log.last() == ReplicaPosition.of_lsn(position.lsn - 1)
    assert lane.log.checkpoint() == lane.log.last().number
    lane.join()


def test_a_copy_goes_on_with_what_was_received_before(lane: Lane) -> None:
    lane.join()
    busy(lane.group, 3)
    lane.group.store.upkeep.checkpoint()
    term = lane.group.term
    *pieces, adopt = [one for one in lane.copy(START) if isinstance(one, Receive | Adopt)]
    lane.put(*pieces[:-1], Dial("leader", "127.0.0.1:1"), FindReceived(term))
    assert lane.answers.next() == ("flushed", "leader")
    answer, number, *files = lane.answers.next()
    assert (answer, number) == ("found received", term)
    received = [one for one in files if isinstance(one, ReceivedFile)]
    assert received
    names = {one.name for one in received}
    rest = [one for one in pieces if isinstance(one, Receive) and one.piece.name not in names]
    assert 0 < len(rest) < len(pieces)
    there = [StorePiece(term, one.name, one.size, 0, 0, b"") for one in received]
    lane.put(*map(Receive, there), *rest, adopt, Dial("leader", "127.0.0.1:1"))
    assert lane.answers.next() == ("flushed", "leader")
    position = StoreRows.read(lane.group.store._catalog.rows).position
    assert position is not None
    assert lane.log.last() == ReplicaPosition.of_lsn(position.lsn - 1)


def test_no_more_is_read_of_a_copy_than_the_disk_takes(lane: Lane) -> None:
    """At most four MiB and one more piece wait for the disk."""
    taken, goes_on = threading.Event(), threading.Event()

    def hang(term: int) -> None:
        assert term
        goes_on.wait(WAIT_S)

    lane.answers.persisted = hang  # type: ignore[method-assign]
    lane.put(Persist(lane.group.term))

    def read() -> None:
        for number in range(8):
            lane.lane.wait_for_room()
            name = f"segments/{number + 1:010}.segment"
            lane.put(Receive(StorePiece(1, name, 0, 0, 0, bytes(1 << 20))))
            lengths.append(number)
        taken.set()

    lengths: list[int] = []
    reader = threading.Thread(target=read)
    reader.start()
    wait_until(lambda: len(lengths) >= 4)
    assert not taken.wait(0.05)
    assert len(lengths) == 4
    goes_on.set()
    reader.join(WAIT_S)
    assert taken.is_set()


def test_a_term_for_which_there_is_no_room_is_refused_and_later_taken(lane: Lane) -> None:
    lane.join()
    disk = lane.group.follower_disk
    disk.capacity_bytes = 0
    lane.put(Persist(9))
    assert lane.answers.next() == ("not persisted",)
    disk.capacity_bytes = None
    lane.put(Persist(9))
    assert lane.answers.next() == ("persisted", 9)


def test_what_is_not_whole_of_a_copy_changes_nothing(lane: Lane) -> None:
    lane.publish(b"common", bytes(900))
    lane.join()
    busy(lane.group, 2)
    lane.group.store.upkeep.checkpoint()
    *pieces, adopt = lane.copy(lane.log.last())
    before = contents(lane.group.follower_disk)
    damaged = Adopt(StoreCopy(lane.group.term, b"rows"), START)
    for effects in ([*pieces[1:], adopt], [*pieces[:-1], adopt], [*pieces, damaged]):
        lane.put(*effects, Dial("leader", "127.0.0.1:1"))
        assert lane.answers.next() == ("stream failed",)
        told, found = lane.answers.next_with_log()
        assert told == ("flushed", "leader")
        assert found == before
    names = lane.group.follower_disk.list_directory(f"{DIRECTORY}/segments")
    assert not any(name.endswith(".new") for name in names)
    lane.lane.wait_for_room()


def test_the_store_is_given_to_a_leader_and_taken_back(lane: Lane) -> None:
    lane.join()
    lane.put(Open(5), Persist(6), Follow())
    assert lane.answers.next() == ("released", 5)
    assert lane.answers.next() == ("following",)
    lane.join()
    assert lane.log.last() != START or not contents(lane.group.leader_disk)
