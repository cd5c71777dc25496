"""Users, permissions, policies, virtual hosts and durable queues come and go, under names that are
new each time: nothing of them is left in the catalog, in the log, in files or in memory, also if
the power is cut at any operation.
"""

from __future__ import annotations

import gc
import os
import random
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amqpstore import Options
from amqpstore.catalog.catalog import Change, LmdbCatalog
from amqpstore.upkeep.checkpointing import Checkpoints
from amqpstore_server.administration.definitions import (
    Permission,
    PolicyDefinition,
    User,
    VirtualHostDefinition,
)
from amqpstore_server.administration.operations import Administration
from amqpstore_server.administration.work import Work
from amqpstore_server.broker.broker import Broker
from amqpstore_server.broker.definitions.removals import Unbinding
from amqpstore_server.broker.monitoring.audit import By
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.vhost import VirtualHost
from amqpstore_server.logins.users import Users
from amqpstore_tools.simulation.crash_images import crash_images
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.operations import Operation
from tests.crash import broker_world
from tests.simulated_broker import DIRECTORY, SimulatedBroker
from tests.unit.broker.simulated import Client

Patch = pytest.MonkeyPatch

BY = By("operator", "test")
OPTIONS = broker_world.OPTIONS._replace(memory_bytes=Options().memory_bytes)
SETTLES, ROUNDS = 10, 30
"""Rounds after which all is as it stays, and all of them."""

TABLES = ("vhosts", "users", "permissions", "policies", "queues", "bindings", "exchanges")


class Administered:
    """A broker and its operator."""

    def __init__(self, disk: MemoryFiles | None = None) -> None:
        self.broker = SimulatedBroker(options=OPTIONS, disk=disk)
        users = Users(self.broker.store)
        if users.is_empty:
            users.define("operator", users.imported(b"", "rabbit_password_hashing_sha256"))
        self.administration = Administration(self.broker.broker, users)

    def do(self, work: Work[None]) -> None:
        """Carry out an operation, step by step."""
        for _ in work:
            self.broker.settle()
        self.broker.settle()

    def come(self, number: int) -> None:
        """Make one of each, with messages of which some were delivered."""
        do, operator, broker = self.do, self.administration, self.broker
        user, vhost, queue = f"user-{number}", f"vhost-{number}", f"queue-{number}"
        do(operator.add_vhost(BY, VirtualHostDefinition(name=vhost, description="of a while")))
        do(operator.set_user(BY, User(name=user, password_hash=b"salt" + bytes(32))))
        for where in (vhost, "/"):
            asked = Permission(user=user, vhost=where, configure=f"^{user}", write=".*", read=".*")
            do(operator.permissions.set(BY, asked))
            of_queues = PolicyDefinition(
                vhost=where, name=f"policy-{number}", pattern=queue, settings={"max-length": 50}
            )
            do(operator.policies.set(BY, of_queues))
        broker.broker.vhost(vhost).declare_queue(
            queue, durable=True, exclusive=False, auto_delete=False, arguments={}, connection=None
        )
        broker.queue(queue)
        broker.bind("amq.topic", queue, f"{queue}.#")
        client = Client(broker)
        for which in range(8):
            client.publish("amq.topic", f"{queue}.{which}", f"{number} {which} " + "x" * 100)
        broker.settle()
        assert client.get(queue)
        broker.settle()
        client.channel.close()
        client.channel.end_counting()

    def go(self, number: int) -> None:
        """Delete whatever there is of what came."""
        do, operator, broker = self.do, self.administration, self.broker
        user, vhost, queue = f"user-{number}", f"vhost-{number}", f"queue-{number}"
        do(operator.delete_rest())
        if queue in broker.vhost.queues:
            broker.vhost.delete_queue(broker.vhost.queue(queue))
            broker.settle()
        if vhost in broker.broker.vhosts:
            do(operator.delete_vhost(BY, vhost))
        if any(one["name"] == f"policy-{number}" for one in operator.policies.all("/")):
            do(operator.policies.clear(BY, "/", f"policy-{number}"))
        if any(one["name"] == user for one in operator.users()):
            do(operator.delete_user(BY, user))
        broker.settle()

    def keep_house(self) -> None:
        """Have the store do what it does from time to time."""
        store = self.broker.store
        store.upkeep.checkpoint()
        for _ in range(20):
            self.broker.pass_time(1000)
            store.upkeep.housekeep()
        store.upkeep.checkpoint()

    def rows(self) -> dict[str, list[str]]:
        """The keys in the catalog of what an operator makes."""
        return {table: sorted(self.broker.store.definitions.rows(table)) for table in TABLES}

    def files(self) -> dict[str, int]:
        """All files, by path, with their sizes; not the catalog's own."""
        disk, found = self.broker.disk, {}
        for folder in ("segments", "index", "trails", "quarantine"):
            path = f"{DIRECTORY}/{folder}"
            if disk.exists(path):
                for name in disk.list_directory(path):
                    found[f"{folder}/{name}"] = len(disk.content(f"{path}/{name}"))
        return found


def churn(administered: Administered, first: int, stop: int) -> None:
    for number in range(first, stop):
        administered.come(number)
        administered.go(number)
        administered.keep_house()


def held(administered: Administered) -> dict[str, int]:
    """Count what there is: rows of the catalog, files and their bytes, objects of ours in memory,
    and entries of all containers.
    """
    gc.collect()
    objects = gc.get_objects()
    files = administered.files()
    return {
        "rows": sum(map(len, administered.rows().values())),
        "files": len(files),
        "bytes": sum(files.values()),
        "objects": sum(is_ours(one) for one in objects),
        "entries": sum(len(one) for one in objects if type(one) in (dict, list, set, OrderedDict)),
    }


def is_ours(one: object) -> bool:
    """Whether it is an object of the engine or of the server; not one of the simulated disk."""
    module = str(type(one).__module__)
    return module.startswith(("amqpstore.", "amqpstore_server."))


def growth() -> dict[str, float]:
    """Return how much each count grows with each round, once caches are full."""
    administered = Administered()
    churn(administered, 0, SETTLES)
    before = held(administered)
    churn(administered, SETTLES, ROUNDS)
    after = held(administered)
    administered.broker.store.abandon()
    return {name: (after[name] - before[name]) / (ROUNDS - SETTLES) for name in before}


ALLOWED = {"rows": 0.0, "files": 0.0, "bytes": 150.0, "objects": 0.2, "entries": 5.0}
"""A round may leave this much: trails are appended to until they are large enough to go, the
simulated disk remembers files that were removed, and re2 the last 128 expressions.
"""


def grown() -> list[str]:
    """Return the names of the counts that grow."""
    return [name for name, more in growth().items() if more > ALLOWED[name]]


def test_nothing_grows_however_many_come_and_go() -> None:
    assert grown() == []


def permissions_stay_when_their_user_goes(patch: Patch) -> None:
    patch.setattr(Broker, "granted_to", lambda *_: [])


def a_virtual_host_is_marked_only(patch: Patch) -> None:
    patch.setattr(Broker, "deleting_vhost", lambda self, name: iter([self.deleted.pop(name)]))


def bindings_stay_when_their_queue_goes(patch: Patch) -> None:
    patch.setattr(Unbinding, "take", lambda self: self._unbound.clear() or [])


def segments_stay_when_they_are_empty(patch: Patch) -> None:
    patch.setattr(Checkpoints, "_remove_segment", lambda *_: None)


def every_queue_is_remembered(patch: Patch) -> None:
    declare, remembered = VirtualHost.declare_queue, []

    def declare_and_remember(self: VirtualHost, *arguments: Any, **named: Any) -> Queue:
        queue = declare(self, *arguments, **named)
        remembered.append(queue)
        return queue

    patch.setattr(VirtualHost, "declare_queue", declare_and_remember)


GROWS: dict[Callable[[Patch], None], str] = {
    permissions_stay_when_their_user_goes: "rows",
    a_virtual_host_is_marked_only: "rows",
    bindings_stay_when_their_queue_goes: "rows",
    segments_stay_when_they_are_empty: "files",
    every_queue_is_remembered: "objects",
}


@pytest.mark.parametrize("bug", GROWS, ids=lambda bug: str(bug.__name__))
def test_what_stays_is_seen(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    assert GROWS[bug] in grown()


# The power is cut while one of each comes and goes.


def recorded() -> tuple[MemoryFiles, list[Operation]]:
    """Return a disk where some have come and gone, and what is done there for one of each more."""
    administered = Administered()
    churn(administered, 0, 3)
    base = administered.broker.disk.fork()
    operations: list[Operation] = []
    administered.broker.disk.record = operations.append
    churn(administered, 3, 4)
    administered.broker.disk.record = None
    administered.broker.store.abandon()
    return base, operations


def left_behind(seed: str, images: int) -> list[str]:
    """Return what is left of one thing of each kind after its deletion, if the power was cut at any
    operation.
    """
    rng = random.Random(seed)
    disk, operations = recorded()
    wrong: list[str] = []
    for number, operation in enumerate(operations):
        disk.redo(operation)
        for image in crash_images(disk, rng, images):
            administered = Administered(image.files)
            administered.go(3)
            administered.keep_house()
            rows, files = administered.rows(), administered.files()
            administered.broker.store.abandon()
            left = {table: keys for table, keys in rows.items() if keys != KEPT.get(table, [])}
            if left or len(files) > MAX_FILES:
                wrong.append(f"{left}, {files} [{number}: {operation}; {image.description}]")
    assert len(operations) > 30
    return wrong


KEPT = {"vhosts": ["/"], "users": ["operator"]}
MAX_FILES = 4
"""The segment of the log, a spare one, and trails."""


def test_a_power_cut_leaves_nothing_behind() -> None:
    assert left_behind("comings and goings", 2) == []


@pytest.mark.long
@pytest.mark.rounds(3)
def test_a_power_cut_at_any_operation_leaves_nothing_behind(seed: int) -> None:
    assert left_behind(f"comings and goings {seed}", 40) == []


def test_a_deletion_that_a_start_does_not_finish_is_seen(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Administration, "delete_rest", lambda self: iter(()))
    assert left_behind("bug", 1) != []


# The file of a real catalog.


def catalog_bytes(place: Path, rounds: int, prepare: Callable[[LmdbCatalog], object]) -> list[int]:
    """The size of a catalog's file after a third of the rounds, and after all of them. In each some
    rows come and go.
    """
    catalog = LmdbCatalog(str(place), True)
    kept = prepare(catalog)
    sizes = []
    for number in range(rounds):
        rows = [(table, f"{table}-{number}") for table in TABLES]
        catalog.commit([Change(table, name, "x" * 700) for table, name in rows])
        catalog.commit([Change(table, name, None) for table, name in rows])
        if number in (rounds // 3, rounds - 1):
            sizes.append(os.stat(place / "data.mdb").st_blocks * 512)
    catalog.close()
    del kept
    return sizes


def test_the_file_of_a_catalog_does_not_grow_however_many_rows_come_and_go(tmp_path: Path) -> None:
    first, last = catalog_bytes(tmp_path, 300, lambda _: None)
    assert last <= first


def test_a_catalog_whose_pages_are_never_freed_is_seen(tmp_path: Path) -> None:
    """A reader of the catalog that does not end keeps the pages of that moment, and all later
    ones.
    """
    first, last = catalog_bytes(tmp_path, 300, lambda catalog: catalog._environment.begin())
    assert last > first
