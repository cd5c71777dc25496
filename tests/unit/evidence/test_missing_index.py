"""An index file that is missing, or too short, is named by the start; its messages are counted."""

from collections.abc import Callable
from pathlib import Path

import pytest

from amqpstore import MessageDamagedError, Run, Store
from amqpstore.system.filenames import INDEX
from amqpstore_tools.check.engine import check
from tests.unit.evidence.stores import ManualClock, killed_store, opened


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The first five of 20 messages are in an index file; the log has the others."""
    return killed_store(tmp_path / "store")


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def in_quarantine(path: Path) -> None:
    (path.parents[1] / "quarantine").mkdir(exist_ok=True)
    path.rename(path.parents[1] / "quarantine" / path.name)


DAMAGES: list[Callable[[Path], None]] = [remove, cut, empty, in_quarantine]


def index_file(directory: Path) -> Path:
    (path,) = (directory / INDEX).iterdir()
    return path


def ready(store: Store) -> int:
    return next(iter(store.queues.values())).ready_count


def drained(store: Store) -> list[int]:
    """Take all that is ready, and return the sequences in order."""
    orders = next(iter(store.queues.values()))
    found = []
    while isinstance(run := store.take(orders, 1), Run):
        found.append(run.first_sequence)
    assert not isinstance(run, MessageDamagedError)
    return found


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_start_names_it_and_counts_its_messages(
    directory: Path, damage: Callable[[Path], None]
) -> None:
    path = index_file(directory)
    content = path.read_bytes()
    damage(path)
    # Of all starts, whatever the first one has done.
    for _ in range(2):
        with opened(directory) as store:
            report = store.recovery_report
            (reason,) = (one[-1] for one in report.damage if one[0] == str(path))
            assert "the positions of its 5 messages are not known" in reason
            assert "`amqpstore repair`" in reason
            assert (report.lost_count, report.unindexed, report.is_clean) == (5, 5, False)
            counted = store.statistics.unreadable()
            for queue in store.queues.values():
                counted.add(queue)
            assert counted.messages == 5
            assert sum(report.kept.values()) == ready(store) == 15
    harm = [one for one in check(str(directory)).findings.of_harm() if one.messages]
    assert {(one.file, one.messages) for one in harm} == {(f"{INDEX}/{path.name}", 5)}
    path.write_bytes(content)
    with opened(directory) as store:
        assert ready(store) == 20
        assert drained(store) == [*range(1, 21)]


def test_what_is_put_back_is_served_at_once(directory: Path) -> None:
    path, clock = index_file(directory), ManualClock()
    aside = path.rename(directory.parent / path.name)
    store = opened(directory, clock)
    assert drained(store) == [*range(6, 21)]
    aside.rename(path)
    clock.advance(1000)
    assert sum(store.read_again().values()) == 5
    assert drained(store) == [*range(1, 6)]
    store.abandon()


def test_messages_that_were_acked_are_not_counted_as_lost(directory: Path) -> None:
    store = opened(directory)
    orders = next(iter(store.queues.values()))
    run = store.take(orders, 5)
    assert isinstance(run, Run)
    store.ack(orders, run)
    store.sync()
    store.abandon()
    path = index_file(directory)
    path.unlink()
    # The second one is behind a checkpoint that could not read the file.
    for _ in range(2):
        with opened(directory) as store:
            assert [one[0] for one in store.recovery_report.damage] == [str(path)]
            assert store.recovery_report.lost_count == 0
            assert ready(store) == 15
