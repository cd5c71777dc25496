"""Messages whose segments are gone or cut: counted at a start, without reading any message."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from amqpstore import Message, Options, Queue, Store
from amqpstore.catalog.tables import OffsetTableRow
from amqpstore.evidence import AbsentIds, AbsentMessages, absent_messages
from amqpstore.format.runs import Run
from amqpstore.log.segment_accounts import SegmentAccount
from amqpstore.system.filenames import INDEX, SEGMENTS, segment_name
from amqpstore.upkeep.worker import InlineWorker
from tests.unit.engine.stores import ENVELOPE

OPTIONS = Options(segment_bytes=1 << 12, reserve_bytes=0)
A_SEGMENT = 5
SEGMENTS_FILLED = 3


def opened(directory: Path) -> Store:
    return Store.open(str(directory), options=OPTIONS, worker=InlineWorker())


def named(store: Store) -> dict[str, Queue]:
    return {queue.definition["name"]: queue for queue in store.queues.values()}  # type: ignore[index]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 15 messages in three segments; the first five are in two queues."""
    directory = tmp_path_factory.mktemp("pristine")
    with opened(directory) as store:
        orders, audit = (store.create_queue({"name": name}) for name in ("orders", "audit"))
        for number in range(SEGMENTS_FILLED):
            queues = [orders, audit] if not number else [orders]
            store.publish(queues, [Message(ENVELOPE, bytes([number]) * 1000)] * A_SEGMENT)
            store.sync()
    return directory


@pytest.fixture
def directory(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "store"))


def unreadable(store: Store) -> int:
    count = store.statistics.unreadable()
    for queue in store.queues.values():
        count.add(queue)
    return count.messages


def all_gone(directory: Path) -> None:
    shutil.rmtree(directory / SEGMENTS)


def first_gone(directory: Path) -> None:
    (directory / SEGMENTS / segment_name(1)).unlink()


def second_is_a_directory(directory: Path) -> None:
    path = directory / SEGMENTS / segment_name(2)
    path.unlink()
    path.mkdir()


def second_is_a_pipe(directory: Path) -> None:
    path = directory / SEGMENTS / segment_name(2)
    path.unlink()
    os.mkfifo(path)


def second_is_empty(directory: Path) -> None:
    os.truncate(directory / SEGMENTS / segment_name(2), 0)


def second_is_cut(directory: Path) -> None:
    # Without an entry in the offset table behind it: all that is known is what it may have.
    os.truncate(directory / SEGMENTS / segment_name(2), 3000)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (all_gone, 20),
        (first_gone, 10),
        (second_is_a_directory, 5),
        (second_is_a_pipe, 5),
        (second_is_empty, 5),
        (second_is_cut, 0),
    ],
)
def test_a_start_counts_what_the_catalog_knows_of(
    directory: Path, damage: Callable[[Path], None], expected: int
) -> None:
    damage(directory)
    with opened(directory) as store:
        report = store.recovery_report
        assert sum(report.kept.values()) == 20
        assert report.lost_count == expected
        assert not report.is_clean
        assert unreadable(store) == expected
        assert store.statistics.figures().lost == expected
        assert [one.at_most for one in report.absent] in ([5], [10], [10, 5, 5])


def test_a_sound_store_lacks_nothing(directory: Path) -> None:
    with opened(directory) as store:
        assert store.recovery_report.absent == []
        assert unreadable(store) == 0


def test_what_was_tried_is_counted_once(directory: Path) -> None:
    first_gone(directory)
    with opened(directory) as store:
        audit = named(store)["audit"]
        for left in range(4, -1, -1):
            store.take(audit, 1)
            assert audit.quarantined.count == 5 - left
            assert unreadable(store) == 10
        assert audit.quarantined.count == 5


def test_a_message_whose_index_file_is_gone_too_is_counted_once(directory: Path) -> None:
    all_gone(directory)
    shutil.rmtree(directory / INDEX)
    with opened(directory) as store:
        for queue in store.queues.values():
            store.take(queue, 1)
            assert queue.unreadable_count
        assert unreadable(store) == 20


def test_what_is_purged_is_not_missed(directory: Path) -> None:
    first_gone(directory)
    with opened(directory) as store:
        store.purge(named(store)["audit"])
        store.sync()
        store.upkeep.checkpoint()
        assert unreadable(store) == 5
        store.purge(named(store)["orders"])
        store.sync()
        store.upkeep.checkpoint()
        assert unreadable(store) == 0


def test_a_file_that_is_put_back_is_seen(directory: Path, tmp_path: Path) -> None:
    path = directory / SEGMENTS / segment_name(1)
    path.rename(tmp_path / "aside")
    with opened(directory) as store:
        assert unreadable(store) == 10
        (tmp_path / "aside").rename(path)
        assert unreadable(store) == 0
        run = store.take(named(store)["audit"], 5)
        assert isinstance(run, Run)
        assert run.count == 5


def account() -> SegmentAccount:
    found = SegmentAccount(7, 100)
    found.end_id, found.count, found.live_count, found.end_bytes = 200, 100, 100, 10_000
    return found


TABLE = OffsetTableRow(100, 200, [100, 150, 180], [60, 5000, 8000])


@pytest.mark.parametrize(
    ("file_bytes", "expected"),
    [
        (10_000, None),
        (20_000, None),
        (9_999, AbsentMessages(7, 9_999, 10_000, 200, 200, 0, 20)),
        (8_001, AbsentMessages(7, 8_001, 10_000, 200, 200, 0, 20)),
        (8_000, AbsentMessages(7, 8_000, 10_000, 180, 200, 20, 50)),
        (5_001, AbsentMessages(7, 5_001, 10_000, 180, 200, 20, 50)),
        (60, AbsentMessages(7, 60, 10_000, 100, 200, 100, 100)),
        (1, AbsentMessages(7, 1, 10_000, 100, 200, 100, 100)),
        (0, AbsentMessages(7, 0, 10_000, 100, 200, 100, 100)),
    ],
)
def test_of_a_file_that_ends_too_early_a_range_is_known(
    file_bytes: int, expected: AbsentMessages | None
) -> None:
    assert absent_messages(account(), TABLE, file_bytes) == expected


def test_without_an_offset_table_it_may_have_everything_or_nothing() -> None:
    assert absent_messages(account(), None, 5000) == AbsentMessages(
        7, 5000, 10_000, 200, 200, 0, 100
    )
    assert absent_messages(account(), None, 0) == AbsentMessages(7, 0, 10_000, 100, 200, 100, 100)


def test_messages_of_runs_are_told_apart_by_their_ids() -> None:
    absent = [AbsentMessages(1, 0, 99, 10, 20, 10, 10), AbsentMessages(2, 0, 99, 30, 40, 10, 10)]
    ids = AbsentIds(absent)
    assert ids.count([Run(1, 100, first_id=1)]) == 20
    assert ids.count([Run(1, 5, first_id=18)]) == 2
    assert ids.count([Run(1, 10, first_id=20)]) == 0
    assert AbsentIds([]).count([Run(1, 100, first_id=1)]) == 0
