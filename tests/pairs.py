"""Two controllers with their stores, links and state machines, on disks in memory, without a
thread: a test does what their threads do.
"""

import select
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import inf
from pathlib import Path

import pytest

from amqpstore import Message, Options, Store
from amqpstore.log.batch import Batch
from amqpstore.replica import FollowerStore, Membership
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_server.cluster.frame_tags import FrameTags
from amqpstore_server.cluster.frames import PROTOCOL
from amqpstore_server.cluster.keys import (
    GROUP,
    IN_SYNC,
    LEADER,
    SECRET,
    STATE,
    EtcdRow,
    MemberIdentity,
    View,
    generation_key,
    member_key,
)
from amqpstore_server.cluster.tenure import Leadership
from amqpstore_server.cluster.timing import Health, Timing
from amqpstore_server.etcd.client import EtcdClient
from amqpstore_server.etcd.identity import EtcdIdentity
from amqpstore_server.etcd.settings import EtcdSettings
from amqpstore_server.replication.controller import Controller
from amqpstore_server.replication.handshake import PeerSession, Purpose
from amqpstore_server.replication.kept_segments import KeptSegments
from amqpstore_server.replication.links import Link
from amqpstore_server.replication.member_file import MemberFile
from amqpstore_server.replication.member_log import MemberLog
from amqpstore_server.replication.settings import ClusterSettings
from amqpstore_tools.simulation import stores
from amqpstore_tools.simulation.memory_files import MemoryFiles
from tests.committers import LaterDatasyncs
from tests.replicas import DIRECTORY, NOW_MS, Group
from tests.unit.engine.stores import ENVELOPE

TERM = 1
OPTIONS = Options(least_free_bytes=0, reserve_bytes=0)
BY_LEADER, BY_FOLLOWER = b"l" * 32, b"f" * 32
"""The keys of what they send each other."""


def view(store_id: str) -> View:
    """A leads, and both are in sync."""
    values: dict[str, dict[str, object]] = {
        GROUP: {"store_id": store_id, "protocol": PROTOCOL, "min_in_sync": 2},
        SECRET: {"secret": "00" * 32},
        STATE: {"term": TERM, "leader": "A"},
        IN_SYNC: {"members": ["A", "B"]},
        LEADER: {
            "member": "A",
            "incarnation": "A1",
            "term": TERM,
            "request": "1",
            "replicate": "127.0.0.1:1",
        },
        member_key("A"): {"sync": True},
        member_key("B"): {"sync": True},
        generation_key("A"): {"number": 1, "incarnation": "A1", "proven": True},
        generation_key("B"): {"number": 1, "incarnation": "B1", "proven": True},
    }
    return View(1, 1, {key: EtcdRow(value, 1) for key, value in values.items()})


class Member:
    """A controller, whose threads do not run."""

    socket: socket.socket

    def __init__(self, name: str, disk: MemoryFiles, place: str, options: Options) -> None:
        self.disk = disk
        store = stores.open_follower(DIRECTORY, disk, options)
        log = MemberLog(disk, DIRECTORY, store.seed, KeptSegments(place, 1 << 30))
        log.begin(store.reader())
        self.store_id = store.store_id.hex()
        etcd = EtcdSettings(("http://127.0.0.1:1",))
        settings = ClusterSettings(
            *("c", "g", etcd, ("127.0.0.1", 0), "127.0.0.1:1", "127.0.0.1:2", None),
            *(Timing(), False),
        )
        client = EtcdClient(etcd, "/", EtcdIdentity(1))
        identity = MemberIdentity(name, f"{name}1", self.store_id, 1)
        file = MemberFile(disk, DIRECTORY, Membership("1" * 16))
        self.controller = Controller(settings, client, identity, store, self.reopen, log, file)
        # Whether it is due depends on the time.
        self.controller._lane._housekeep_at = inf

    def reopen(self) -> FollowerStore:
        raise AssertionError

    @property
    def link(self) -> Link:
        (link,) = self.controller._links.values()
        return link

    def read(self) -> bool:
        """Do what the thread does that reads from the other member."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        if not poll.poll(0):
            return False
        self.link.take(self.socket.recv(1 << 20))
        return True

    def write(self) -> None:
        """Do what the thread does that writes to the other member."""
        link = self.link
        while link._queue:
            item = link._next()
            assert item is not None
            link._send_item(item)
        link._is_writing = False

    def carry_out(self) -> None:
        """Do what the thread does that has the store of a follower."""
        lane = self.controller._lane
        while not lane._jobs.empty():
            effect = lane._jobs.get()
            assert effect is not None
            lane.carry_out(effect)


class Pair:
    """A leader, whose store is open, and a follower that is in sync."""

    def __init__(self, place: Path, options: Options = OPTIONS) -> None:
        disks = Group.new()
        disks.store.abandon()
        self.leader = Member("A", disks.leader_disk, str(place / "a"), options)
        self.follower = Member("B", disks.follower_disk, str(place / "b"), options)
        self.store = self._led(options)
        self._connect()
        self.queue = self.store.create_queue("orders")
        self.datasyncs = LaterDatasyncs()
        self.exchange()

    def _led(self, options: Options) -> Store:
        controller, keys = self.leader.controller, view(self.leader.store_id)
        member = controller.member
        member._lead(Leadership(TERM, keys.rows[LEADER], 1, inf, keys), 0.0)
        controller.viewed(keys)
        self.leader.carry_out()
        companion = controller.orders.take()
        assert companion is not None
        disk = self.leader.disk
        store = Store.open(
            DIRECTORY,
            files=disk,
            open_catalog=stores.catalog_opener(disk),
            options=options,
            worker=InlineWorker(),
            term=TERM,
            companion=companion,
        )
        controller.opened()
        return store

    def connect_again(self) -> None:
        """Have both notice that their connection is lost, and the follower dial once more."""
        for one in (self.leader, self.follower):
            for number in list(one.controller._links):
                one.controller.disconnected(number, "it was lost")
            one.socket.close()
        self._connect(later_s=1.5)

    def _connect(self, later_s: float = 0.0) -> None:
        follower = self.follower.controller
        follower.viewed(view(self.leader.store_id))
        follower._tell(lambda member, now: member.tick(now + later_s, Health()))
        self.leader.socket, self.follower.socket = socket.socketpair()
        tagged = Purpose.TAGGED_STREAM
        of_leader = PeerSession(tagged, FrameTags(BY_LEADER), FrameTags(BY_FOLLOWER))
        of_follower = PeerSession(tagged, FrameTags(BY_FOLLOWER), FrameTags(BY_LEADER))
        self.leader.controller.accepted(self.leader.socket, of_leader, "127.0.0.1:9")
        follower._connected(self.follower.socket, of_follower)
        self.exchange()

    def exchange(self) -> None:
        """Have both do all that there is to do."""
        while True:
            for one in (self.leader, self.follower):
                one.carry_out()
                one.write()
            if not any([self.leader.read(), self.follower.read()]):
                return

    def close(self) -> None:
        self.store.abandon()
        for one in (self.leader, self.follower):
            one.socket.close()
            one.controller._listener.close()
            one.controller._lane._close()

    def seal(
        self, body: bytes = bytes(1024), confirmed: Callable[[], None] = lambda: None
    ) -> Batch:
        """Publish a message, of which `confirmed` is told. Returns its batch, which is to be
        written.
        """
        self.store.publish([self.queue], [Message(ENVELOPE, body)])
        self.store.log.when_durable(confirmed)
        batch = self.store.log.seal(NOW_MS)
        assert batch is not None
        return batch

    def publish(
        self,
        within_leader: AbstractContextManager[object] | None = None,
        within_follower: AbstractContextManager[object] | None = None,
    ) -> None:
        """Have a message written and committed. Args: within what each side does its part."""
        leader, follower = within_leader or nullcontext(), within_follower or nullcontext()
        log, batch = self.store.log, self.seal()
        with leader:
            assert log.start_write(batch, self.datasyncs)
            assert not log.finish_write(batch, self.datasyncs)
        with follower:
            assert self.follower.read()
            self.follower.carry_out()
        with leader:
            assert self.leader.read()
            assert log.finish_write(batch, self.datasyncs)
            log.complete(batch)


@contextmanager
def pair_of(place: Path, options: Options = OPTIONS) -> Generator[Pair]:
    """Run a pair; threads that it would start do not run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda _: None)
        made = Pair(place, options)
        yield made
        made.close()
