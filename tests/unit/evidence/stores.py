"""Stores whose notes know more than their files, and how they lose these."""

from pathlib import Path

from amqpstore import Message, Options, Store
from amqpstore.system.clock import Clock
from amqpstore.upkeep.worker import InlineWorker
from tests.unit.engine.stores import ENVELOPE

OPTIONS = Options(segment_bytes=1 << 12, reserve_bytes=0, checkpoint_ms=1 << 40)


class ManualClock(Clock):
    """A clock that the test moves on."""

    def __init__(self) -> None:
        self._now_ms = 1_000_000

    def wall_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._now_ms

    def advance(self, ms: int) -> None:
        self._now_ms += ms


def opened(directory: Path, clock: ManualClock | None = None) -> Store:
    """Open a store that makes no checkpoint by itself."""
    return Store.open(
        str(directory), options=OPTIONS, worker=InlineWorker(), clock=clock or ManualClock()
    )


def publish(store: Store, count: int) -> None:
    """Publish messages to the only queue: five fill a segment."""
    orders = next(iter(store.queues.values()))
    store.publish([orders], [Message(ENVELOPE, bytes(1000))] * count)
    store.sync()


def killed_store(path: Path, pause_ms: int = 2000) -> Path:
    """Make a store that was killed: a checkpoint behind five messages, and then three times five,
    each five in a segment of their own, after a pause. Nothing but notes of positions knows of
    these.
    """
    clock = ManualClock()
    store = opened(path, clock)
    store.create_queue({"name": "orders"})
    publish(store, 5)
    store.upkeep.checkpoint()
    for _ in range(3):
        clock.advance(pause_ms)
        publish(store, 5)
    store.abandon()
    return path


def zeros(path: Path) -> None:
    """Let a file have only zeros."""
    path.write_bytes(bytes(path.stat().st_size))
