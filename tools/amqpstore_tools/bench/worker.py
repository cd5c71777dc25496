"""The task of a worker process, and its result."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from amqpstore_tools.bench.board import Board, Row, now_ns
from amqpstore_tools.bench.histogram import Histogram
from amqpstore_tools.bench.settings import BenchSettings


@dataclass(frozen=True)
class Schedule:
    """The times of a run, on the monotonic clock in nanoseconds; the same for all workers."""

    start_ns: int
    window_ns: int  # the measured window opens
    stop_ns: int  # publishing ends; `FOREVER_NS` when a number of messages ends it

    def in_window(self, moment_ns: int) -> bool:
        """Tell whether something due at this moment belongs to the measurement."""
        return self.window_ns <= moment_ns < self.stop_ns


@dataclass
class WorkerReport:
    """The report of a worker when it is done."""

    cpu_s: float = 0.0  # user and system, since the start signal
    nacked: int = 0
    blocked: int = 0  # times the broker announced connection.blocked
    histograms: dict[str, Histogram] = field(default_factory=dict)


@dataclass(frozen=True)
class BenchWorker:
    """One worker's view of the run, inside its process."""

    settings: BenchSettings
    board: Board
    row: Row
    wait_for_start: Callable[[], Schedule]  # reports ready, then waits for the common signal

    def start(self) -> Schedule:
        """Report ready, and return at the common start."""
        schedule = self.wait_for_start()
        time.sleep(max(0, schedule.start_ns - now_ns()) / 1e9)
        return schedule


@dataclass(frozen=True)
class Task:
    """The work of one worker process; `role` groups CPU time in the report."""

    role: str
    run: Callable[[BenchWorker], WorkerReport]
