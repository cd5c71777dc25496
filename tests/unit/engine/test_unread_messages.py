"""The log gets at most one line a second about messages that cannot be read, with sums."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from amqpstore import MessageDamagedError, Queue, Store
from amqpstore.queues.rereading import UnreadLog
from amqpstore.system.clock import SimulatedClock
from amqpstore.system.filenames import INDEX, SEGMENTS
from tests.unit.engine.stores import Disk, messages

COUNT = 300
SAID = re.compile(r"served: (\d+); queues: (.*); files: (.*); the first: ")

Look = Callable[[Store, Queue], object]


def take_all(store: Store, queue: Queue) -> None:
    while store.take(queue, 10) is not None:
        pass


def withdraw_all(store: Store, queue: Queue) -> None:
    """Withdraw all messages, as if they became dead letters."""
    while store.withdrawals.withdraw(queue, 10) is not None:
        pass


def browse(store: Store, queue: Queue) -> None:
    assert not list(store.stored.browse(queue))


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    """Two queues, whose messages are on disk only."""
    disk = Disk(str(tmp_path / "store"), clock=SimulatedClock(1_700_000_000_000))
    store = disk.open()
    for name in ("one", "two"):
        queue = store.create_queue({"vhost": "/", "name": name})
        store.publish([queue], messages(*[b"%d" % one for one in range(COUNT)]))
    store.sync()
    store.upkeep.checkpoint()
    store.close()
    return disk


def wipe(disk: Disk, folder: str) -> None:
    for name in os.listdir(f"{disk.directory}/{folder}"):
        path = Path(disk.directory, folder, name)
        path.write_bytes(bytes(path.stat().st_size))


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str, str]]:
    """Return count, queues and files of each line, and forget them."""
    found = [SAID.search(record.getMessage()) for record in caplog.records]
    caplog.clear()
    return [(int(one[1]), one[2], one[3]) for one in found if one]


@pytest.mark.parametrize("folder", [SEGMENTS, INDEX])
@pytest.mark.parametrize("look", [take_all, withdraw_all, browse])
def test_what_cannot_be_read_is_one_line_a_second_with_sums(
    disk: Disk, caplog: pytest.LogCaptureFixture, look: Look, folder: str
) -> None:
    wipe(disk, folder)
    store = disk.open()
    caplog.clear()
    for queue in store.queues.values():
        look(store, queue)
    first = lines(caplog)
    assert len(first) == 1
    store.read_again()
    assert not lines(caplog)
    assert isinstance(disk.clock, SimulatedClock)
    disk.clock.advance(1000)
    store.read_again()
    second = lines(caplog)
    assert len(second) == 1
    assert sum(count for count, *_ in (*first, *second)) == 2 * COUNT
    assert "/ two=300" in second[0][1]
    assert f"{disk.directory}/{folder}/" in second[0][2]
    disk.clock.advance(1000)
    store.read_again()
    assert not lines(caplog)
    store.close()


def test_many_queues_and_files_are_summed_up(caplog: pytest.LogCaptureFixture) -> None:
    clock = SimulatedClock(1_700_000_000_000)
    log = UnreadLog(clock)
    for number in range(30):
        log.note(f"q{number}", MessageDamagedError(1, "gone", path=f"f{number}", message_count=2))
    clock.advance(1000)
    log.write()
    _, (count, queues, files) = lines(caplog)
    assert count == 58
    assert queues.endswith("others=38")
    assert files.endswith("others=38")
