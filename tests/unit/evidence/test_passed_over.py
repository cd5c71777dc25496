"""Files that a start passes over are noted with the checkpoint that covers them, not before."""

import os
import shutil
from pathlib import Path

import pytest

from amqpstore import Run, Store
from amqpstore.catalog import tables
from amqpstore.catalog.catalog import Change, LmdbCatalog
from amqpstore.evidence.passed_over import KEPT_FOR_ACKS, PassedOver
from amqpstore.recovery import recovery
from amqpstore.system.filenames import CATALOG, SEGMENTS, TRAILS, segment_name, segment_numbers
from amqpstore_tools.check.engine import check
from tests.unit.evidence.stores import ManualClock, killed_store, opened, publish, zeros
from tests.unit.repair.mending import mend


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return killed_store(tmp_path / "store")


def segment(directory: Path, number: int) -> Path:
    return directory / SEGMENTS / segment_name(number)


def noted(directory: Path) -> tuple[PassedOver, list[int]]:
    """Return what the catalog has of this, and the segments that are kept for it."""
    catalog = LmdbCatalog(str(directory / CATALOG), False)
    try:
        kept = [
            number
            for number, rows in tables.QUARANTINE.read(catalog.rows).items()
            if rows == [KEPT_FOR_ACKS]
        ]
        return PassedOver.read(catalog.rows), kept
    finally:
        catalog.close()


def ids_of(store: Store) -> list[int]:
    """Return the ids of the messages in the only queue, in order."""
    orders = next(iter(store.queues.values()))
    return [run.id_at(place) for run in orders.ready for place in range(run.count)]


def taken_away(directory: Path, number: int) -> Path:
    """Move a segment out of the store, and return where it is."""
    return Path(shutil.move(segment(directory, number), directory.parent / str(number)))


@pytest.mark.parametrize("number", [2, 3, 4])
@pytest.mark.parametrize("is_used", [False, True])
def test_nothing_is_noted_of_what_is_put_back_before_a_checkpoint(
    directory: Path, number: int, is_used: bool
) -> None:
    aside = taken_away(directory, number)
    for _ in range(2):
        store = opened(directory)
        assert store.recovery_report.shortfall
        if is_used:
            publish(store, 1)
        store.abandon()
    passed, kept = noted(directory)
    assert not passed
    assert kept == []
    shutil.move(aside, segment(directory, number))
    with opened(directory) as store:
        assert store.recovery_report.is_clean
        assert len(set(ids_of(store))) == 15 + 2 * is_used  # the first five are in an index file
        assert sum(store.recovery_report.kept.values()) == 20 + 2 * is_used
    assert not check(str(directory)).is_damaged
    passed, kept = noted(directory)
    assert not passed
    assert kept == []


def test_what_is_put_back_behind_a_checkpoint_is_for_a_repair(directory: Path) -> None:
    aside = taken_away(directory, 3)
    with opened(directory) as store:
        publish(store, 1)
    passed, kept = noted(directory)
    assert passed
    assert kept
    shutil.move(aside, segment(directory, 3))
    for _ in range(2):
        with opened(directory) as store:
            assert "passed over" in store.recovery_report.passed_over
            assert segment(directory, 3).exists()
    mend(str(directory))
    assert not noted(directory)[0]
    with opened(directory) as store:
        assert store.recovery_report.is_clean
        assert sum(store.recovery_report.kept.values()) == 21


def test_a_file_that_is_left_over_is_kept_meanwhile(directory: Path) -> None:
    (directory / SEGMENTS / "0000000077.spare").write_bytes(bytes(4096))
    assert left_over(directory) == "a spare segment: the next start removes it"
    taken_away(directory, 3)
    with opened(directory) as store:
        publish(store, 1)
    (directory / SEGMENTS / "0000000077.spare").write_bytes(bytes(4096))
    text = "a spare segment: it is kept until a repair, as starts have passed over something"
    assert left_over(directory) == text
    opened(directory).abandon()
    assert left_over(directory) == text


def left_over(directory: Path) -> str:
    """Return what a check says of the only spare segment."""
    (found,) = (one for one in check(str(directory)).findings if one.code == "file-left-over")
    return found.text


@pytest.mark.parametrize("has_checkpoint", [False, True])
@pytest.mark.parametrize("published", [0, 1, 22])
@pytest.mark.parametrize("acked", [0, 3, 15])
@pytest.mark.parametrize("pause_ms", [0, 2000])
def test_the_last_segment_is_put_back_after_the_log_has_gone_on(
    tmp_path: Path, pause_ms: int, acked: int, published: int, *, has_checkpoint: bool
) -> None:
    """Neither its number nor those of its messages were given again, however soon after its
    beginning the crash came: all that is intact is kept, in order, and once.
    """
    directory = killed_store(tmp_path / "store", pause_ms)
    aside = taken_away(directory, 4)
    store = opened(directory)
    (orders,) = store.queues.values()
    while acked and isinstance(run := store.take(orders, acked), Run):
        store.ack(orders, run)
        acked -= run.count
    left = ids_of(store) if not orders.paged else [*range(1, 6), *ids_of(store)]
    last = store.log.position.message_id
    store.sync()
    if published:
        publish(store, published)
    left += [*range(16, 21), *range(last, last + published)]
    if has_checkpoint:
        store.close()
    else:
        store.abandon()
    assert not segment(directory, 4).exists()
    shutil.move(aside, segment(directory, 4))
    mend(str(directory))
    with opened(directory) as store:
        (orders,) = store.queues.values()
        store.stored.paging.read_index(orders)
        assert ids_of(store) == left
        assert store.recovery_report.is_clean


@pytest.mark.parametrize("is_mutant", [False, True])
def test_two_starts_pass_over_something(
    directory: Path, monkeypatch: pytest.MonkeyPatch, is_mutant: bool
) -> None:
    if is_mutant:  # What is noted is replaced.
        monkeypatch.setattr(PassedOver, "with_row", lambda _, row: row)
    aside = {3: taken_away(directory, 3)}
    with opened(directory) as store:
        publish(store, 1)
    store = opened(directory)
    for _ in range(3):
        publish(store, 5)
    last = max(segment_numbers(os.listdir(directory / SEGMENTS)))
    store.abandon()
    aside[last - 1] = taken_away(directory, last - 1)
    with opened(directory) as store:
        publish(store, 1)
    for number, path in aside.items():
        shutil.move(path, segment(directory, number))
    mend(str(directory))
    with opened(directory) as store:
        kept = sum(store.recovery_report.kept.values())
    assert (kept == 20 + 15 + 2) == (not is_mutant)


@pytest.mark.parametrize("is_mutant", [False, True])
def test_acks_of_what_is_missing_are_kept_until_it_is_back(
    directory: Path, monkeypatch: pytest.MonkeyPatch, *, is_mutant: bool
) -> None:
    """A start reads the acks of messages whose segment is missing, and a checkpoint covers them.
    The segment that has these acks is not removed, although nothing in it is live.
    """
    if is_mutant:
        monkeypatch.setattr(recovery._Recovery, "_keep_acks", lambda _: None)
    store = opened(directory)
    drain(store)
    publish(store, 10)
    store.abandon()
    aside = taken_away(directory, 2)
    for _ in range(2):
        with opened(directory) as store:
            drain(store)
            publish(store, 5)
            store.upkeep.checkpoint()
            for _ in store.upkeep.compact():
                pass
            for _ in range(3):
                store.upkeep.housekeep()
    shutil.move(aside, segment(directory, 2))
    mend(str(directory))
    with opened(directory) as store:
        kept = sum(store.recovery_report.kept.values())
    # The five of segment 2 were acked before it was missing.
    assert kept == (10 if is_mutant else 5)


def drain(store: Store) -> None:
    """Take and ack everything."""
    orders = next(iter(store.queues.values()))
    while isinstance(run := store.take(orders, 100), Run):
        store.ack(orders, run)
    store.sync()


def test_what_a_later_start_has_read_is_not_noted(directory: Path) -> None:
    """One of two missing segments is put back, and its messages are acked: they do not come
    again.
    """
    aside = {number: taken_away(directory, number) for number in (2, 3)}
    opened(directory).abandon()
    shutil.move(aside[2], segment(directory, 2))
    with opened(directory) as store:
        orders = next(iter(store.queues.values()))
        for _ in range(2):
            run = store.take(orders, 5)
            assert isinstance(run, Run)
            store.ack(orders, run)
        store.sync()
    # In this start they are behind the note's position.
    with opened(directory) as store:
        publish(store, 1)
    shutil.move(aside[3], segment(directory, 3))
    mend(str(directory))
    with opened(directory) as store:
        assert sum(store.recovery_report.kept.values()) == 11


def test_the_note_comes_with_the_position(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash between them would leave a position that covers what nothing knows of."""
    commits: list[set[tuple[str, str]]] = []
    commit = LmdbCatalog.commit

    def noticed(catalog: LmdbCatalog, changes: list[Change]) -> None:
        commits.append({(one.table, one.key) for one in changes})
        commit(catalog, changes)

    zeros(segment(directory, 3))
    monkeypatch.setattr(LmdbCatalog, "commit", noticed)
    with opened(directory) as store:
        publish(store, 1)
    with_position = [one for one in commits if ("store", "position") in one]
    with_note = [one for one in commits if "passed_over" in {table for table, _ in one}]
    assert len(with_note) == 1
    assert with_position[:1] == with_note


def test_a_checkpoint_that_failed_notes_it_when_it_is_made(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_away(directory, 3)
    store = opened(directory)
    publish(store, 1)
    with monkeypatch.context() as patch:
        patch.setattr(LmdbCatalog, "commit", full)
        with pytest.raises(OSError, match="full"):
            store.upkeep.checkpoint()
    store.upkeep.checkpoint()
    store.abandon()
    assert noted(directory)[0]


def full(_catalog: LmdbCatalog, _changes: list[Change]) -> None:
    raise OSError(28, "full")


def test_the_notes_that_tell_of_it_are_kept_until_then(directory: Path) -> None:
    """The notes stay, however often the broker is killed before its first checkpoint."""
    taken_away(directory, 4)
    clock = ManualClock()
    for _ in range(5):
        store = opened(directory, clock)
        assert store.recovery_report.lost_count == 5
        for _ in range(2):
            clock.advance(2000)
            publish(store, 1)
            store.upkeep.housekeep()
        store.abandon()
    assert len(list((directory / TRAILS).iterdir())) > 3
    with opened(directory, clock) as store:
        publish(store, 1)
    assert noted(directory)[0]
    # Then they are removed again.
    for _ in range(2):
        store = opened(directory, clock)
        clock.advance(2000)
        publish(store, 1)
        store.upkeep.housekeep()
        store.close()
    assert len(list((directory / TRAILS).iterdir())) == 3
