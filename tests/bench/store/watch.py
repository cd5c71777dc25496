"""Observes the store from outside: its background work, its disk, the process's memory."""

import contextlib
import os
import time
from collections.abc import Callable
from inspect import unwrap

from amqpstore.checkpoints.compaction import Compacted, Compaction
from amqpstore.upkeep.worker import Outcome, ThreadWorker

_PACE_S = 0.1
"""Longer than the store waits until it looks again, apart from the pace of compaction."""


class WatchedWorker:
    """A thread that does the store's background work, and keeps track of it.

    Args: compaction_bytes_s, the store's option: work may be due that waits for its pace.
    """

    def __init__(self, compaction_bytes_s: int) -> None:
        self.failures = 0
        self.checkpoints = 0
        self.compactions = 0
        self.compaction_read_bytes = 0
        self.compaction_s = 0.0
        self._compaction_bytes_s = compaction_bytes_s
        self._worker = ThreadWorker()
        self._kept: Outcome[object] | None = None
        self._is_busy = False
        self._is_compaction = False
        self._started = 0.0
        self._due = 0.0

    @property
    def is_compacting(self) -> bool:
        """Whether a compaction is under way."""
        return self._is_busy and self._is_compaction

    def start(self, work: Callable[[], object]) -> None:
        self._is_busy = True
        self._is_compaction = isinstance(getattr(unwrap(work), "__self__", None), Compaction)
        self._started = time.monotonic()
        self._worker.start(work)

    def poll(self, *, wait: bool = False) -> Outcome[object] | None:
        if self._kept is None:
            self._take(wait=wait)
        outcome, self._kept = self._kept, None
        return outcome

    def close(self) -> None:
        self._worker.close()

    def wait(self) -> bool:
        """Wait until no work is running; `poll` returns it then. Returns whether there was any."""
        if self._is_busy:
            self._take(wait=True)
        return self._kept is not None

    def wait_for_pace(self) -> None:
        """Wait until a necessary compaction would have started."""
        time.sleep(max(0.0, self._due - time.monotonic()))

    def _take(self, *, wait: bool) -> None:
        outcome = self._worker.poll(wait=wait)
        if outcome is None:
            return
        self._kept = outcome
        self._is_busy = False
        now = time.monotonic()
        self.checkpoints += not self._is_compaction
        try:
            result = outcome.get()
        except Exception:  # noqa: BLE001 (raised again where the store takes it over)
            self.failures += 1
            return
        if isinstance(result, Compacted):
            self.compactions += 1
            self.compaction_read_bytes += result.moved_bytes
            self.compaction_s += now - self._started
            self._due = now + _PACE_S + result.moved_bytes / self._compaction_bytes_s


def disk_bytes(directory: str) -> dict[str, int]:
    """Return the bytes allocated on disk, by file or first directory under `directory`."""
    found: dict[str, int] = {}
    for path, _, names in os.walk(directory):
        part = os.path.relpath(path, directory).split(os.sep)[0]
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                allocated = os.stat(os.path.join(path, name)).st_blocks * 512
                key = name if part == "." else part
                found[key] = found.get(key, 0) + allocated
    return found


def used_bytes(found: dict[str, int]) -> int:
    """Add up the result of `disk_bytes` without the reserve, whose size is the same for any
    load.
    """
    return sum(size for name, size in found.items() if name != "reserve")


class MemoryWatch:
    """Resident memory of this process: VmRSS whenever `sample` is called, and the kernel's peak."""

    def __init__(self) -> None:
        self.first_mib = resident_mib()
        self._sum = 0.0
        self._count = 0

    def sample(self) -> None:
        """Take a sample."""
        self._sum += resident_mib()
        self._count += 1

    def figures(self) -> dict[str, object]:
        """Return memory before, the mean of the samples, the peak and now, in MiB."""
        self.sample()
        return {
            "resident_before_mib": round(self.first_mib, 1),
            "resident_mean_mib": round(self._sum / max(self._count, 1), 1),
            "resident_peak_mib": round(peak_mib(), 1),
            "resident_end_mib": round(resident_mib(), 1),
        }


def resident_mib() -> float:
    """Return the resident memory of this process."""
    return _status_mib("VmRSS")


def peak_mib() -> float:
    """Return the peak resident memory of this process."""
    return _status_mib("VmHWM")


def written_bytes() -> int:
    """Return the bytes that this process has passed to write calls so far, for any file."""
    return _number("/proc/self/io", "wchar")


def _status_mib(name: str) -> float:
    return _number("/proc/self/status", name) / 1024


def _number(path: str, name: str) -> int:
    """Return the number in a line `name: number`."""
    with open(path, encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
