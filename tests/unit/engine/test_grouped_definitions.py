"""Definitions that are committed together: when they are, and what happens on a full disk."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence

import pytest

from amqpstore import DiskFullError, DurabilityError, Message, Options, Store
from amqpstore.catalog.catalog import Change
from amqpstore_tools.simulation.memory_catalog import MemoryCatalog
from amqpstore_tools.simulation.memory_files import MemoryFiles
from amqpstore_tools.simulation.operations import CatalogCommit, Operation, Write
from amqpstore_tools.simulation.stores import new_disk, open_store
from tests.unit.engine.stores import ENVELOPE

DIRECTORY = "/disk/store"
OPTIONS = Options(reserve_bytes=0, least_free_bytes=0)
DEFINED = [Change("vhosts", "/", {})]


class Disk:
    """A disk with an open store, and what was done on it."""

    def __init__(self) -> None:
        self.files: MemoryFiles = new_disk(DIRECTORY)
        self.store: Store = open_store(DIRECTORY, self.files, OPTIONS)
        self.done: list[Operation] = []
        self.files.record = self.done.append

    @property
    def commits(self) -> int:
        return sum(isinstance(one, CatalogCommit) for one in self.done)


@pytest.fixture
def disk() -> Iterator[Disk]:
    found = Disk()
    yield found
    found.files.record = None
    found.store.abandon()


def test_a_group_is_one_commit(disk: Disk) -> None:
    store = disk.store
    store.definitions.begin_group()
    queues = [store.create_queue({"number": number}) for number in range(3)]
    store.delete_queue(queues[0])
    store.definitions.define(DEFINED)
    assert disk.commits == 0
    store.definitions.end_group()
    assert disk.commits == 1
    store.create_queue({})
    assert disk.commits == 2, "after the group each is committed at once"
    store.abandon()
    store = open_store(DIRECTORY, disk.files, OPTIONS)
    assert sorted(store.queues) == [2, 3, 4]
    assert store.definitions.rows("vhosts") == {"/": {}}
    store.abandon()


def test_the_rows_are_durable_before_the_log_names_their_queue(disk: Disk) -> None:
    store = disk.store
    store.definitions.begin_group()
    queue = store.create_queue({})
    store.publish([queue], [Message(ENVELOPE, b"body")])
    batch = store.log.seal(0)
    assert disk.commits == 1
    assert batch is not None
    store.log.write(batch)
    kinds = [type(one) for one in disk.done]
    assert kinds.index(CatalogCommit) < kinds.index(Write)
    store.definitions.end_group()
    assert disk.commits == 1


def test_what_is_read_from_the_catalog_has_the_group(disk: Disk) -> None:
    disk.store.definitions.begin_group()
    disk.store.definitions.define(DEFINED)
    assert disk.store.definitions.rows("vhosts") == {"/": {}}


def test_what_cannot_be_stored_is_refused_at_once(disk: Disk) -> None:
    store = disk.store
    store.definitions.begin_group()
    with pytest.raises(TypeError):
        store.definitions.define([Change("vhosts", "/", {"object": object()})])
    store.definitions.end_group()
    assert disk.commits == 0


def fails(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Have the next commits fail, as the disk is full."""
    commit = MemoryCatalog.commit
    left = [times]

    def full(catalog: MemoryCatalog, changes: Sequence[Change]) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, "full")
        commit(catalog, changes)

    monkeypatch.setattr(MemoryCatalog, "commit", full)


def test_a_group_may_use_the_reserve(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    store = disk.store
    store.definitions.begin_group()
    store.create_queue({})
    fails(monkeypatch, 1)
    store.definitions.end_group()
    assert disk.commits == 1


def test_a_group_that_fits_nowhere_ends_all_writing(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = disk.store
    store.definitions.begin_group()
    store.create_queue({})
    fails(monkeypatch, 2)
    with pytest.raises(DurabilityError):
        store.definitions.end_group()
    assert store.failure


def test_on_a_disk_that_is_nearly_full_nothing_waits(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = disk.store
    monkeypatch.setattr(store.space, "is_low", True)
    fails(monkeypatch, 1)
    store.definitions.begin_group()
    with pytest.raises(DiskFullError):
        store.create_queue({})
    assert store.queues == {}
