"""The jobs that a process of `bench store` can do to a store, each with its figures."""

import time
from collections.abc import Callable

from amqpstore import Envelope, Message, Options, Queue, Store, StoreError
from amqpstore_tools.bench.histogram import Histogram
from tests.bench.store.commits import Commits
from tests.bench.store.job import Figures, Job, Tell
from tests.bench.store.watch import (
    MemoryWatch,
    WatchedWorker,
    disk_bytes,
    resident_mib,
    used_bytes,
    written_bytes,
)

_QUIET_S = 120.0
"""The longest wait for background work to end."""

_LOOK_NS = 50_000_000
_STAMP_BYTES = 8


class _Bodies:
    """Creates messages that share an envelope and have bodies of their own, as if read from a
    socket.
    """

    def __init__(self, size: int) -> None:
        self._envelope = Envelope("", "bench", b"\x10\x00\x02")  # delivery mode 2
        self._filler = b"x" * max(0, size - _STAMP_BYTES)
        self._stamp = min(size, _STAMP_BYTES)

    def make(self, first: int, count: int) -> list[Message]:
        """Create messages from number `first` on."""
        envelope, filler, most = self._envelope, self._filler, (1 << (8 * self._stamp)) - 1
        return [
            Message(envelope, filler + (number & most).to_bytes(self._stamp, "big"))
            for number in range(first, first + count)
        ]


def _open(directory: str) -> tuple[Store, WatchedWorker]:
    options = Options()
    worker = WatchedWorker(options.compaction_bytes_s)
    return Store.open(directory, options=options, worker=worker), worker


def fill(job: Job, tell: Tell) -> Figures:
    """Publish to all of the queues; nothing is consumed."""
    memory = MemoryWatch()
    written = written_bytes()
    store, worker = _open(job.directory)
    queues = [store.create_queue({"name": f"bench-{number}"}) for number in range(job.queues)]
    commits = Commits(store, inline=job.inline)
    bodies = _Bodies(job.size)
    publish, turn = Histogram(), Histogram()
    started = looked = time.perf_counter_ns()
    for first in range(0, job.messages, job.batch):
        messages = bodies.make(first, min(job.batch, job.messages - first))
        waited = commits.waited_ns
        before = time.perf_counter_ns()
        store.publish(queues, messages)
        published = time.perf_counter_ns()
        commits.commit()
        after = time.perf_counter_ns()
        publish.record(published - before)
        turn.record(after - before - (commits.waited_ns - waited))
        tell(first + len(messages))
        if after - looked >= _LOOK_NS:
            looked = after
            memory.sample()
    commits.finish()
    duration_s = (time.perf_counter_ns() - started) / 1e9
    if not job.stays_open:
        worker.wait()
        store.upkeep.housekeep()
    figures: Figures = {
        **_rates(job, duration_s),
        "publish_ms": publish.summary_ms(),
        "turn_ms": turn.summary_ms(),
        "waited_for_disk_s": round(commits.waited_ns / 1e9, 3),
        **memory.figures(),
        "background_failures": worker.failures,
        "checkpoints": worker.checkpoints,
    }
    if not job.stays_open:
        store.upkeep.checkpoint()
        figures["written_bytes"] = written_bytes() - written
        figures |= _disk_figures(job.directory)
        store.close()
    return figures


def drain(job: Job, tell: Tell) -> Figures:
    """Take and ack everything in the store, which an earlier process filled and closed."""
    memory = MemoryWatch()
    store, _ = _open(job.directory)
    (queue,) = store.queues.values()
    _check_count(queue, job.messages)
    commits = Commits(store, inline=job.inline)
    take = Histogram()
    taken = pending = 0
    started = looked = time.perf_counter_ns()
    while queue.ready_count:
        before = time.perf_counter_ns()
        pending += _take(store, queue, job.batch)
        after = time.perf_counter_ns()
        take.record(after - before)
        if pending >= job.batch or not queue.ready_count:
            taken += pending
            pending = 0
            commits.commit()
            tell(taken)
        if after - looked >= _LOOK_NS:
            looked = after
            memory.sample()
    commits.finish()
    duration_s = (time.perf_counter_ns() - started) / 1e9
    store.upkeep.checkpoint()
    figures: Figures = {
        "messages": taken,
        "duration_s": round(duration_s, 3),
        "messages_per_s": round(taken / duration_s),
        "body_mib_per_s": round(taken * job.size / duration_s / (1 << 20), 1),
        "take_ms": take.summary_ms(),
        "waited_for_disk_s": round(commits.waited_ns / 1e9, 3),
        **memory.figures(),
        **_disk_figures(job.directory),
    }
    store.close()
    return figures


def open_store(job: Job, _tell: Tell) -> Figures:
    """Open the store that a killed process left; measure the time until its count, and its first
    message, are known.
    """
    started = time.perf_counter_ns()
    store, _ = _open(job.directory)
    (queue,) = store.queues.values()
    count = queue.ready_count
    counted = time.perf_counter_ns()
    _check_count(queue, job.messages)
    _take(store, queue, 1)
    read = time.perf_counter_ns()
    report = store.recovery_report
    figures: Figures = {
        "messages": count,
        "open_and_count_s": round((counted - started) / 1e9, 4),
        "first_message_s": round((read - started) / 1e9, 4),
        "scanned_bytes": report.scanned_bytes,
        "torn_bytes": report.torn_bytes,
        "resident_end_mib": round(resident_mib(), 1),
    }
    store.abandon()
    return figures


def churn(job: Job, tell: Tell) -> Figures:
    """Pass messages through one queue; each is taken and acked one batch after it was published."""
    memory = MemoryWatch()
    store, worker = _open(job.directory)
    staying = store.create_queue({"name": "staying"})
    passing = store.create_queue({"name": "passing"})
    commits = Commits(store, inline=job.inline)
    bodies = _Bodies(job.size)
    publish, while_compacting, turn = Histogram(), Histogram(), Histogram()
    step = max(1, job.messages // max(job.immortal, 1))
    immortal = peak = 0
    started = looked = time.perf_counter_ns()
    for first in range(0, job.messages, job.batch):
        messages = bodies.make(first, min(job.batch, job.messages - first))
        waited = commits.waited_ns
        before = time.perf_counter_ns()
        while immortal < job.immortal and immortal * step <= first:
            store.publish([staying], bodies.make(immortal, 1))
            immortal += 1
        is_compacting = worker.is_compacting
        begun = time.perf_counter_ns()
        store.publish([passing], messages)
        published = time.perf_counter_ns()
        while passing.ready_count > len(messages):
            _take(store, passing, passing.ready_count - len(messages))
        commits.commit()
        after = time.perf_counter_ns()
        publish.record(published - begun)
        if is_compacting:
            while_compacting.record(published - begun)
        turn.record(after - before - (commits.waited_ns - waited))
        tell(first + len(messages))
        if after - looked >= _LOOK_NS:
            looked = after
            memory.sample()
            peak = max(peak, used_bytes(disk_bytes(job.directory)))
    while passing.ready_count:
        _take(store, passing, passing.ready_count)
    commits.finish()
    duration_s = (time.perf_counter_ns() - started) / 1e9
    peak = max(peak, used_bytes(disk_bytes(job.directory)))
    quiet_s = _wait_until_quiet(store, worker)
    _check_count(staying, immortal)
    peak = max(peak, used_bytes(disk_bytes(job.directory)))
    figures: Figures = {
        **_rates(job, duration_s),
        "publish_ms": publish.summary_ms(),
        "publish_while_compacting_ms": while_compacting.summary_ms(),
        "turn_ms": turn.summary_ms(),
        "waited_for_disk_s": round(commits.waited_ns / 1e9, 3),
        "disk_peak_bytes": peak,
        "live_bytes": immortal * job.size,
        "until_quiet_s": round(quiet_s, 3),
        **_disk_figures(job.directory),
        "background_failures": worker.failures,
        "checkpoints": worker.checkpoints,
        "compactions": worker.compactions,
        "compaction_read_bytes": worker.compaction_read_bytes,
        "compaction_s": round(worker.compaction_s, 3),
        **memory.figures(),
    }
    store.close()
    return figures


def _take(store: Store, queue: Queue, limit: int) -> int:
    """Take some messages and ack them; returns how many. Raises: StoreError."""
    run = store.take(queue, limit)
    if isinstance(run, StoreError):
        raise run
    if run is None:
        return 0
    store.ack(queue, run)
    return run.count


def _check_count(queue: Queue, expected: int) -> None:
    if queue.ready_count != expected:
        raise RuntimeError(f"{queue.ready_count} messages are ready, but {expected} were due")


def _wait_until_quiet(store: Store, worker: WatchedWorker) -> float:
    """Wait until no background work is left; return the seconds it took. Raises: RuntimeError."""
    started = time.monotonic()
    while time.monotonic() - started < _QUIET_S:
        store.upkeep.checkpoint()
        worker.wait_for_pace()
        store.upkeep.housekeep()
        if not worker.wait():
            return time.monotonic() - started
    raise RuntimeError(f"background work did not end within {_QUIET_S:g} s")


def _rates(job: Job, duration_s: float) -> Figures:
    return {
        "messages": job.messages,
        "duration_s": round(duration_s, 3),
        "messages_per_s": round(job.messages / duration_s),
        "body_mib_per_s": round(job.messages * job.size / duration_s / (1 << 20), 1),
    }


def _disk_figures(directory: str) -> Figures:
    """Return the bytes on disk: in all, and by kind."""
    found = disk_bytes(directory)
    parts = {f"disk_{name}_bytes": found.get(name, 0) for name in ("segments", "index", "catalog")}
    return {"disk_bytes": used_bytes(found), **parts, "disk_reserve_bytes": found.get("reserve", 0)}


JOBS: dict[str, Callable[[Job, Tell], Figures]] = {
    "fill": fill,
    "drain": drain,
    "open": open_store,
    "churn": churn,
}
