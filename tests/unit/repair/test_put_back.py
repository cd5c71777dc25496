"""Files that are put back after a repair has given up what was in them: nothing of it is lost."""

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amqpstore import Run, Store
from amqpstore.catalog.catalog import LmdbCatalog
from amqpstore.catalog.tables import GivenUpRow
from amqpstore.evidence.passed_over import PassedOver
from amqpstore.system.filenames import CATALOG, SEGMENTS, segment_name
from amqpstore.system.files import OsFile
from amqpstore_tools.check.engine import check
from amqpstore_tools.repair.plan import RepairPlan
from amqpstore_tools.repair.truth import finding
from tests.unit.evidence.stores import killed_store, opened, publish
from tests.unit.repair.chronicles import Chronicle, Evidence
from tests.unit.repair.mending import mend, plan_of
from tests.unit.repair.test_mixtures import queues_of, wrong_in


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return killed_store(tmp_path / "store")


def segment(directory: Path, number: int) -> Path:
    return directory / SEGMENTS / segment_name(number)


def taken_away(directory: Path, number: int) -> Path:
    """Move a segment out of the store, and return where it is."""
    return Path(shutil.move(segment(directory, number), directory.parent / str(number)))


def codes(directory: Path) -> set[str]:
    return {one.code for one in check(str(directory)).findings}


def start(directory: Path, published: int) -> Store:
    """Start the store, use it, let it do all that is due, and stop it."""
    store = opened(directory)
    if published:
        publish(store, published)
    store.upkeep.checkpoint()
    for _ in store.upkeep.compact():
        pass
    for _ in range(3):
        store.upkeep.housekeep()
    store.close()
    return store


def ids_of(store: Store) -> list[int]:
    orders = next(iter(store.queues.values()))
    store.stored.paging.read_index(orders)
    return [run.id_at(place) for run in orders.ready for place in range(run.count)]


def kept(plan: RepairPlan) -> int:
    return sum(queue["kept"] for queue in plan.queues)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("before", ["repair", "start, repair", "repair, start"])
@pytest.mark.parametrize("is_started", [False, True])
def test_a_segment_is_put_back_after_a_repair(
    directory: Path, number: int, before: str, *, is_started: bool
) -> None:
    aside = taken_away(directory, number)
    published = 0
    for step in before.split(", "):
        if step == "repair":
            mend(str(directory))
            assert not check(str(directory)).is_damaged
        else:
            store = opened(directory)
            publish(store, 7)
            store.close()
            published += 7
    assert not segment(directory, number).exists()  # also not as a new one
    shutil.move(aside, segment(directory, number))
    assert "segment-put-back" in codes(directory)
    if is_started:
        for _ in range(2):
            report = start(directory, 1).recovery_report
            assert any("gave up what is in it" in reason for *_, reason in report.damage)
            published += 1
    assert segment(directory, number).exists()
    plan, _ = mend(str(directory))
    assert kept(plan) == 20 + published
    assert not check(str(directory)).is_damaged
    with opened(directory) as store:
        assert store.recovery_report.is_clean
        ids = ids_of(store)
        assert ids == sorted(set(ids))
        assert {*range(1, 21)} < {*ids} or ids == [*range(1, 21)]
        assert len(ids) == 20 + published


def test_two_segments_are_put_back_one_after_the_other(directory: Path) -> None:
    aside = {number: taken_away(directory, number) for number in (1, 3)}
    mend(str(directory))
    for number, expected in ((3, 15), (1, 20)):
        start(directory, 0)
        shutil.move(aside[number], segment(directory, number))
        plan, _ = mend(str(directory))
        assert kept(plan) == expected
    assert rows(directory) == GivenUpRow([], [], [])


def rows(directory: Path) -> GivenUpRow:
    catalog = LmdbCatalog(str(directory / CATALOG), False)
    try:
        given_up = PassedOver.given_up(catalog.rows)
        places = [one["places"] for one in catalog.rows("given_up").values()]
    finally:
        catalog.close()
    return GivenUpRow(
        [list(one) for one in given_up.lsns.ranges],
        [list(one) for one in given_up.message_ids.ranges],
        [place for one in places for place in one],
    )


@pytest.mark.parametrize(
    "name", ["segments/old.bak", "lost+found/#7", "quarantine/0000000003.segment"]
)
def test_a_segment_is_put_back_under_another_name(directory: Path, name: str) -> None:
    aside = taken_away(directory, 3)
    mend(str(directory))
    (directory / name).parent.mkdir(exist_ok=True)
    shutil.move(aside, directory / name)
    assert "segment-put-back" in codes(directory)
    report = start(directory, 1).recovery_report
    assert any("gave up what is in it" in reason for *_, reason in report.damage)
    plan, _ = mend(str(directory))
    assert kept(plan) == 21
    assert not check(str(directory)).is_damaged
    assert start(directory, 1).recovery_report.is_clean


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_a_segment_that_is_put_back_and_cannot_be_read_is_kept(
    directory: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    aside = taken_away(directory, 3)
    mend(str(directory))
    shutil.move(aside, segment(directory, 3))
    read = OsFile.read

    def fails(file: OsFile, offset: int, size: int) -> bytes:
        if file.path == str(segment(directory, 3)):
            raise OSError(number, os.strerror(number), file.path)
        return read(file, offset, size)

    with monkeypatch.context() as patch:
        patch.setattr(OsFile, "read", fails)
        assert "segment-put-back" in codes(directory)
        report = start(directory, 1).recovery_report
        assert any("cannot be read" in reason for *_, reason in report.damage)
    plan, _ = mend(str(directory))
    assert kept(plan) == 21


def test_another_repair_remembers_what_is_still_missing(directory: Path) -> None:
    aside = taken_away(directory, 3)
    mend(str(directory))
    index = min((directory / "index").iterdir())
    index.write_bytes(bytes(index.stat().st_size))
    plan, _ = mend(str(directory))
    assert kept(plan) == 15
    shutil.move(aside, segment(directory, 3))
    plan, _ = mend(str(directory))
    assert kept(plan) == 20


def test_what_is_not_put_back_changes_nothing(directory: Path) -> None:
    """The store is sound, starts do not speak of it, and remove what they always remove."""
    taken_away(directory, 3)
    mend(str(directory))
    assert rows(directory).message_ids == [[11, 16]]
    left_over = segment(directory, 4)
    content = left_over.read_bytes()
    store = opened(directory)
    (orders,) = store.queues.values()
    while isinstance(run := store.take(orders, 100), Run):
        store.ack(orders, run)
    store.sync()
    store.close()
    start(directory, 1)
    assert not left_over.exists()
    left_over.write_bytes(content)
    assert codes(directory) == {"repair-kept", "file-left-over"}
    assert start(directory, 1).recovery_report.is_clean
    assert not left_over.exists()
    assert plan_of(str(directory)).steps == []


@pytest.fixture(scope="module")
def chronicle(tmp_path_factory: pytest.TempPathFactory) -> Chronicle:
    return Chronicle(tmp_path_factory.mktemp("chronicle"), 0)


def wrong_after_repairs(chronicle: Chronicle, directory: Path) -> Iterator[str]:
    """Repair a store without one of its files, and again once that is put back. Yields how queues
    differ from the optimum.
    """
    last = Path(chronicle.moments[-1])
    for folder in ("segments", "index", "catalog"):
        for path in sorted((last / folder).iterdir()):
            shutil.copytree(last, directory)
            evidence = Evidence.of(str(directory), chronicle.seed)
            name = directory / folder / path.name
            name.unlink()
            mend(str(directory))
            shutil.copyfile(path, name)
            mend(str(directory))
            for wrong in wrong_in(chronicle, evidence, queues_of(str(directory))):
                yield f"{path.name}: {wrong}"
            shutil.rmtree(directory)


def test_any_file_is_put_back(chronicle: Chronicle, tmp_path: Path) -> None:
    assert list(wrong_after_repairs(chronicle, tmp_path / "store")) == []


def _nothing(*_: Any) -> None:
    pass


@pytest.mark.parametrize("name", ["give_up", "put_back"])
def test_a_repair_that_does_not_note_or_use_it_is_caught(
    chronicle: Chronicle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(finding, name, _nothing)
    assert any(" lacks " in one for one in wrong_after_repairs(chronicle, tmp_path / "store"))
