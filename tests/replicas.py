"""A leader and its follower, each on a simulated disk, in one thread: the base of the followers'
tests.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from crc32c import crc32c

from amqpstore import Message, Options, Queue, Run, Store
from amqpstore.catalog.catalog import Change, Value
from amqpstore.catalog.tables import StoreRows
from amqpstore.identity import marker
from amqpstore.replica import (
    CopySource,
    FollowerStore,
    LogReader,
    Membership,
    SealedBatch,
    WholeCopy,
    create_follower,
    log_ends,
    write_membership,
)
from amqpstore.replica.follower_store import SHIPPED
from amqpstore.system.filenames import is_compacted, segment_number, segment_path
from amqpstore_tools.simulation import stores
from amqpstore_tools.simulation.faulty_files import Faults
from amqpstore_tools.simulation.memory_catalog import MemoryCatalog
from amqpstore_tools.simulation.memory_files import MemoryFiles
from tests.small_limits import small_limits
from tests.unit.engine.stores import ENVELOPE

DIRECTORY = "/var/store"
OPTIONS = Options(
    segment_bytes=3000,
    memory_bytes=8000,
    checkpoint_bytes=1000,
    checkpoint_ms=1 << 60,
    least_free_bytes=0,
    reserve_bytes=0,
    limits=small_limits(entries_a_file=6, max_runs=2),
)
LEADER_OPTIONS = OPTIONS._replace(segment_bytes=1500, checkpoint_bytes=1 << 60)
"""Options that keep a leader's log from the start, so that a follower can be compared with it, and
catch up. A leader begins another segment before the follower would.
"""

NOW_MS = 1_700_000_000_000

Content = dict[int, list[tuple[int, bytes, bool]]]
"""The ready messages of each queue, by id: sequence, body, and whether it was delivered before."""


class Sealed(NamedTuple):
    """A leader has sealed a batch, and has it on its disk."""

    batch: SealedBatch
    disk: MemoryFiles


class Defined(NamedTuple):
    """A leader has definitions of this number, with these queues, and sends them now."""

    number: int
    queue_ids: set[int]


class Acked(NamedTuple):
    """The follower has told that it has all batches up to this one."""

    lsn: int


class Committed(NamedTuple):
    """The follower is told that all batches up to this one are committed."""

    lsn: int


class Resumed(NamedTuple):
    """The follower is told to discard its batches behind this one."""

    lsn: int


Told = Sealed | Defined | Acked | Committed | Resumed


def content_of(store: Store) -> Content:
    """Return everything that is ready."""
    found: Content = {}
    for queue in store.queues.values():
        of_queue = found.setdefault(queue.id, [])
        while run := store.take(queue, limit=1000):
            assert isinstance(run, Run)
            assert run.messages is not None
            of_queue += [
                (run.first_sequence + place, message.body, bool(run.delivery_count))
                for place, message in enumerate(run.messages)
            ]
    return found


def tables_of(catalog: MemoryCatalog) -> dict[str, dict[str, Value]]:
    """Return the rows that a leader sends."""
    return {table: catalog.rows(table) for table in SHIPPED}


def become_member(disk: MemoryFiles, member: str, term: int) -> None:
    """Turn a store on a disk into a member's, which has heard of a term."""
    write_membership(disk, DIRECTORY, Membership(member))
    put_term(disk, term)


def put_term(disk: MemoryFiles, term: int) -> None:
    """Have a member that is not running hear of a term."""
    catalog = MemoryCatalog(disk, f"{DIRECTORY}/catalog", False)
    catalog.commit(StoreRows(term=term).changes())
    catalog.close()


def promoted(disk: MemoryFiles, term: int, options: Options = OPTIONS) -> Store:
    """Return the store on a disk, opened to lead a term."""
    put_term(disk, term)
    return stores.open_store(DIRECTORY, disk, options, term=term)


def log_files(disk: MemoryFiles) -> dict[int, bytes]:
    """Return the content of the log's segments on a disk, by number."""
    names = disk.list_directory(f"{DIRECTORY}/segments")
    numbers = [number for name in names if (number := segment_number(name))]
    return {
        number: disk.content(segment_path(DIRECTORY, number))
        for number in numbers
        if not is_compacted(number)
    }


@dataclass
class Group:
    """A leader in `store`, and a `follower`: `batch` number, or definitions, go to both at once.

    `tell` is called with what the outside learns, or relies on.
    """

    leader_disk: MemoryFiles
    follower_disk: MemoryFiles
    term: int = 1
    options: Options = OPTIONS
    store: Store = field(init=False)
    follower: FollowerStore | None = field(init=False, default=None)
    tell: Callable[[Told], None] = field(default=lambda _told: None)
    faults: Faults | None = None
    """Faults of the follower's files and catalog."""
    committed: int = 0
    definitions: int = 0
    _defined: dict[str, dict[str, Value]] = field(init=False)

    @classmethod
    def new(cls, options: Options = OPTIONS) -> Group:
        """Return a leader without a message, and an empty follower that is not connected."""
        disks = stores.new_disk(DIRECTORY), stores.new_disk(DIRECTORY)
        stores.open_store(DIRECTORY, disks[0], LEADER_OPTIONS).close()
        become_member(disks[0], "1" * 16, 1)
        found = marker.read(disks[0], DIRECTORY)
        assert found is not None
        create(disks[1], found.store_id)
        group = cls(*disks, options=options)
        group.lead()
        return group

    def lead(self) -> None:
        """Have the leader's store opened."""
        disk = self.leader_disk
        self.store = stores.open_store(DIRECTORY, disk, LEADER_OPTIONS, term=self.term)
        self._defined = self._tables()
        last = self.reader().end().lsn
        self.committed = last

    def _tables(self) -> dict[str, dict[str, Value]]:
        return {table: self.store._catalog.rows(table) for table in SHIPPED}

    def reader(self) -> LogReader:
        """Return a reader of the leader's log, as far as it is durable."""
        seed = self.store._backing.seed
        return LogReader(self.leader_disk, DIRECTORY, seed, log_ends(self.store.log))

    # The follower.

    def start_follower(self) -> FollowerStore:
        """Open the follower, which hears of nothing yet."""
        self.follower = stores.open_follower(
            DIRECTORY, self.follower_disk, self.options, faults=self.faults
        )
        return self.follower

    def join(self, *, is_defined: bool = True) -> None:
        """Connect the follower, which may be running, and bring it up to date. Args: is_defined,
        whether it hears that the definitions are committed.
        """
        follower = self.follower or self.start_follower()
        follower.adopt_term(self.term)
        self.replace_definitions()
        reader = self.reader()
        common = next((lsn for lsn in follower.lsns() if reader.find(lsn)), 0)
        self.tell(Resumed(common))
        rewrite = follower.resume(common)
        place = reader.find(common)
        assert place is not None
        for number in reader.segments_from(max(place.segment, 1)):
            if number != rewrite.number:
                follower.adopt(rewrite)
                rewrite = follower.next_segment(number)
            offset = rewrite.size
            while piece := reader.read(number, offset, 700):
                rewrite.append(piece)
                offset += len(piece)
        follower.adopt(rewrite)
        self.tell(Committed(self.committed))
        follower.commit(self.committed, self.definitions - (not is_defined))
        self.tell(Acked(follower.last.lsn))

    def copy(self, common: int, *, cut_off_behind: int | None = None) -> list[str]:
        """Send the follower a copy of the leader's store, which replaces its own: all files that it
        has not received already. Returns the names of the files sent.

        Args: common, the LSN of the last batch that both have; cut_off_behind, the number of files
        after which the follower is killed (at the end if there are fewer), None for never.
        """
        follower = self.follower or self.start_follower()
        follower.adopt_term(self.term)
        self.definitions += 1
        ends = [one.end for one in self.reader().tail()]
        source = CopySource.of(self.store._catalog.rows, self.definitions, ends)
        self.tell(Defined(self.definitions, set(map(int, source.tables["queues"]))))
        received = {name: file for name, *file in follower.received()}
        replacement = follower.replacement()
        sizes = {}
        sent: list[str] = []
        for name, size in source.sizes.items():
            content = self.leader_disk.content(f"{DIRECTORY}/{name}")[:size]
            sizes[name] = len(content)
            if received.get(name) == [len(content), crc32c(content)]:
                replacement.take_over(name, len(content))
                continue
            if len(sent) == cut_off_behind:
                replacement.append(name, 0, content[: len(content) // 2])
                self.kill_follower()
                return sent
            for offset in range(0, len(content), 1000):
                replacement.append(name, offset, content[offset : offset + 1000])
            sent.append(name)
        if cut_off_behind is not None:
            self.kill_follower()
            return sent
        copy = WholeCopy.decode(source.copy(sizes).encode())
        self.tell(Committed(self.committed))
        self.tell(Resumed(common))
        follower.replace(replacement, copy, common)
        self.start_follower()
        return sent

    def replace_definitions(self) -> None:
        """Send the follower all definitions."""
        assert self.follower is not None
        next_queue_id = StoreRows.read(self.store._catalog.rows).next_queue_id or 1
        self.definitions += 1
        self._defined = self._tables()
        self.tell(Defined(self.definitions, set(map(int, self._defined["queues"]))))
        self.follower.replace_definitions(self.definitions, next_queue_id, self._defined)

    def kill_follower(self) -> None:
        """End the follower's process."""
        assert self.follower is not None
        self.follower.abandon()
        self.follower = None

    # What both do.

    def define(self) -> None:
        """Send what was defined since the last time."""
        tables = self._tables()
        changes = [
            Change(table, key, tables[table].get(key))
            for table in SHIPPED
            for key in sorted({*tables[table], *self._defined[table]})
            if tables[table].get(key) != self._defined[table].get(key)
        ]
        self._defined = tables
        if changes and self.follower:
            next_queue_id = StoreRows.read(self.store._catalog.rows).next_queue_id
            changes += StoreRows(next_queue_id=next_queue_id).changes()
            self.definitions += 1
            self.tell(Defined(self.definitions, set(map(int, tables["queues"]))))
            self.follower.define(self.definitions, changes)

    def seal(self) -> SealedBatch | None:
        """Seal the leader's open batch, and write it to its disk alone: it stays uncommitted."""
        self.define()
        batch = self.store.log.seal(NOW_MS)
        if batch is None:
            return None
        self.store.log.write(batch)
        sealed = SealedBatch.of(batch)
        sealed = SealedBatch.of_layout(sealed.layout(), sealed.content)
        self.store.log.complete(batch)
        self.tell(Sealed(sealed, self.leader_disk.fork()))
        return sealed

    def sync(self) -> None:
        """Make what was done since the last time durable on both, and committed."""
        sealed = self.seal()
        if sealed and self.follower:
            self.follower.append(sealed)
            self.tell(Acked(sealed.lsn))
        if sealed:
            self.committed = sealed.lsn
        if self.follower:
            self.tell(Committed(self.committed))
            self.follower.commit(self.committed, self.definitions)
            self.follower.housekeep()

    def lose_leader(self, *bodies: bytes) -> None:
        """Have a leader of the next term that lacks a batch which the follower has acked, and which
        was never committed.
        """
        assert self.follower is not None
        fork = self.leader_disk.fork()
        self.publish(["orders", "slow"], *bodies)
        sealed = self.seal()
        assert sealed is not None
        self.follower.append(sealed)
        self.tell(Acked(sealed.lsn))
        self.follower.commit(self.committed, self.definitions)
        self.follower.checkpoint()
        self._go_on(fork)

    def _go_on(self, leader_disk: MemoryFiles) -> None:
        """Have the member with this disk lead the next term."""
        self.store.abandon()
        self.leader_disk = leader_disk
        self.term += 1
        put_term(leader_disk, self.term)
        self.lead()

    def kill_leader_in_new_segment(self) -> None:
        """Have the leader killed when it has created a segment and written nothing to it, and lead
        the next term.
        """
        self.store.abandon()
        disk = self.leader_disk
        last = max(log_files(disk))
        # The leader has cut off the zeros at the end of the segment before it.
        path = segment_path(DIRECTORY, last)
        disk.replace(path, disk.content(path).rstrip(b"\0"))
        disk.create(segment_path(DIRECTORY, last + 1)).close()
        disk.sync_directory(f"{DIRECTORY}/segments")
        self._go_on(disk)

    def lead_for_a_while(self, *bodies: bytes) -> None:
        """Have the follower lead two terms, and write a batch that no other member gets."""
        self.kill_follower()
        self.term += 1
        store = promoted(self.follower_disk, self.term)
        queue = next(queue for queue in store.queues.values() if queue.definition == "orders")
        store.publish([queue], [Message(ENVELOPE, body) for body in bodies])
        batch = store.log.seal(NOW_MS)
        assert batch is not None
        sealed = SealedBatch.of(batch)
        fork = self.follower_disk.fork()
        fork.create(segment_path(DIRECTORY, sealed.segment)).append([sealed.content])
        self.tell(Sealed(sealed, fork))
        store.log.write(batch)
        store.abandon()
        self.tell(Acked(sealed.lsn))
        # The follower, elected once more, notes where its own segment ends.
        self.term += 1
        promoted(self.follower_disk, self.term).abandon()
        self._go_on(self.leader_disk.fork())

    def queue(self, name: str) -> Queue:
        """Return the leader's queue of this name, which is created if there is none."""
        for queue in self.store.queues.values():
            if queue.definition == name:
                return queue
        return self.store.create_queue(name)

    def publish(self, names: Iterable[str], *bodies: bytes) -> None:
        """Publish persistent messages to queues."""
        queues = [self.queue(name) for name in names]
        self.store.publish(queues, [Message(ENVELOPE, body) for body in bodies])

    def take(self, name: str, count: int) -> None:
        """Deliver and ack messages of a queue."""
        queue = self.queue(name)
        run = self.store.take(queue, limit=count)
        assert isinstance(run, Run)
        self.store.ack(queue, run)


def busy(group: Group, rounds: int = 6) -> None:
    """Publish to three queues, two of which are emptied, over several segments."""
    for number in range(rounds):
        group.publish(["orders", "audit"], b"%d" % number, bytes(300))
        group.publish(["slow"], b"slow %d" % number)
        group.sync()
        group.take("orders", 2)
        group.take("audit", 2)
        group.sync()


def create(disk: MemoryFiles, store_id: uuid.UUID) -> None:
    """Turn a disk into a new member's."""
    create_follower(
        DIRECTORY,
        store_id,
        Membership("2" * 16),
        files=disk,
        open_catalog=stores.catalog_opener(disk),
    )
