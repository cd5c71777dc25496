"""The power of a leader is cut at each operation while it writes small batches, which the kernel
syncs in the background while a follower takes them: nothing that was confirmed is lost, whichever
member leads then, and both have the same log in the end.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from amqpstore_server.replication.companion import LeaderCompanion
from amqpstore_tools.simulation.crash_images import Image, crash_images
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.operations import Operation
from tests.committers import LaterDatasyncs
from tests.pairs import Pair, pair_of
from tests.replicas import OPTIONS, Group, busy, content_of, log_files, promoted, put_term

Patch = pytest.MonkeyPatch
Order = tuple[str, str, str]

SMALL_SEGMENTS = OPTIONS._replace(segment_bytes=4000)
_AFTER = 50
"""A term after the history's."""

SYNC, TAKE, HEAR = "the kernel has synced", "the follower takes it", "the leader hears its ack"
ORDERS = ((SYNC, TAKE, HEAR), (TAKE, SYNC, HEAR), (TAKE, HEAR, SYNC))
SIZES = (20, 300, 900, 0)


Event = tuple[int, Operation] | None
"""An operation of the leader (0) or the follower (1); None: one message more is confirmed."""


@dataclass
class Cut:
    """The disks of leader and follower when the power is cut, and how many messages were confirmed
    until then. `event` has just happened: see `Recorded`.
    """

    disks: tuple[MemoryFiles, MemoryFiles]
    confirmed: int
    event: Event


@dataclass
class Recorded:
    """The operations of both on their disks, from `bases` on, and when each message was
    confirmed.
    """

    bases: tuple[MemoryFiles, MemoryFiles]
    bodies: list[bytes] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    orders: set[Order] = field(default_factory=set)
    """The orders in which small batches were written."""

    def cuts(self) -> Iterator[Cut]:
        """Yield the moments behind each event."""
        disks = self.bases[0].fork(), self.bases[1].fork()
        confirmed = 0
        for event in self.events:
            if event is None:
                confirmed += 1
            else:
                member, operation = event
                disks[member].redo(operation)
            yield Cut(disks, confirmed, event)


class History:
    """Publishes messages one by one, each a batch, and has each confirmed."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._has_synced = True
        pair.datasyncs = LaterDatasyncs(lambda: self._has_synced)
        disks = pair.leader.disk, pair.follower.disk
        self.recorded = Recorded((disks[0].fork(), disks[1].fork()))
        for member, disk in enumerate(disks):
            disk.record = partial(self._note, member)

    def _note(self, member: int, operation: Operation) -> None:
        self.recorded.events.append((member, operation))

    def publish(self, body: bytes, order: Order) -> None:
        """Have a message written here and there. Args: order, in which that happens."""
        pair, log, datasyncs = self._pair, self._pair.store.log, self._pair.datasyncs
        self.recorded.bodies.append(body)
        batch = pair.seal(body, lambda: self.recorded.events.append(None))
        if not batch.is_small:
            # As in the committer's thread; its owner hears of the follower later.
            log._write(log._to_write(batch), batch)
            companion = log._companion
            assert companion is not None
            if not companion.is_committed(batch):
                pair.exchange()
                assert companion.is_committed(batch)
            log.complete(batch)
            pair.exchange()
            return
        self.recorded.orders.add(order)
        self._has_synced = False
        assert log.start_write(batch, datasyncs)
        is_done = False
        for step in order:
            if step == SYNC:
                self._has_synced = True
            elif step == TAKE:
                assert pair.follower.read()
                pair.follower.carry_out()
            else:
                assert pair.leader.read()
            is_done = is_done or log.finish_write(batch, datasyncs)
            if is_done and log.under_way:
                log.complete(batch)
        assert is_done
        # What is said of that batch only for the follower's own sake.
        pair.exchange()


def record(place: Path, count: int, rng: random.Random | None = None) -> Recorded:
    """Record a history of `count` messages. Args: rng, which draws the orders."""
    with pair_of(place, SMALL_SEGMENTS) as pair:
        history = History(pair)
        for number in range(count):
            order = rng.choice(ORDERS) if rng else ORDERS[number % len(ORDERS)]
            size = rng.choice(SIZES) if rng else SIZES[number // 2 % len(SIZES)]
            history.publish(b"%d " % number + bytes(size), order)
        return history.recorded


def bodies_of(disk: MemoryFiles) -> list[bytes]:
    """All messages that a member with this disk would lead with."""
    with promoted(disk.fork(), _AFTER) as store:
        report = store.recovery_report
        assert not report.damage, report
        assert not report.lost, report
        (found,) = content_of(store).values()
    return [body for _, body, _ in found]


def violations(images: tuple[Image, Image], recorded: Recorded, confirmed: int) -> list[str]:
    """Return what is wrong with what a power cut has left of both members, or of one of them."""
    wrong = []
    for name, image in zip(("leader", "follower"), images, strict=True):
        found = bodies_of(image.files)
        if found != recorded.bodies[: len(found)]:
            wrong.append(f"the {name} has {found}")
        if len(found) < confirmed:
            wrong.append(f"the {name} has {len(found)} messages, {confirmed} were confirmed")
    return wrong


def rejoined(images: tuple[Image, Image]) -> list[str]:
    """Return what is wrong once either has led the other, which may have more batches than its
    leader, or fewer.
    """
    wrong = []
    for ahead, behind in (images, images[::-1]):
        group = Group(ahead.files.fork(), behind.files.fork(), _AFTER)
        put_term(group.leader_disk, _AFTER)
        group.lead()
        group.join()
        busy(group, 1)
        assert group.follower is not None
        group.kill_follower()
        group.store.abandon()
        contents = []
        for disk in (group.leader_disk, group.follower_disk):
            with promoted(disk.fork(), _AFTER + 1) as store:
                contents.append(content_of(store))
        if contents[0] != contents[1]:
            wrong.append(f"they differ once they are together again: {contents}")
    return wrong


def explore(recorded: Recorded, seed: str, images: int) -> list[str]:
    """Return what is wrong with what a cut at any operation may leave: of the leader alone, and of
    both members at once.
    """
    rng = random.Random(seed)
    wrong: list[str] = []
    for number, cut in enumerate(recorded.cuts()):
        alive = Image(cut.disks[1].fork(), "it goes on")
        killed = Image(cut.disks[0].fork(), "killed")
        of_leader = [*crash_images(cut.disks[0], rng, images)]
        of_follower = [alive, *crash_images(cut.disks[1], rng, images)]
        pairs = [(one, rng.choice(of_follower)) for one in of_leader]
        if cut.event and cut.event[0]:
            pairs = [(rng.choice(of_leader), one) for one in of_follower]
        pairs.append((killed, alive))
        # Joining takes as long as everything else, so only one of the pairs joins.
        together = rng.choice(pairs)
        for pair in pairs:
            faults = violations(pair, recorded, cut.confirmed)
            if pair is together and not faults:
                faults = rejoined(pair)
            wrong += [
                f"{one} [{number}: {cut.event}; {pair[0].description}; {pair[1].description}]"
                for one in faults
            ]
        if wrong:
            break
    return wrong


def test_a_leader_s_power_is_cut_at_each_write_of_small_batches(tmp_path: Path) -> None:
    recorded = record(tmp_path, 14)
    assert explore(recorded, "small batches", images=1) == []
    assert len(log_files(recorded.bases[0])) < len(segments_of(recorded))
    assert sum(event is None for event in recorded.events) == 14
    assert recorded.orders == {*ORDERS}


def segments_of(recorded: Recorded) -> dict[int, bytes]:
    """The segments of the leader in the end."""
    (*_, last) = recorded.cuts()
    return log_files(last.disks[0])


@pytest.mark.long
@pytest.mark.rounds(4)
def test_more_orders_and_images(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    assert explore(record(tmp_path, 20, rng), f"small batches {seed}", images=3) == []


# What a leader or a follower may get wrong. Each is how the history is recorded.


def the_kernel_syncs_nothing(patch: Patch) -> None:
    patch.setattr(LaterDatasyncs, "is_done", lambda self, *, wait=False: self._forget())
    patch.setattr(LaterDatasyncs, "_forget", forget, raising=False)


def forget(datasyncs: LaterDatasyncs) -> bool:
    """Say that a file was synced that was not."""
    datasyncs._file = None
    return True


def it_is_confirmed_before_the_follower_has_it(patch: Patch) -> None:
    patch.setattr(LeaderCompanion, "is_committed", lambda *_, **__: True)


def it_is_confirmed_before_it_is_synced_here(patch: Patch) -> None:
    patch.setattr(LaterDatasyncs, "is_done", lambda *_, **__: True)
    patch.setattr(LaterDatasyncs, "start", lambda *_: True)


def the_follower_acks_before_its_sync(patch: Patch) -> None:
    sync_file = MemoryFiles.sync_file
    leader: list[MemoryFiles] = []

    def sync_of_leader(self: MemoryFiles, path: str, number: int) -> None:
        if "/segments/" not in path or self in leader:
            sync_file(self, path, number)

    patch.setattr(MemoryFiles, "sync_file", sync_of_leader)
    begin = History.__init__

    def begin_with(self: History, pair: Pair) -> None:
        leader.append(pair.leader.disk)
        begin(self, pair)

    patch.setattr(History, "__init__", begin_with)


def the_entry_of_a_segment_is_not_synced(patch: Patch) -> None:
    sync_directory = MemoryFiles.sync_directory

    def sync_others(self: MemoryFiles, path: str) -> None:
        if not path.endswith("/segments"):
            sync_directory(self, path)

    patch.setattr(MemoryFiles, "sync_directory", sync_others)


BUGS: list[Callable[[Patch], None]] = [
    the_kernel_syncs_nothing,
    it_is_confirmed_before_the_follower_has_it,
    it_is_confirmed_before_it_is_synced_here,
    the_follower_acks_before_its_sync,
    the_entry_of_a_segment_is_not_synced,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: str(bug.__name__))
def test_a_bug_is_caught(bug: Callable[[Patch], None], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        bug(patch)
        recorded = record(tmp_path, 12)
    assert explore(recorded, "bug", images=2) != []
