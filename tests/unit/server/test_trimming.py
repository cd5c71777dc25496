"""Tests of when memory is given back after many clients have left, or they or the store have much
less than before; and of the arena from which threads allocate.
"""

import gc
import subprocess
import sys
from collections.abc import Callable

import pytest
import trio

from amqpstore import Envelope, Message
from amqpstore_server.app import App
from amqpstore_server.loop import ticks
from amqpstore_server.loop.loop_limits import LOOP_LIMITS
from amqpstore_server.loop.trimming import CLIENT_BYTES, Trimming, trim
from tests.one_client import one_client


def times(*connected: tuple[float, int]) -> list[float]:
    """Return when it is due. Args: connected, times, and how many are connected from then on."""
    trimming = Trimming(LOOP_LIMITS)
    found = []
    now = 0.0
    for (since, clients), (until, _) in zip(connected, [*connected[1:], (200.0, 0)], strict=True):
        now = max(now, since)
        while now < until:
            if trimming.is_due(clients * CLIENT_BYTES, now):
                found.append(now)
            now += 0.5
    return found


def test_once_some_seconds_after_a_crowd_has_left() -> None:
    assert times((0.0, 1000), (50.0, 400)) == [60.0]


def test_not_while_it_is_there_or_for_a_few() -> None:
    assert times((0.0, 1000), (50.0, 501)) == []
    assert times((0.0, 499), (50.0, 0)) == []


def test_not_when_it_comes_back_at_once() -> None:
    assert times((0.0, 1000), (50.0, 0), (58.0, 1000), (100.0, 100)) == [110.0]


def test_after_each_crowd() -> None:
    assert times((0.0, 1000), (50.0, 0), (100.0, 600), (120.0, 0)) == [60.0, 130.0]


def test_names_that_were_looked_up_do_not_stay() -> None:
    """Each would keep a block of Python's allocator that is empty otherwise."""
    name = "".join(["no_such", "_attribute"])
    before = sys.getrefcount(name)
    getattr(int, name, None)
    if sys.getrefcount(name) == before:
        pytest.skip("this Python does not remember it")
    trim()
    assert sys.getrefcount(name) == before


@pytest.mark.parametrize("more_blocks", [1_000_000, -50_000])
def test_many_objects_are_not_all_looked_at(more_blocks: int) -> None:
    """Looking at millions of objects, those of the messages that wait, would hold the event loop
    for a long time, though it is another thread that asks for it.
    """
    few = sys.getallocatedblocks() + more_blocks
    whole = []

    def noted(phase: str, about: dict[str, int]) -> None:
        if phase == "start" and about["generation"] == 2:
            whole.append(about)

    gc.disable()  # none of its own
    gc.callbacks.append(noted)
    try:
        trim(few)
    finally:
        gc.callbacks.remove(noted)
        gc.enable()
    assert len(whole) == (more_blocks > 0)


def test_what_the_store_no_longer_holds_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backlog leaves much free memory, too."""
    trimmed: list[None] = []
    monkeypatch.setattr(ticks, "trim", lambda: trimmed.append(None))
    monkeypatch.setattr(ticks, "TICK_S", 0.01)
    limits = LOOP_LIMITS._replace(trim_after_s=0.0, min_trimmed_bytes=100_000)

    async def ticks_until(app: App, is_so: Callable[[], bool]) -> None:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(app.ticks.run)
                while not is_so():
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()

    async def run() -> None:
        async with one_client(limits) as (app, _):
            store = app.broker.services.store
            (queue,) = store.queues.values()
            store.publish([queue], [Message(Envelope("", "q"), bytes(1000))] * 500)
            await ticks_until(app, lambda: app.ticks.trimming._most_bytes > 500_000)
            assert not trimmed
            store.purge(queue)
            await ticks_until(app, lambda: bool(trimmed))

    trio.run(run)


ARENAS = """
import sys, threading
from amqpstore_server.loop.trimming import share_one_arena
share_one_arena()
got, done = threading.Semaphore(0), threading.Event()
def allocate():
    held = [bytes(1000) for _ in range(100)]
    got.release()
    done.wait()
threads = [threading.Thread(target=allocate) for _ in range(4)]
for one in threads: one.start()
for one in threads: got.acquire()
with open("/proc/self/maps") as maps: sys.stdout.write(maps.read())
done.set()
"""
ARENA_BYTES = 64 << 20
"""Bytes that the C library reserves, and uses from the start: `HEAP_MAX_SIZE` in its arena.c."""


@pytest.mark.skipif(sys.platform != "linux", reason="the arenas are those of Linux's C library")
def test_all_threads_allocate_from_one_arena() -> None:
    """Memory that an idle thread freed would stay with the process."""
    found = subprocess.run(
        [sys.executable, "-c", ARENAS], capture_output=True, text=True, check=True, timeout=60
    )
    mapped = [line.split()[0].split("-") for line in found.stdout.splitlines()]
    starts = {int(start, 16) for start, _ in mapped}
    ends = {int(end, 16) for _, end in mapped}
    assert not [one for one in starts if one % ARENA_BYTES == 0 and one + ARENA_BYTES in ends]
