"""A leader sends a copy of its store, and goes on."""

import os
import uuid
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from crc32c import crc32c

from amqpstore import Message, Store
from amqpstore.catalog.catalog import LmdbCatalog
from amqpstore.catalog.tables import StoreRows
from amqpstore.replica import (
    FollowerStore,
    Membership,
    WholeCopy,
    create_follower,
    write_membership,
)
from amqpstore.system.files import OsFiles
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_server.cluster.effects import SendCopy
from amqpstore_server.cluster.frames import (
    Definition,
    Frame,
    ReceivedFile,
    Refused,
    ReplicaPosition,
    ShippedBatch,
    StoreCopy,
    StorePiece,
)
from amqpstore_server.replication import copying
from amqpstore_server.replication.companion import LeaderCompanion
from amqpstore_server.replication.copying import CopyCounts, send_copy
from amqpstore_server.replication.kept_segments import KeptSegments
from amqpstore_server.replication.member_log import MemberLog
from tests.pairs import pair_of
from tests.replicas import OPTIONS
from tests.unit.engine.stores import ENVELOPE
from tests.unit.replication.test_figures import told_by_leader

TERM = 1
PIECE_BYTES = 1000


class Alone:
    """The state machine of a leader without followers."""

    def __init__(self) -> None:
        self.companion: LeaderCompanion
        self._number = self._seq = 0

    def seal(self, layout: bytes, content: bytes) -> ShippedBatch:
        self._number += 1
        self._seq += 1
        position = ReplicaPosition(TERM, self._number)
        return ShippedBatch(TERM, self._seq, position, 0, layout, content)

    def define(self, number: int, content: bytes) -> Definition:
        self._seq += 1
        return Definition(TERM, self._seq, number, 0, content)

    def synced(self, term: int, seq: int) -> None:
        assert term == TERM
        self.companion.committed(seq)


class Leader:
    """An open store, with its companion, in a directory of its own."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        Store.open(directory, options=OPTIONS).close()
        write_membership(OsFiles(), directory, Membership("1" * 16))
        catalog = LmdbCatalog(os.path.join(directory, "catalog"), False)
        catalog.commit(StoreRows(term=TERM).changes())
        catalog.close()
        leading = Alone()
        self.log = MemberLog(OsFiles(), directory, 0, KeptSegments(directory, 1 << 30))
        self.companion = leading.companion = LeaderCompanion(leading, self.log, directory, TERM)
        self.store = Store.open(
            directory, options=OPTIONS, worker=InlineWorker(), term=TERM, companion=self.companion
        )
        self.queue = self.store.create_queue("orders")
        self.counts = CopyCounts()

    def publish(self, *bodies: bytes) -> None:
        for body in bodies:
            self.store.publish([self.queue], [Message(ENVELOPE, body)])
            self.store.sync()

    def drain(self) -> None:
        """Ack everything, and remove what is garbage then."""
        while self.queue.ready_count:
            self.store.take(self.queue, limit=1000, acked=True)
        self.publish(b"the last one")
        self.store.upkeep.checkpoint()
        for _ in range(3):
            self.store.upkeep.housekeep()

    def send(self, write: Callable[[Frame], None], *received: ReceivedFile) -> None:
        asked = SendCopy(7, received)
        send_copy(asked, self.directory, self.companion, self.log, self.counts)(write)

    def pinned(self) -> list[Path]:
        return [*(Path(self.directory) / "kept" / "copies").glob("*/*")]


@pytest.fixture
def leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Leader]:
    monkeypatch.setattr(copying, "_PIECE_BYTES", PIECE_BYTES)
    one = Leader(str(tmp_path / "leader"))
    one.publish(*(b"%d" % number + bytes(900) for number in range(20)))
    one.store.upkeep.checkpoint()
    one.publish(b"behind the checkpoint")
    yield one
    one.store.abandon()


def test_what_is_removed_meanwhile_is_in_the_copy(leader: Leader, tmp_path: Path) -> None:
    """A follower has the store as it was when the copy began, although it was emptied since."""
    position = StoreRows.read(leader.store._catalog.rows).position
    assert position is not None
    frames: list[Frame] = []

    def write(frame: Frame) -> None:
        if not frames:
            leader.drain()
        if isinstance(frame, StorePiece):
            assert leader.counts.left_bytes == {7: frame.total - frame.sent}
        frames.append(frame)

    before = sorted(os.listdir(os.path.join(leader.directory, "segments")))
    leader.send(write)
    assert before[0] not in os.listdir(os.path.join(leader.directory, "segments"))
    assert not leader.pinned()
    *pieces, last = frames
    assert isinstance(last, StoreCopy)
    directory = str(tmp_path / "follower")
    create_follower(directory, uuid.UUID(bytes=leader.store.store_id), Membership("2" * 16))
    follower = FollowerStore.open(directory, options=OPTIONS, worker=InlineWorker())
    replacement = follower.replacement()
    copy = WholeCopy.decode(last.content)
    sent, total = 0, sum(copy.files.values())
    for piece in pieces:
        assert isinstance(piece, StorePiece)
        assert len(piece.content) <= PIECE_BYTES
        sent += len(piece.content)
        assert (piece.sent, piece.total) == (sent, total)
        replacement.append(piece.name, piece.offset, piece.content)
    assert sent == total == leader.counts.sent_bytes
    assert leader.counts.left_bytes == {}
    follower.replace(replacement, copy, 0)
    with FollowerStore.open(directory, options=OPTIONS, worker=InlineWorker()) as follower:
        assert follower.last.lsn == position.lsn - 1
        assert not follower.recovery_report.damage
        assert [*follower.recovery_report.kept.values()] == [20]


def test_the_metrics_of_a_leader_that_sends_a_copy(leader: Leader) -> None:
    """The leader also leads a group of two, whose controller counts for all its links."""
    with pair_of(Path(leader.directory).with_name("pair")) as pair:
        leader.counts = pair.leader.controller.copies
        before = told_by_leader(pair)
        seen: list[dict[str, float]] = []
        leader.send(lambda _: seen.append(told_by_leader(pair)))
        assert {one["copies"] for one in seen} == {before["copies"] + 1}
        left = [one["copy_left_bytes"] for one in seen]
        assert left == sorted(left, reverse=True)
        assert left[0] > left[-1] == before["copy_left_bytes"]
        after = told_by_leader(pair)
    assert after["copied_bytes_total"] > before["copied_bytes_total"]
    assert after["copies"] == before["copies"]


def test_what_was_received_before_is_not_sent_again(leader: Leader) -> None:
    """Files are sent again only if they changed: in size, or in content."""
    frames: list[Frame] = []
    leader.send(frames.append)
    contents: dict[str, bytes] = {}
    for frame in frames[:-1]:
        assert isinstance(frame, StorePiece)
        contents[frame.name] = contents.get(frame.name, b"") + frame.content
    whole, short, other, *rest = sorted(contents)
    assert rest
    files = {
        whole: contents[whole],
        short: contents[short][:-1],
        other: contents[other][:-1] + b"?",
        "segments/0000000999.segment": b"not of this store",
    }
    before = leader.counts.sent_bytes
    again: list[Frame] = []
    leader.send(
        again.append,
        *(ReceivedFile(name, len(content), crc32c(content)) for name, content in files.items()),
    )
    assert again[-1] == frames[-1]
    assert leader.counts.sent_bytes - before == before - len(contents[whole])
    of_whole = [one for one in again if isinstance(one, StorePiece) and one.name == whole]
    assert [(one.offset, one.content) for one in of_whole] == [(len(contents[whole]), b"")]
    assert [one for one in again if one not in of_whole] == [
        one for one in frames if not (isinstance(one, StorePiece) and one.name == whole)
    ]


def test_a_copy_ends_with_the_leadership(leader: Leader) -> None:
    frames: list[Frame] = []

    def write(frame: Frame) -> None:
        frames.append(frame)
        leader.companion.depose("another one leads")

    with pytest.raises(OSError, match="leads no longer"):
        leader.send(write)
    assert len(frames) == 1
    assert not leader.pinned()


def test_a_file_that_the_leader_has_lost_is_not_in_the_copy(leader: Leader) -> None:
    (path,) = (Path(leader.directory) / "index").glob("*-0000000001.index")
    path.unlink()
    frames: list[Frame] = []
    leader.send(frames.append)
    last = frames[-1]
    assert isinstance(last, StoreCopy)
    copy = WholeCopy.decode(last.content)
    assert copy.files
    assert f"index/{path.name}" not in copy.files


def test_what_cannot_be_copied_yet_is_refused(leader: Leader) -> None:
    position = StoreRows.read(leader.store._catalog.rows).position
    assert position is not None
    moved = position._replace(segment=position.segment + 1, offset=0, lsn=position.lsn + 100)
    leader.store._catalog.commit(StoreRows(position=moved).changes())
    frames: list[Frame] = []
    leader.send(frames.append)
    (refused,) = frames
    assert isinstance(refused, Refused)
    assert (
        "needs a copy of the whole store, and the log begins with a segment that has no batch"
        in refused.reason
    )
