"""The power is cut at every operation of a follower, and all it has acked is there: as its leader
wrote it, and enough to lead with.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from amqpstore import MembershipError, StoreError
from amqpstore.catalog.tables import StoreRows
from amqpstore.format.batches import in_segment
from amqpstore.format.records import scan
from amqpstore.replica import (
    BatchEnd,
    FollowerStore,
    LogReader,
    SealedBatch,
    SegmentRewrite,
    follower_store,
)
from amqpstore.replica.follower_log import FollowerLog
from amqpstore.system.filenames import NEW_REPLACEMENT, REPLACEMENT
from amqpstore.terms import number_of
from amqpstore_tools.simulation import stores
from amqpstore_tools.simulation.crash_images import Image, crash_images
from amqpstore_tools.simulation.faulty_files import FaultKind, Faults
from amqpstore_tools.simulation.memory_catalog import MemoryCatalog
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.operations import (
    DataSync,
    LockFile,
    Operation,
    Rename,
    SyncDirectory,
)
from tests.replicas import (
    DIRECTORY,
    OPTIONS,
    Acked,
    Committed,
    Content,
    Defined,
    Group,
    Resumed,
    Sealed,
    Told,
    busy,
    content_of,
    log_files,
    promoted,
)

Patch = pytest.MonkeyPatch
_AFTER = 50
"""A term after all terms of a history."""


def history(group: Group) -> None:
    """Everything that a follower goes through, over several segments and checkpoints."""
    group.join()
    busy(group, 4)
    joins(group)
    discards(group)


def joins(group: Group) -> None:
    """The follower, and then its connection, is away for a while; queues come and go."""
    group.publish(["passing", "slow"], b"in a queue that is deleted")
    group.sync()
    group.kill_follower()
    group.store.delete_queue(group.queue("passing"))
    busy(group, 2)
    group.join()
    follower, group.follower = group.follower, None
    group.publish(["new"], b"in a queue that was defined meanwhile")
    busy(group, 1)
    group.follower = follower
    group.join(is_defined=False)
    assert follower is not None
    follower.checkpoint()
    busy(group, 1)
    group.kill_follower()
    group.join()


def discards(group: Group) -> None:
    """The follower has a batch that the next leader lacks: in the segment that goes on, as the
    first of another segment, and as a leader itself.
    """
    group.lose_leader(b"discarded")
    busy_alone(group)
    group.join()
    group.publish(["orders"], bytes(1600))
    group.sync()
    group.lose_leader(b"discarded, too", bytes(700))
    group.kill_follower()
    group.join()
    busy(group, 1)
    group.lead_for_a_while(b"of a short reign")
    busy_alone(group)
    group.join()
    busy(group, 2)
    assert group.follower is not None
    group.follower.close()
    group.follower = None
    group.join()
    busy(group, 1)


def replaced(group: Group) -> None:
    """Have the follower lack what the leader's log no longer has: as a new follower, and with a
    batch that no other member has.
    """
    for number in range(2):
        queue = f"passing {number}"
        group.publish(["orders", queue], bytes(500))
        group.sync()
        last = group.follower.last.lsn if group.follower else 0
        if last:
            group.lose_leader(b"discarded", bytes(700))
        follower, group.follower = group.follower, None
        busy(group, 2)
        group.store.delete_queue(group.queue(queue))
        group.store.upkeep.checkpoint()
        group.publish(["slow", "late"], b"behind the copy")
        group.sync()
        group.follower = follower
        if last:
            # The last file of the copy is whole, and was not synced.
            group.copy(last, cut_off_behind=100)
        group.copy(last)
        group.join()
        busy(group, 1)


def skips(group: Group) -> None:
    """Have the leader skip numbers of segments, while the follower is connected, and while it is
    not.
    """
    group.join()
    busy(group, 1)
    group.kill_leader_in_new_segment()
    group.join()
    busy(group, 1)
    group.kill_leader_in_new_segment()
    group.kill_leader_in_new_segment()
    group.kill_follower()
    busy(group, 1)
    group.join()
    busy(group, 1)


def busy_alone(group: Group) -> None:
    """Have the leader go on without a follower."""
    follower, group.follower = group.follower, None
    busy(group, 1)
    group.follower = follower


@dataclass
class Recorded:
    """The events on a follower's disk, and what the outside was told meanwhile."""

    base: MemoryFiles
    events: list[Operation | Told] = field(default_factory=list)


def record(tell: Callable[[Group], None]) -> Recorded:
    """Record a history of a follower, from an empty log on."""
    group = Group.new()
    recorded = Recorded(group.follower_disk.fork())
    group.tell = recorded.events.append
    group.follower_disk.record = recorded.events.append
    tell(group)
    return recorded


@dataclass
class Known:
    """The knowledge of the outside at a moment of a history."""

    batches: dict[int, SealedBatch] = field(default_factory=dict)
    disks: dict[int, MemoryFiles] = field(default_factory=dict)
    queues: dict[int, set[int]] = field(default_factory=dict)
    acked: int = 0
    ever_acked: set[int] = field(default_factory=set)
    discarded: set[int] = field(default_factory=set)
    committed: int = 0
    _contents: dict[int, Content] = field(default_factory=dict)

    def learn(self, told: Told) -> None:
        match told:
            case Sealed(batch, disk):
                self.batches[batch.lsn] = batch
                self.disks[batch.lsn] = disk
            case Defined(number, queue_ids):
                self.queues[number] = queue_ids
            case Acked(lsn):
                self.acked = lsn
                self.ever_acked |= {lsn} - {0}
            case Committed(lsn):
                self.committed = max(self.committed, lsn)
            case Resumed(lsn):
                # What is behind it is discarded some time from now on.
                self.acked = min(self.acked, lsn)
                self.discarded |= {one for one in self.ever_acked if one > lsn}

    def content(self, lsn: int, definitions: int) -> Content:
        """Return the contents of a leader with these batches and definitions."""
        if lsn not in self._contents:
            with promoted(self.disks[lsn].fork(), _AFTER) as store:
                self._contents[lsn] = content_of(store)
        found = self._contents[lsn]
        return {queue_id: found.get(queue_id, []) for queue_id in self.queues[definitions]}


def explore(recorded: Recorded, seed: str, images: int, known: Known | None = None) -> list[str]:
    """Return what is wrong with any disk that a cut at any operation may leave."""
    rng = random.Random(seed)
    disk = recorded.base.fork()
    known = known or Known()
    seen: set[tuple[bytes, int]] = set()
    wrong: list[str] = []
    for number, event in enumerate(recorded.events):
        if isinstance(event, Told):
            known.learn(event)
            continue
        disk.redo(event)
        if isinstance(event, LockFile):
            continue
        disks = [*crash_images(disk, rng, images)]
        if not isinstance(event, DataSync | SyncDirectory):
            disks.append(Image(disk.fork(), "the process was killed"))
        for image in disks:
            key = image.files.digest(), len(known.ever_acked)
            if key not in seen:
                seen.add(key)
                try:
                    wrong += [
                        f"{one} [{number}: {event}; {image.description}]"
                        for one in violations(image.files, known)
                    ]
                except Exception as error:  # noqa: BLE001
                    wrong.append(f"{error!r} [{number}: {event}; {image.description}]")
        if len(wrong) > 3:
            break
    return wrong


def violations(disk: MemoryFiles, known: Known) -> list[str]:
    """Return what is wrong with a disk on which a process is to be started."""
    if disk.exists(f"{DIRECTORY}/{REPLACEMENT}"):
        with pytest.raises(MembershipError):
            promoted(disk.fork(), _AFTER)
        disk = disk.fork()
        stores.open_follower(DIRECTORY, disk, OPTIONS).abandon()
    return [*log_violations(disk.fork(), known), *leader_violations(disk.fork(), known)]


def log_violations(disk: MemoryFiles, known: Known) -> list[str]:
    """A follower that is started has all it has acked, byte for byte, and nothing else."""
    wrong: list[str] = []
    position = StoreRows.read(MemoryCatalog(disk, f"{DIRECTORY}/catalog", False).rows).position
    if position is not None and position.lsn > known.committed + 1:
        wrong.append(f"checkpoint at {position.lsn}, committed {known.committed}")
    follower = stores.open_follower(DIRECTORY, disk, OPTIONS)
    if follower.recovery_report.damage:
        wrong.append(f"damage: {follower.recovery_report.damage}")
    last = follower.last.lsn
    if last < known.acked:
        wrong.append(f"the log ends with {last}, {known.acked} was acked")
    chain = chain_of(follower, disk)
    for lsn, place in chain.items():
        if known.batches[lsn].content != place:
            wrong.append(f"batch {lsn} differs from the leader's")
    # A checkpoint may have dropped segments before its position, or merged them.
    start = position.lsn if position else 1
    lsns = sorted(lsn for lsn in chain if lsn >= start)
    end = number_of(last) + 1
    if [*map(number_of, lsns)] != [*range(end - len(lsns), end)]:
        wrong.append(f"batches {lsns} are not next to each other")
    kept = quarantined(disk)
    wrong += [
        f"batch {lsn} is neither in the log nor in quarantine"
        for lsn in known.discarded - chain.keys()
        if not any(known.batches[lsn].content in content for content in kept)
    ]
    follower.abandon()
    again = stores.open_follower(DIRECTORY, disk, OPTIONS)
    if again.last.lsn != last:
        wrong.append(f"the log ends with {again.last.lsn} the second time, {last} the first")
    again.abandon()
    return wrong


def chain_of(follower: FollowerStore, disk: MemoryFiles) -> dict[int, bytes]:
    """The batches of a follower's log, by LSN, as they are on its disk."""
    found: dict[int, bytes] = {}
    for number, content in log_files(disk).items():
        sound = content[: follower.log.ends().get(number, 0)]
        for batch in in_segment(sound, scan(sound, number, follower._backing.seed)):
            found[batch.lsn] = sound[batch.start : batch.end]
    return found


def quarantined(disk: MemoryFiles) -> list[bytes]:
    """The content of all segments that a follower has discarded."""
    directory = f"{DIRECTORY}/quarantine"
    if not disk.exists(directory):
        return []
    paths = [f"{directory}/{name}" for name in disk.list_directory(directory)]
    return [disk.content(f"{path}/{name}") for path in paths for name in disk.list_directory(path)]


def leader_violations(disk: MemoryFiles, known: Known) -> list[str]:
    """A follower that is started to lead has what the leader had."""
    catalog = MemoryCatalog(disk, f"{DIRECTORY}/catalog", False)
    definitions = StoreRows.read(catalog.rows).definitions
    with promoted(disk, _AFTER) as store:
        report = store.recovery_report
        if report.damage or report.lost or report.unknown_files:
            return [f"recovery found {report}"]
        last = last_lsn(disk, store._backing.seed)
        found = content_of(store)
    if not definitions or not last:
        return [] if not any(found.values()) else [f"{found} out of nothing"]
    expected = known.content(last, definitions)
    return [] if found == expected else [f"at {last}, {definitions}: {found}, not {expected}"]


def last_lsn(disk: MemoryFiles, seed: int) -> int:
    """The LSN of the last whole batch on a disk."""
    found = [
        batch.lsn
        for number, content in log_files(disk).items()
        for batch in in_segment(content, scan(content, number, seed))
        if batch.is_whole()
    ]
    return max(found, default=0)


def test_every_operation_of_a_follower_that_gets_a_copy() -> None:
    recorded = record(replaced)
    assert explore(recorded, "copy", images=1) == []
    assert sum(not isinstance(event, Told) for event in recorded.events) > 100


def cut_off(group: Group) -> None:
    """A copy is cut off, and the next one as well; the leader's store has changed in between."""
    busy(group, 5)
    group.store.upkeep.checkpoint()
    assert len(group.copy(0, cut_off_behind=2)) == 2
    busy(group, 1)
    group.store.upkeep.checkpoint()
    assert len(group.copy(0, cut_off_behind=1)) == 1


def test_a_copy_goes_on_whatever_a_power_cut_has_left_of_it() -> None:
    """Files that are not on the disk are sent again, and whatever a power cut has left instead
    never counts.
    """
    group = Group.new()
    recorded = Recorded(group.follower_disk.fork())
    group.follower_disk.record = recorded.events.append
    cut_off(group)
    with promoted(group.leader_disk.fork(), _AFTER) as leader:
        expected = content_of(leader)
    disk, rng, seen = recorded.base.fork(), random.Random("cut off"), set()
    counts = set()
    for event in recorded.events:
        assert not isinstance(event, Told)
        disk.redo(event)
        for image in crash_images(disk, rng, 4):
            if image.files.digest() in seen:
                continue
            seen.add(image.files.digest())
            group.follower_disk, group.follower = image.files, None
            counts.add(len(group.copy(0)))
            group.join()
            group.kill_follower()
            with promoted(image.files, _AFTER) as store:
                assert store.recovery_report.is_clean, (event, image.description)
                assert content_of(store) == expected, (event, image.description)
    assert len(counts) > 3


def test_every_operation_of_a_follower_whose_leader_skips_segments() -> None:
    recorded = record(skips)
    assert explore(recorded, "skips", images=4) == []


def test_a_start_that_puts_a_copy_in_its_place_may_be_cut_off() -> None:
    """The process before it was killed when its decision was not durable yet."""
    recorded = record(replaced)
    disk = recorded.base.fork()
    known = Known()
    for event in recorded.events:
        if isinstance(event, Told):
            known.learn(event)
            continue
        disk.redo(event)
        if event == Rename(f"{DIRECTORY}/{NEW_REPLACEMENT}", f"{DIRECTORY}/{REPLACEMENT}"):
            start = Recorded(disk.fork())
            killed = disk.fork()
            killed.record = start.events.append
            stores.open_follower(DIRECTORY, killed, OPTIONS).abandon()
            assert explore(start, "start", images=2, known=known) == []


def test_every_operation_of_a_follower() -> None:
    recorded = record(history)
    assert explore(recorded, "follower", images=2) == []
    # Fewer would mean that the history is not what it was meant to be.
    assert sum(not isinstance(event, Told) for event in recorded.events) > 300


@pytest.mark.long
@pytest.mark.rounds(4)
def test_more_images_of_a_follower(seed: int) -> None:
    assert explore(record(history), f"follower {seed}", images=20) == []


KINDS = (
    FaultKind.EIO,
    FaultKind.ENOSPC,
    FaultKind.SHORT_WRITE,
    FaultKind.DONE_ANYWAY,
    FaultKind.LOST,
)


def calls_of_the_history() -> list[str]:
    """Every call of a follower to its disk."""
    group = Group.new()
    group.faults = Faults(-1)
    history(group)
    return group.faults.calls


def faults_left_behind(nth: int, kind: FaultKind, rng: random.Random) -> list[str]:
    """Return what is wrong after one call has failed, with any disk that a power cut then leaves,
    and with a follower that is started again.
    """
    group = Group.new()
    known = Known()
    group.tell = known.learn
    group.faults = Faults(nth, kind)
    with contextlib.suppress(StoreError, OSError):
        history(group)
    group.faults = None
    if group.follower:
        group.kill_follower()
    wrong: list[str] = []
    for image in crash_images(group.follower_disk, rng, 3):
        wrong += violations(image.files, known)
    group.join()
    busy(group, 1)
    return [*wrong, *violations(group.follower_disk.fork(), known)]


@pytest.mark.rounds(8)
def test_a_call_that_fails_loses_nothing(seed: int) -> None:
    rng = random.Random(seed)
    nth = rng.randrange(len(calls_of_the_history()))
    for kind in KINDS[:3]:
        assert faults_left_behind(nth, kind, rng) == [], (nth, kind)


@pytest.mark.long
def test_every_call_that_fails_loses_nothing() -> None:
    rng = random.Random("faults")
    for nth, call in enumerate(calls_of_the_history()):
        for kind in KINDS:
            assert faults_left_behind(nth, kind, rng) == [], (call, kind)


# What a follower may get wrong. Each is how the history is recorded; what it left is then opened by
# a follower without the bug.


def a_batch_is_acked_before_its_sync(patch: Patch) -> None:
    sync_file = MemoryFiles.sync_file

    def sync_others(self: MemoryFiles, path: str, number: int) -> None:
        if "/segments/" not in path:
            sync_file(self, path, number)

    patch.setattr(MemoryFiles, "sync_file", sync_others)


def the_entry_of_a_segment_is_not_synced(patch: Patch) -> None:
    sync_directory = MemoryFiles.sync_directory

    def sync_others(self: MemoryFiles, path: str) -> None:
        if not path.endswith("/segments"):
            sync_directory(self, path)

    patch.setattr(MemoryFiles, "sync_directory", sync_others)


def a_segment_is_renamed_before_its_sync(patch: Patch) -> None:
    patch.setattr(SegmentRewrite, "sync", lambda self: None)


def a_checkpoint_covers_what_is_not_committed(patch: Patch) -> None:
    commit = FollowerLog.commit
    patch.setattr(FollowerLog, "commit", lambda self, lsn: commit(self, 1 << 62))


def the_end_is_agreed_on_without_the_term(patch: Patch) -> None:
    find = LogReader.find

    def find_number(self: LogReader, lsn: int) -> BatchEnd | None:
        numbers = {number_of(one): one for one in self.lsns()}
        return find(self, numbers.get(number_of(lsn), lsn))

    patch.setattr(LogReader, "find", find_number)


def what_is_discarded_is_not_kept(patch: Patch) -> None:
    patch.setattr(follower_store, "copy_to", lambda *_arguments: None)


def zeros_stay_in_front_of_the_next_segment(patch: Patch) -> None:
    patch.setattr(FollowerLog, "_end_segment", lambda self, segment: None)


def noted_ends_stay_when_their_segments_go(patch: Patch) -> None:
    patch.setattr(FollowerStore, "_forget_ends", lambda self, numbers: None)


BUGS: list[Callable[[Patch], None]] = [
    a_batch_is_acked_before_its_sync,
    the_entry_of_a_segment_is_not_synced,
    a_segment_is_renamed_before_its_sync,
    a_checkpoint_covers_what_is_not_committed,
    the_end_is_agreed_on_without_the_term,
    what_is_discarded_is_not_kept,
    zeros_stay_in_front_of_the_next_segment,
    noted_ends_stay_when_their_segments_go,
]


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: str(bug.__name__))
def test_a_bug_is_caught(bug: Callable[[Patch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        bug(patch)
        try:
            recorded = record(history)
        except StoreError:
            return  # Refused at once, before anything is lost.
    assert explore(recorded, "bug", images=3) != []
