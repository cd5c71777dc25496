"""Watching a fleet: the measured window, the end of the run, and the deadline."""

import resource
import sys
from dataclasses import dataclass, field

from amqpstore_tools.bench.board import FOREVER_NS, Totals, now_ns
from amqpstore_tools.bench.fleet import Fleet, cpu_s
from amqpstore_tools.bench.histogram import Histogram
from amqpstore_tools.bench.server_process import ServerProcess
from amqpstore_tools.bench.settings import BenchSettings
from amqpstore_tools.bench.worker import Schedule
from amqpstore_tools.client.errors import BenchError

_START_DELAY_NS = 20_000_000  # for the signal to reach every worker
_TICK_S = 0.02
_PROGRESS_NS = 500_000_000
_MEMORY_NS = 100_000_000
CONSUMER = "consumer"


@dataclass(frozen=True)
class ServerUse:
    """The resources that the broker's process used."""

    pid: int
    cpu_s: float  # user and system, in the measured window
    rss_bytes: int  # when everything was done
    max_rss_bytes: int  # the most that was seen during the run


@dataclass
class Measurement:
    """The result of a run."""

    window_s: float
    duration_s: float  # from the common start to the last worker's last count
    within: Totals  # counted in the measured window
    overall: Totals
    cpu_s: dict[str, float]  # by role, "bench" being the process that watches
    nacked: int
    blocked: int
    histograms: dict[str, Histogram] = field(default_factory=dict)
    server: ServerUse | None = None


def measure(
    fleet: Fleet, settings: BenchSettings, copies: int, backlog: int, server: ServerProcess | None
) -> Measurement:
    """Run a fleet that is ready to its end.

    Consumers are stopped when all `copies` of what was published and the `backlog` that was there
    before have been delivered.

    Raises:
        BenchError: a worker failed, or the run was not over after the settings' timeout.
    """
    own_cpu_s = cpu_s(resource.RUSAGE_SELF)
    start_ns = now_ns() + _START_DELAY_NS
    window_ns = start_ns + int(settings.warmup * 1e9)
    stop_ns = window_ns + int(settings.seconds * 1e9) if settings.seconds else FOREVER_NS
    fleet.start(Schedule(start_ns, window_ns, stop_ns))
    watch = _Watch(fleet, settings, Schedule(start_ns, window_ns, stop_ns), server)
    while not fleet.finished():
        fleet.collect(watch.tick())
        if fleet.finished(but=CONSUMER):
            totals = fleet.board.totals()
            if totals.delivered >= totals.published * copies + backlog:
                fleet.board.stop()
    watch.tick()
    watch.clear_progress()
    overall = fleet.board.totals()
    first_ns, first = watch.opened or (start_ns, Totals())
    last_ns, last = watch.closed or (overall.last_ns, overall)
    cpu = {"bench": cpu_s(resource.RUSAGE_SELF) - own_cpu_s}
    merged: dict[str, Histogram] = {}
    outcomes = [(worker.role, worker.outcome) for worker in fleet.workers]
    for role, outcome in outcomes:
        if outcome is None:
            continue
        cpu[role] = cpu.get(role, 0.0) + outcome.cpu_s
        for name, histogram in outcome.histograms.items():
            merged.setdefault(name, Histogram()).merge([histogram])
    return Measurement(
        window_s=max(1, last_ns - first_ns) / 1e9,
        duration_s=max(1, overall.last_ns - start_ns) / 1e9,
        within=_difference(first, last),
        overall=overall,
        cpu_s=cpu,
        nacked=sum(outcome.nacked for _, outcome in outcomes if outcome),
        blocked=sum(outcome.blocked for _, outcome in outcomes if outcome),
        histograms=merged,
        server=watch.server_use(),
    )


class _Watch:
    """Samples the board when the measured window opens and closes, and shows progress."""

    def __init__(
        self,
        fleet: Fleet,
        settings: BenchSettings,
        schedule: Schedule,
        server: ServerProcess | None,
    ) -> None:
        self.opened: tuple[int, Totals] | None = None
        self.closed: tuple[int, Totals] | None = None
        self._board = fleet.board
        self._settings = settings
        self._schedule = schedule
        self._deadline_ns = schedule.start_ns + int(settings.timeout * 1e9)
        self._live = sys.stderr.isatty()
        self._shown: tuple[int, Totals] = (schedule.start_ns, Totals())
        self._server = server
        self._cpu_opened_s = server.cpu_s() if server else 0.0
        self._cpu_closed_s: float | None = None
        self._memory_ns = 0
        self._max_rss_bytes = 0

    def tick(self) -> float:
        """Check clock and board. Returns the seconds until the next check.

        Raises:
            BenchError: the deadline has passed.
        """
        now = now_ns()
        schedule = self._schedule
        if self.opened is None and self._settings.warmup and now >= schedule.window_ns:
            self.opened = (now, self._board.totals())
            self._cpu_opened_s = self._server.cpu_s() if self._server else 0.0
        if self.closed is None and now >= schedule.stop_ns:
            self.closed = (now, self._board.totals())
            self._cpu_closed_s = self._server.cpu_s() if self._server else 0.0
        if self._server and now >= self._memory_ns:
            self._max_rss_bytes = max(self._max_rss_bytes, self._server.rss_bytes())
            self._memory_ns = now + _MEMORY_NS
        if now >= self._deadline_ns:
            totals = self._board.totals()
            raise BenchError(
                f"given up after {self._settings.timeout:g} s (--timeout): {totals.published} "
                f"published, {totals.confirmed} confirmed, {totals.delivered} delivered, "
                f"{totals.acked} acked. The broker may block publishers, or be too slow for this "
                "run: try a longer --timeout."
            )
        if self._live and now - self._shown[0] >= _PROGRESS_NS:
            self._show_progress(now)
        coming = (schedule.window_ns, schedule.stop_ns)
        return min([_TICK_S, *((moment - now) / 1e9 for moment in coming if moment > now)])

    def server_use(self) -> ServerUse | None:
        """Return what the broker used up to now; None if its process is unknown."""
        server = self._server
        if server is None:
            return None
        closed_s = server.cpu_s() if self._cpu_closed_s is None else self._cpu_closed_s
        rss_bytes = server.rss_bytes()
        return ServerUse(
            server.pid,
            closed_s - self._cpu_opened_s,
            rss_bytes,
            max(rss_bytes, self._max_rss_bytes),
        )

    def _show_progress(self, now: int) -> None:
        totals = self._board.totals()
        before_ns, before = self._shown
        step_s = (now - before_ns) / 1e9
        fresh = _difference(before, totals)
        counts = {
            "published": fresh.published,
            "confirmed": fresh.confirmed,
            "delivered": fresh.delivered,
            "connected": fresh.connected,
        }
        rates = "  ".join(f"{name} {count / step_s:,.0f}/s" for name, count in counts.items())
        elapsed_s = (now - self._schedule.start_ns) / 1e9
        sys.stderr.write(f"\r\x1b[K{self._settings.workload} {elapsed_s:.1f} s  {rates}")
        sys.stderr.flush()
        self._shown = (now, totals)

    def clear_progress(self) -> None:
        """Clear the terminal's line."""
        if self._live:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _difference(first: Totals, last: Totals) -> Totals:
    return Totals(
        published=last.published - first.published,
        confirmed=last.confirmed - first.confirmed,
        delivered=last.delivered - first.delivered,
        acked=last.acked - first.acked,
        connected=last.connected - first.connected,
        last_ns=last.last_ns,
    )
