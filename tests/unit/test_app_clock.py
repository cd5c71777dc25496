"""Tasks of the broker are not told that the wall clock was set, but see it in time."""

from collections.abc import Callable
from pathlib import Path

import trio
import trio.testing

from amqpstore import Store
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_server.app import App
from amqpstore_server.broker.definitions.predeclared import DEFAULT_VHOST
from amqpstore_server.config.config import Config
from tests.unit.broker.simulated import labelled


class TaskClock:
    """Trio's own time, and a wall clock beside it. The store's `Clock`."""

    def __init__(self, current_time: Callable[[], float] = trio.current_time) -> None:
        self.ahead_ms = 1_700_000_000_000
        self._current_time = current_time

    def monotonic_ms(self) -> int:
        return round(self._current_time() * 1000) + 1

    def wall_ms(self) -> int:
        return self.monotonic_ms() + self.ahead_ms


async def _with_app(data: str, clock: TaskClock, waited_s: float, jump_ms: int) -> int:
    """Return how many messages of a queue with a TTL of a minute are left after a jump and some
    time."""
    with Store.open(data, worker=InlineWorker(), clock=clock) as store:
        app = App(Config(data=data), store, None)
        queue = app.broker.vhost(DEFAULT_VHOST).declare_queue(
            "q",
            durable=True,
            exclusive=False,
            auto_delete=False,
            arguments={"x-message-ttl": 60_000},
            connection=None,
        )
        parsed, messages = labelled("", "q", "a")
        placement = queue.placement(parsed, messages, immediate=False)
        store.enqueue([placement], messages)
        queue.arrived(messages, placement)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(app._run_timers)
            await trio.sleep(1)
            clock.ahead_ms += jump_ms
            await trio.sleep(waited_s)
            nursery.cancel_scope.cancel()
        left = queue.ready_count
        app.committer.stop()
        app.sockets.close()
        return left


def left(tmp_path: Path, waited_s: float, jump_ms: int) -> int:
    clock = trio.testing.MockClock(autojump_threshold=0)
    found: int = trio.run(
        _with_app, str(tmp_path / "store"), TaskClock(), waited_s, jump_ms, clock=clock
    )
    return found


def test_what_expired_by_a_jump_of_the_clock_is_gone_soon(tmp_path: Path) -> None:
    assert left(tmp_path, 2, 3_600_000) == 0


def test_what_has_not_expired_by_the_clock_stays(tmp_path: Path) -> None:
    assert left(tmp_path, 600, -3_600_000) == 1
