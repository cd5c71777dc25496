"""Remains of drills of real processes and disks, made here in some milliseconds."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from typing import ClassVar, Self

import pytest

from amqpstore import Envelope, Message, Options, Run, Store
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.client.connection import Address
from amqpstore_tools.drill import own_disk, syncing
from amqpstore_tools.drill.client import (
    MOVES,
    PUBLISHERS,
    QUEUES,
    REJECTS,
    TRANSACTED,
    Key,
    body_of,
    key_of,
    routes_of,
)
from amqpstore_tools.drill.run import DrillRun
from amqpstore_tools.drill.scenarios import cluster, disk, kill

_ENVELOPE = Envelope("", "drill", b"\x10\x00\x02")
_MESSAGES = 10
_BATCHES = 7
_NO_RESERVE = Options(reserve_bytes=0, least_free_bytes=0)
_AT_THE_END = [Key(1000, 0, index) for index in range(_MESSAGES)]
"""Messages that are confirmed when all members of a group are killed."""

_SOUND = own_disk.Syncs(200, 800e-6, 400e-6, "vda", 200, 200, has_cache=True)


class Broker:
    """Stands in for the broker of the drill `kill`: its store, with an empty queue of each name."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.store.abandon()

    def start(self) -> Address:
        self.store = Store.open(self._directory, options=_NO_RESERVE, worker=InlineWorker())
        for name in (*QUEUES, *MOVES, *REJECTS) if not self.store.queues else ():
            self.store.create_queue({"name": name})
        return Address("localhost", 0, "", "", "/")


def _work(
    run: DrillRun, broker: Broker, _address: Address, known: kill._Known, _rng: random.Random
) -> int:
    """Publish of each publisher some messages, and move half of those that are moved."""
    store = broker.store
    queues = {queue.definition["name"]: queue for queue in store.queues.values()}  # type: ignore[index]
    for publisher in (*PUBLISHERS, TRANSACTED):
        for index in range(_MESSAGES):
            key = Key(run.round, publisher, index)
            message = Message(_ENVELOPE, body_of(key))
            store.publish([queues[name] for name in routes_of(key)], [message])
            known.sent.append(key)
            known.confirmed.add(key)
    for _ in range(_MESSAGES // 2):
        taken = store.take(queues[MOVES[0]], 1)
        assert isinstance(taken, Run)
        with store.transaction() as transaction:
            transaction.publish([queues[MOVES[1]]], taken.messages or ())
            transaction.ack(queues[MOVES[0]], taken)
        known.moved.update(filter(None, (key_of(one.body) for one in taken.messages or ())))
    store.sync()
    return len(known.confirmed)


def without_a_broker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kill, "DrilledBroker", Broker)
    patch.setattr(kill, "_work_and_kill", _work)


class Disk:
    """Stands in for the loop device of the drill `disk`: a directory."""

    def __init__(self, path: str) -> None:
        self.path = path

    def restart(self) -> None:
        """Do nothing: nothing was stopped."""


@contextlib.contextmanager
def _loop_disk(work: str, kind: str) -> Iterator[Disk]:
    path = os.path.join(work, kind)
    os.mkdir(path)
    yield Disk(path)


class _CutError(Exception):
    """Cut the power."""


def _work_and_cut(on: Disk, seed: str, _lines: int) -> disk._Told:
    told = disk._Told()

    def tell(what: str, batch: int) -> None:
        (told.published if what == "published" else told.acked).add(batch)
        if len(told.published) == _BATCHES:
            raise _CutError

    before, syncing._tell = syncing._tell, tell
    try:
        with contextlib.suppress(_CutError):
            syncing.work(os.path.join(on.path, "store"), seed)
    finally:
        syncing._tell = before
    return told


def without_a_device(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(disk, "loop_disk", _loop_disk)
    patch.setattr(disk, "_work_and_cut", _work_and_cut)
    patch.setattr(own_disk, "mounted", lambda _path: own_disk.Mounted("ext4", "/", ""))
    patch.setattr(own_disk, "measure", lambda _path: _SOUND)


class Member:
    """Stands in for a member of a group: the store that it would leave behind."""

    address = Address("localhost", 0, "", "", "/")

    def __init__(self, directory: str) -> None:
        self.directory = directory
        with Store.open(directory, options=_NO_RESERVE, worker=InlineWorker()) as store:
            queues = {name: store.create_queue({"name": name}) for name in QUEUES}
            for key in _AT_THE_END:
                message = Message(_ENVELOPE, body_of(key))
                store.publish([queues[name] for name in routes_of(key)], [message])


class Keys:
    """Stands in for what a group has in etcd."""

    min_in_sync = 2

    def view(self) -> Keys:
        return self


class Group:
    """Stands in for the group of the drill `cluster`: its queues, in which messages wait."""

    keys = Keys()
    queues: ClassVar[dict[str, list[bytes]]] = {}

    def __init__(self, directory: str) -> None:
        os.makedirs(directory)
        self.members = [Member(os.path.join(directory, name)) for name in "abc"]
        self.queues.update({name: [] for name in QUEUES})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        """Do nothing: no process was started."""

    def found(self) -> None:
        """Do nothing: the group exists."""

    def wait_for_leader(self) -> Member:
        return self.members[0]

    def wait_until_in_sync(self) -> None:
        """Do nothing: all members are in sync."""


class Drainer:
    """Stands in for a client that takes everything: all of it is in `bodies` at once."""

    failure = ""
    is_done = is_logged = True

    def __init__(self, _address: Address, queue: str) -> None:
        self.bodies = [(body, False) for body in Group.queues[queue]]
        Group.queues[queue].clear()

    def start(self) -> None:
        """Do nothing: all bodies are there."""

    def join(self, _timeout_s: float) -> None:
        """Do nothing: no thread was started."""


def _work_in_group(
    run: DrillRun, _group: Group, known: cluster._Known, _rng: random.Random
) -> tuple[str, int]:
    keys = [Key(run.round, 0, index) for index in range(_MESSAGES)]
    for key in keys:
        for name in routes_of(key):
            Group.queues[name].append(body_of(key))
    known.sent.update(keys)
    known.confirmed.update(keys)
    return "leader killed", len(keys)


def _kill_group(_run: DrillRun, group: Group, known: cluster._Known) -> Member:
    known.sent.update(_AT_THE_END)
    known.confirmed.update(_AT_THE_END)
    return group.members[0]


def without_members(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cluster, "DrilledGroup", Group)
    patch.setattr(cluster, "Drainer", Drainer)
    patch.setattr(cluster, "_declare", lambda _address: None)
    patch.setattr(cluster, "_work", _work_in_group)
    patch.setattr(cluster, "_return", _work_in_group)
    patch.setattr(cluster, "_kill_group", _kill_group)


STAND_INS = {
    "kill": without_a_broker,
    "disk": without_a_device,
    "cluster": without_members,
}
"""Replacements of the processes and disks of each drill."""
