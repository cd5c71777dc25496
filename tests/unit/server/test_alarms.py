"""The alarms: raised at the limit, cleared below it, and only then do publishers go on."""

import io
from collections.abc import Callable

import pytest

from amqpstore_server.loop import alarms as module
from amqpstore_server.loop.alarms import Alarms, available_bytes, used_bytes, watermark_bytes
from amqpstore_server.terms.serving_term import SingleNode
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client


class Case:
    """Alarms of a store, with the memory that the test says."""

    def __init__(self, watermark: int = 1000) -> None:
        self.store = SimulatedBroker().store
        self.used = 0
        self.freed = 0
        self.alarms = Alarms(self.store, watermark, self._free, lambda: self.used)

    def _free(self) -> None:
        self.freed += 1

    def look(self, used: int, now: float = 0.0) -> bool:
        self.used = used
        self.alarms.look(now)
        return self.alarms.is_raised


def test_a_watermark_is_a_share_or_bytes() -> None:
    assert watermark_bytes(0.5, 1000) == 500
    assert watermark_bytes(1, 1000) == 1000
    assert watermark_bytes(700_000_000, 1000) == 700_000_000
    assert watermark_bytes(0, 1000) == 0


def test_the_alarm_is_cleared_below_where_it_was_raised() -> None:
    case = Case()
    assert [case.look(used) for used in (999, 1000, 999, 951, 949, 999, 1000)] == [
        *(False, True, True, True, False, False, True)
    ]


def test_without_a_watermark_there_is_no_alarm() -> None:
    case = Case(watermark=0)
    assert not case.look(1 << 60)


def test_a_watermark_that_is_taken_away_clears_the_alarm() -> None:
    case = Case()
    assert case.look(2000)
    case.alarms.watermark_bytes = 0
    assert not case.look(2000)


def test_what_can_be_freed_is_freed_when_it_is_raised_and_now_and_then() -> None:
    case = Case()
    case.look(2000)
    assert case.freed == 1
    case.look(2000, now=1.0)
    assert case.freed == 1
    case.look(2000, now=6.0)
    assert case.freed == 2


def test_unfinished_publishes_cannot_keep_the_alarm_raised() -> None:
    case = Case()
    assert case.alarms.unfinished_bytes(10_000) == 500
    assert case.alarms.unfinished_bytes(100) == 100
    case.look(2000)
    assert case.alarms.unfinished_bytes(10_000) == 250
    assert Case(watermark=0).alarms.unfinished_bytes(10_000) == 10_000


def test_messages_leave_memory_while_it_is_short() -> None:
    simulated = SimulatedBroker()
    queue = simulated.queue("q")
    client = Client(simulated)
    for number in range(300):
        client.publish("", "q", f"{number:05}" * 2000)
    simulated.settle()
    store_queue = queue.priorities.lowest
    assert store_queue.memory_bytes > 2 << 20
    alarms = Alarms(simulated.store, 1000, lambda: None, lambda: 2000)
    alarms.look(0.0)
    simulated.store.upkeep.housekeep()
    assert store_queue.memory_bytes <= 1 << 20
    assert simulated.ready("q") == [f"{number:05}" * 2000 for number in range(300)]


def test_the_disk_and_memory_are_both_named() -> None:
    case = Case()
    assert case.alarms.reason == ""
    case.look(2000)
    assert case.alarms.reason == "low on memory"
    case.store.space.is_low = True
    assert case.alarms.reason == "low on memory and low on disk"


def test_publishers_wait_as_soon_as_the_disk_is_found_low() -> None:
    """Publishers wait before the next look, as the disk fills up faster than that."""
    case = Case()
    assert not case.look(0)
    case.store.space.require(1 << 60)
    assert case.alarms.is_blocking
    case.store.space.require(0)
    assert case.alarms.is_blocking
    case.look(0)
    assert not case.alarms.is_blocking


def test_publishers_wait_as_soon_as_too_few_replicas_have_what_was_published() -> None:
    case, term = Case(), SingleNode()
    case.alarms = Alarms(case.store, 1000, lambda: None, lambda: 0, term=term)
    case.look(0)
    assert not case.alarms.is_blocking
    term.is_blocked = True
    term.on_blocked()
    assert case.alarms.is_blocking


def test_a_directory_that_is_gone_is_no_full_disk(caplog: pytest.LogCaptureFixture) -> None:
    case = Case()
    case.store.space.is_low = True
    case.store.space.problem = "No such file or directory"
    case.look(0)
    (record,) = caplog.records
    assert "the data directory cannot be reached" in record.message


class Publisher:
    """A blocked connection, which notes that it goes on."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def alarm_is_over(self) -> None:
        self.told.append("over")


def test_publishers_wait_until_it_is_cleared() -> None:
    case, publisher, failing = Case(), Publisher(), Publisher()
    failing.alarm_is_over = lambda: 1 // 0  # type: ignore[assignment,method-assign]
    case.look(2000)
    case.alarms.blocked |= {failing: None, publisher: None}
    case.look(990)
    assert publisher.told == []
    case.look(100)
    case.look(100)
    assert publisher.told == ["over"], "one that fails holds up no other, and each is told once"


def test_this_process_uses_some_of_what_there_is() -> None:
    assert 1 << 20 < used_bytes() < available_bytes()


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "5000\n"}, [5000]),
        ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "max\n"}, []),
        (
            {
                "/proc/self/cgroup": "0::/a/b\n",
                "/sys/fs/cgroup/a/memory.max": "7000\n",
                "/sys/fs/cgroup/a/b/memory.max": "max\n",
            },
            [7000],
        ),
        (
            {
                "/proc/self/cgroup": "4:cpu:/x\n3:memory:/docker/c\n",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9000\n",
            },
            [9000],
        ),
        ({}, []),
    ],
)
def test_the_limit_of_a_container_counts(
    files: dict[str, str], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "open", _opener(files), raising=False)
    assert module._cgroup_limits() == expected


def _opener(files: dict[str, str]) -> Callable[..., object]:
    def opened(path: str, **_: object) -> object:
        if path not in files:
            raise FileNotFoundError(path)
        return io.StringIO(files[path])

    return opened
