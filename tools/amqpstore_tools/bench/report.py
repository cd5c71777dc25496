"""A run's result as one JSON object, or as a table for people."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amqpstore_tools.bench.measure import Measurement
from amqpstore_tools.bench.settings import BenchSettings
from amqpstore_tools.offline import terminal

if TYPE_CHECKING:
    from rich.console import Console

_COUNTERS = ("published", "confirmed", "delivered", "acked", "connected")


@dataclass(frozen=True)
class Report:
    """The result of one run, for people and scripts."""

    settings: BenchSettings
    product: str
    version: str
    measured: Measurement
    filled: Measurement | None = None  # for backlog: how it was published

    def results(self) -> dict[str, object]:
        """Return the figures; for backlog those of its drain, and those of its publishing as
        `fill`.
        """
        results = _figures(self.measured)
        if self.filled is not None:
            results["fill"] = _figures(self.filled)
        return results

    def as_json(self) -> str:
        """Return the result as JSON on one line."""
        return json.dumps(
            {
                "workload": self.settings.workload,
                "parameters": self.settings.parameters(),
                "broker": {"product": self.product, "version": self.version},
                "results": self.results(),
            }
        )

    def print_table(self) -> None:
        """Print a table to standard output."""
        console = terminal.console(soft_wrap=True)
        heading = f"{self.settings.workload} on {self.product} {self.version}"
        parameters = self.settings.parameters()
        given = [f"{name} {value}" for name, value in parameters.items() if value != ""]
        console.print(f"{heading}: {', '.join(given)}")
        if self.filled is not None:
            console.print("publishing:")
            _print(console, self.filled)
            console.print("consuming:")
        _print(console, self.measured)


def _print(console: Console, measured: Measurement) -> None:
    from rich.table import Table

    table = Table()
    table.add_column("")
    table.add_column("total", justify="right")
    table.add_column("per second", justify="right")
    for name in _COUNTERS:
        total = getattr(measured.overall, name)
        if total:
            rate = getattr(measured.within, name) / measured.window_s
            table.add_row(name, f"{total:,}", f"{rate:,.0f}")
    console.print(table)
    spent = ", ".join(f"{role} {cpu:.2f}" for role, cpu in sorted(measured.cpu_s.items()))
    console.print(
        f"measured {measured.window_s:.2f} s of {measured.duration_s:.2f} s; "
        f"generator CPU seconds: {spent}",
    )
    if (server := measured.server) is not None:
        each_us = server.cpu_s / (_handled(measured) or 1) * 1e6
        console.print(
            f"broker (process {server.pid}): {server.cpu_s:.2f} CPU seconds in the window, "
            f"{each_us:,.1f} us each; memory {server.rss_bytes / 2**20:,.0f} MiB at the end, "
            f"{server.max_rss_bytes / 2**20:,.0f} MiB at most",
        )
    for name, histogram in sorted(measured.histograms.items()):
        figures = histogram.summary_ms()
        console.print(
            f"{name}: p50 {figures['p50']:.3f} ms, p99 {figures['p99']:.3f} ms, "
            f"p99.9 {figures['p99_9']:.3f} ms, max {figures['max']:.3f} ms "
            f"({figures['samples']:,} samples)",
        )


def _figures(measured: Measurement) -> dict[str, object]:
    """Return the figures of one measurement.

    `X` are totals of the whole run, `X_per_s` rates within the measured window. Durations end in
    `_s` (seconds), `_ms` (milliseconds) or `_us` (microseconds); `*_cpu_us` is CPU time per message
    of that role, over the whole run. `server` is what the broker's process used: CPU in the
    measured window, and per message published in it (delivered, if nothing was published).
    """
    results: dict[str, object] = {}
    for name in _COUNTERS:
        results[name] = getattr(measured.overall, name)
        results[f"{name}_per_s"] = round(getattr(measured.within, name) / measured.window_s, 1)
    results["window_s"] = round(measured.window_s, 4)
    results["duration_s"] = round(measured.duration_s, 4)
    results["nacked"] = measured.nacked
    results["blocked"] = measured.blocked
    results["generator_cpu_s"] = round(sum(measured.cpu_s.values()), 3)
    totals = measured.overall
    handled = {
        "producer": totals.published,
        "consumer": totals.delivered,
        "connector": totals.connected,
    }
    for role, count in handled.items():
        if role in measured.cpu_s and count:
            results[f"{role}_cpu_us"] = round(measured.cpu_s[role] / count * 1e6, 3)
    if (server := measured.server) is not None:
        results["server"] = {
            "pid": server.pid,
            "cpu_s": round(server.cpu_s, 3),
            "cpu_us": round(server.cpu_s / (_handled(measured) or 1) * 1e6, 3),
            "rss_mib": round(server.rss_bytes / 2**20, 1),
            "max_rss_mib": round(server.max_rss_bytes / 2**20, 1),
        }
    for name, histogram in sorted(measured.histograms.items()):
        results[f"{name}_ms"] = histogram.summary_ms()
    return results


def _handled(measured: Measurement) -> int:
    """Return the messages, or connections, of the measured window."""
    within = measured.within
    return within.published or within.delivered or within.connected
