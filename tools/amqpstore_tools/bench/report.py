"""A run's result as one JSON object, or as a table for people."""

import json
from dataclasses import dataclass

from amqpstore_tools.bench.measure import Measurement
from amqpstore_tools.bench.settings import Settings
from amqpstore_tools.offline import terminal

_COUNTERS = ("published", "confirmed", "delivered", "acked", "connected")


@dataclass(frozen=True)
class Report:
    """Everything worth knowing about one run."""

    settings: Settings
    product: str
    version: str
    measured: Measurement

    def results(self) -> dict[str, object]:
        """The figures.

        `X` are totals of the whole run, `X_per_s` rates within the measured window. Durations
        end in `_s` (seconds), `_ms` (milliseconds) or `_us` (microseconds); `*_cpu_us` is CPU
        time per message of that role, over the whole run.
        """
        measured = self.measured
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
        for name, histogram in sorted(measured.histograms.items()):
            results[f"{name}_ms"] = histogram.summary_ms()
        return results

    def as_json(self) -> str:
        """One line."""
        return json.dumps(
            {
                "workload": self.settings.workload,
                "parameters": self.settings.parameters(),
                "broker": {"product": self.product, "version": self.version},
                "results": self.results(),
            }
        )

    def print_table(self) -> None:
        """Writes a table to standard output."""
        from rich.table import Table

        console = terminal.console(soft_wrap=True)
        heading = f"{self.settings.workload} on {self.product} {self.version}"
        parameters = self.settings.parameters()
        given = [f"{name} {value}" for name, value in parameters.items() if value != ""]
        console.print(f"{heading}: {', '.join(given)}")
        table = Table()
        table.add_column("")
        table.add_column("total", justify="right")
        table.add_column("per second", justify="right")
        measured = self.measured
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
        for name, histogram in sorted(measured.histograms.items()):
            figures = histogram.summary_ms()
            console.print(
                f"{name}: p50 {figures['p50']:.3f} ms, p99 {figures['p99']:.3f} ms, "
                f"p99.9 {figures['p99_9']:.3f} ms, max {figures['max']:.3f} ms "
                f"({figures['samples']:,} samples)",
            )
