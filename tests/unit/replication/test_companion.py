"""The companion of a leader's log: nothing is complete before it is committed."""

import threading
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import trio

from amqpstore import DeposedError, DurabilityError, Message, Store
from amqpstore.catalog.catalog import Change
from amqpstore.log.batch import Batch
from amqpstore.replica import SealedBatch
from amqpstore_server.cluster.frames import Definition, ReplicaPosition, ShippedBatch
from amqpstore_server.replication.companion import LeaderCompanion
from amqpstore_server.replication.definitions import decode_changes, decode_tables
from amqpstore_server.replication.kept_segments import KeptSegments
from amqpstore_server.replication.member_log import MemberLog
from amqpstore_tools.simulation import stores
from amqpstore_tools.simulation.memory_catalog import MemoryCatalog
from amqpstore_tools.simulation.memory_files import MemoryFiles
from tests.committers import LaterDatasyncs, committer_of
from tests.replicas import DIRECTORY, LEADER_OPTIONS, NOW_MS, become_member, log_files
from tests.unit.engine.stores import ENVELOPE
from tests.waiting import WAIT_S, wait_until

TERM = 3


class Leads:
    """A state machine that ships what it is given, and never tells that it is committed."""

    def __init__(self, disk: MemoryFiles) -> None:
        self.shipped: list[ShippedBatch] = []
        self.defined: list[Definition] = []
        self.synced_seqs: list[int] = []
        self.on_disk: list[dict[int, bytes]] = []
        """Contents of the disk when each batch was shipped."""
        self.leads = True
        self._disk = disk
        self._seq = 1
        self._number = 0

    def seal(self, layout: bytes, content: bytes) -> ShippedBatch | None:
        if not self.leads:
            return None
        self._seq += 1
        self._number += 1
        position = ReplicaPosition(TERM, self._number)
        self.on_disk.append(log_files(self._disk))
        self.shipped.append(ShippedBatch(TERM, self._seq, position, 0, layout, content))
        return self.shipped[-1]

    def define(self, number: int, content: bytes) -> Definition | None:
        if not self.leads:
            return None
        self._seq += 1
        self.defined.append(Definition(TERM, self._seq, number, 0, content))
        return self.defined[-1]

    def synced(self, term: int, seq: int) -> None:
        assert term == TERM
        self.synced_seqs.append(seq)


class Led:
    """An open store with a companion."""

    def __init__(self, place: str) -> None:
        self.disk = stores.new_disk(DIRECTORY)
        stores.open_store(DIRECTORY, self.disk, LEADER_OPTIONS).close()
        become_member(self.disk, "1" * 16, TERM)
        self.leads = Leads(self.disk)
        self.log = MemberLog(self.disk, DIRECTORY, 0, KeptSegments(place, 1 << 30))
        self.companion = LeaderCompanion(self.leads, self.log, DIRECTORY, TERM)
        self.store = Store.open(
            DIRECTORY,
            files=self.disk,
            open_catalog=stores.catalog_opener(self.disk),
            options=LEADER_OPTIONS,
            term=TERM,
            companion=self.companion,
        )

    def sealed(self, body: bytes) -> Batch:
        """A batch with one message."""
        queues = list(self.store.queues.values()) or [self.store.create_queue("orders")]
        self.store.publish(queues, [Message(ENVELOPE, body)])
        batch = self.store.log.seal(NOW_MS)
        assert batch is not None
        return batch

    def write(self, body: bytes) -> None:
        """Have a message written, and committed."""
        happened = self.publish(body)
        wait_until(lambda: self.companion.is_waiting)
        self.companion.committed(self.leads.shipped[-1].seq)
        wait_until(lambda: happened == ["complete"])
        batch = self.store.log.under_way
        assert batch is not None
        self.store.log.complete(batch)

    def publish(self, body: bytes) -> list[str]:
        """Have a message written in a thread, and return what happened in the end."""
        happened: list[str] = []
        batch = self.sealed(body)

        def write() -> None:
            try:
                self.store.log.write(batch)
                self.store.log.is_committed(batch, wait=True)
                happened.append("complete")
            except DurabilityError as error:
                happened.append(type(error).__name__)

        threading.Thread(target=write).start()
        return happened


@pytest.fixture
def led(tmp_path: Path) -> Generator[Led]:
    one = Led(str(tmp_path))
    yield one
    one.companion.depose("the test is over")
    one.store.abandon()


def test_a_batch_is_shipped_first_written_then_and_complete_last(led: Led) -> None:
    happened = led.publish(b"one")
    wait_until(lambda: bool(led.leads.synced_seqs))
    (shipped,) = led.leads.shipped
    assert led.leads.synced_seqs == [shipped.seq]
    assert led.leads.on_disk == [{}]
    assert log_files(led.disk) == {1: shipped.content}
    sealed = SealedBatch.of_layout(shipped.layout, shipped.content)
    assert led.log.last().lsn == sealed.lsn
    led.companion.committed(shipped.seq - 1)
    assert led.companion.is_waiting
    assert not happened
    led.companion.committed(shipped.seq)
    wait_until(lambda: happened == ["complete"])


def test_a_small_batch_that_no_thread_writes_waits_for_the_followers_as_well(led: Led) -> None:
    led.write(b"one")  # it starts the segment
    told: list[str] = []
    led.store.log.on_committed(lambda: told.append("committed"))
    ends: list[bool] = []
    datasyncs = LaterDatasyncs(lambda: bool(ends))
    log, batch = led.store.log, led.sealed(b"two")
    assert log.start_write(batch, datasyncs)
    shipped = led.leads.shipped[-1]
    assert led.leads.on_disk[-1] == {1: led.leads.shipped[0].content}
    assert not log.finish_write(batch, datasyncs)
    assert shipped.seq not in led.leads.synced_seqs
    ends.append(True)
    for _ in range(2):
        assert not log.finish_write(batch, datasyncs)
    assert led.leads.synced_seqs[-1:] == [shipped.seq]
    assert led.companion.is_waiting
    led.companion.committed(shipped.seq)
    assert told == ["committed"]
    assert log.finish_write(batch, datasyncs)


def test_only_who_has_asked_in_vain_is_told_that_a_batch_is_committed(led: Led) -> None:
    """Each call wakes the event loop, which may have nothing else to do."""
    led.write(b"one")
    wake_ups: list[str] = []
    log = led.store.log
    log.on_committed(lambda: wake_ups.append("committed"))
    for is_acked_first in (True, False):
        wake_ups.clear()
        batch = led.sealed(b"two")
        log.write(batch)
        seq = led.leads.shipped[-1].seq
        if is_acked_first:
            led.companion.committed(seq)
            assert log.is_committed(batch)
            assert not wake_ups
        else:
            assert not log.is_committed(batch)
            led.companion.committed(seq - 1)
            assert not wake_ups
            led.companion.committed(seq)
            assert wake_ups == ["committed"]
            assert log.is_committed(batch)
        led.companion.committed(seq)
        assert wake_ups == ["committed"] * (not is_acked_first)
        log.complete(batch)


def test_a_sync_waits_for_the_followers_as_well(led: Led) -> None:
    led.store.publish([led.store.create_queue("orders")], [Message(ENVELOPE, b"one")])
    told: list[str] = []
    led.store.log.when_durable(lambda: told.append("durable"))
    thread = threading.Thread(target=led.store.sync)
    thread.start()
    wait_until(lambda: led.companion.is_waiting)
    assert not told
    led.companion.committed(led.leads.shipped[-1].seq)
    thread.join()
    assert told == ["durable"]


class Committing:
    """A committer of a leader, whose batches its thread writes."""

    def __init__(self, led: Led) -> None:
        self.told: list[str] = []
        self.turns = 0
        """How often the owner of the store was woken."""
        self._led = led
        self.committer = committer_of(led.store)
        complete = self.committer.complete_written

        def complete_written() -> None:
            self.turns += 1
            complete()

        self.committer.complete_written = complete_written  # type: ignore[method-assign]

    def commit(self) -> None:
        """Hand over a batch with one message."""
        led = self._led
        queues = list(led.store.queues.values()) or [led.store.create_queue("orders")]
        led.store.publish(queues, [Message(ENVELOPE, b"one")])
        led.store.log.when_durable(lambda: self.told.append("durable"))
        self.committer.commit()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the owner of the store do what it was woken for, until something holds."""
        with trio.fail_after(WAIT_S):
            while not condition():
                await trio.sleep(0.001)


def test_the_thread_that_writes_waits_for_no_follower(led: Led) -> None:
    """A commit of the batch wakes its owner, and nothing does before: the thread would only be
    woken to wake the owner.
    """

    async def run() -> None:
        committing = Committing(led)
        for number in range(3):
            committing.commit()
            await committing.until(lambda: led.companion.is_waiting)
            # The thread has asked whether it is committed, and waits for the next batch.
            await committing.until(lambda: led.companion._awaited > 0)
            assert (committing.turns, len(committing.told)) == (number, number)
            led.companion.committed(led.leads.shipped[-1].seq)
            await committing.until(lambda: led.store.log.is_idle)
            assert (committing.turns, len(committing.told)) == (number + 1, number + 1)
        committing.committer.stop()

    trio.run(run)


def test_a_batch_that_followers_had_first_is_complete_once_it_is_written(
    led: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = led.leads.synced

    def ack_first(term: int, seq: int) -> None:
        led.companion.committed(seq)
        synced(term, seq)

    monkeypatch.setattr(led.leads, "synced", ack_first)

    async def run() -> None:
        committing = Committing(led)
        committing.commit()
        await committing.until(lambda: bool(committing.told))
        assert committing.turns == 1
        committing.committer.stop()

    trio.run(run)


@pytest.mark.parametrize("is_written", [True, False])
def test_a_flush_waits_for_the_followers(led: Led, *, is_written: bool) -> None:
    async def run() -> None:
        committing = Committing(led)
        committing.commit()
        if is_written:
            await committing.until(lambda: led.companion._awaited > 0)
            committing.committer.complete_written()
            assert not committing.told
        acked = threading.Thread(target=ack_once_it_waits, args=(led.companion, led.leads))
        acked.start()
        committing.committer.flush()
        acked.join()
        assert committing.told == ["durable"]
        committing.committer.stop()

    trio.run(run)


def ack_once_it_waits(companion: LeaderCompanion, leads: Leads) -> None:
    wait_until(lambda: companion.is_waiting)
    companion.committed(leads.shipped[-1].seq)


@pytest.mark.parametrize("is_written", [True, False])
def test_a_committer_ends_once_another_member_may_lead(led: Led, *, is_written: bool) -> None:
    async def run() -> None:
        committing = Committing(led)
        committing.commit()
        if is_written:
            await committing.until(lambda: led.companion._awaited > 0)
        led.companion.depose("term 4 has begun")
        with pytest.raises(DeposedError, match="term 4 has begun"), trio.fail_after(WAIT_S):
            await committing.committer.watch()
        assert not committing.told
        committing.committer.close()

    trio.run(run)


def test_a_small_batch_is_not_complete_once_another_member_may_lead(led: Led) -> None:
    led.write(b"one")
    told: list[str] = []
    led.store.log.on_committed(lambda: told.append("deposed"))
    datasyncs = LaterDatasyncs()
    log, batch = led.store.log, led.sealed(b"two")
    assert log.start_write(batch, datasyncs)
    assert not log.finish_write(batch, datasyncs)
    led.companion.depose("term 4 has begun")
    assert told == ["deposed"]
    with pytest.raises(DeposedError, match="term 4 has begun"):
        log.finish_write(batch, datasyncs)
    with pytest.raises(DeposedError):
        log.seal(NOW_MS)


def test_nothing_is_complete_once_another_member_may_lead(led: Led) -> None:
    happened = led.publish(b"one")
    wait_until(lambda: led.companion.is_waiting)
    led.companion.depose("term 4 has begun")
    wait_until(lambda: happened == ["DeposedError"])
    with pytest.raises(DeposedError, match="term 4 has begun"):
        led.store.log.seal(NOW_MS)


def test_a_leader_that_was_deposed_writes_nothing_more(led: Led) -> None:
    led.store.create_queue("orders")
    led.leads.leads = False
    happened = led.publish(b"one")
    wait_until(lambda: happened == ["DeposedError"])
    assert log_files(led.disk) == {}
    with pytest.raises(DeposedError):
        raise led.store.failure or AssertionError


def test_definitions_are_shipped_in_order_and_waited_for(led: Led) -> None:
    told: list[str] = []
    led.store.create_queue("orders")
    led.store.definitions.define([Change("vhosts", "/", {"a": 1})])
    assert [one.number for one in led.leads.defined] == [2, 3]
    assert decode_changes(led.leads.defined[1].content) == [Change("vhosts", "/", {"a": 1})]
    led.companion.committed(led.leads.defined[0].seq)
    led.companion.when_defined(lambda: told.append("both"))
    led.companion.call_settled()
    assert not told
    settled = threading.Event()
    led.companion.on_settled = settled.set
    led.companion.committed(led.leads.defined[1].seq)
    assert settled.is_set()
    led.companion.call_settled()
    led.companion.when_defined(lambda: told.append("at once"))
    assert told == ["both", "at once"]


def test_what_is_a_members_own_is_not_shipped(led: Led) -> None:
    led.write(b"one")
    led.store.upkeep.checkpoint()
    (queue,) = led.leads.defined
    assert {one.table for one in decode_changes(queue.content)} == {"store", "queues"}


def test_a_store_without_definitions_has_a_snapshot_that_followers_can_store(led: Led) -> None:
    assert led.companion.snapshot().number == 1


def test_a_snapshot_has_all_that_was_shipped_under_its_number(led: Led) -> None:
    led.store.create_queue("orders")
    led.store.definitions.define([Change("vhosts", "/", {"a": 1})])
    snapshot = led.companion.snapshot()
    found = decode_tables(snapshot.content)
    assert snapshot.number == 3
    assert list(found.tables["queues"].values()) == ["orders"]
    assert found.tables["vhosts"] == {"/": {"a": 1}}
    assert found.next_queue_id == led.store.next_queue_id
    catalog = MemoryCatalog(led.disk, f"{DIRECTORY}/catalog", False)
    assert catalog.rows("vhosts") == found.tables["vhosts"]
