"""The result of `bench stalls`, as one JSON object or as a table for people."""

import json
from dataclasses import dataclass, field

from amqpstore_tools.bench.histogram import Histogram
from amqpstore_tools.bench.stalls.settings import StallSettings
from amqpstore_tools.offline import terminal


@dataclass
class Stall:
    """How long the quiet client waited beside one disturbance."""

    count: int
    refused: str = ""  # why the broker refused it
    took_s: float = 0.0
    server_cpu_s: float | None = None  # None if its process is unknown
    alone: Histogram = field(default_factory=Histogram)  # confirms before
    confirm: Histogram = field(default_factory=Histogram)
    answer_alone: Histogram = field(default_factory=Histogram)
    answer: Histogram = field(default_factory=Histogram)  # without the disk

    def figures(self) -> dict[str, object]:
        """Return the figures for JSON."""
        if self.refused:
            return {"count": self.count, "refused": self.refused}
        cpu_s = self.server_cpu_s
        return {
            "count": self.count,
            "took_s": round(self.took_s, 3),
            "server_cpu_s": None if cpu_s is None else round(cpu_s, 3),
            "confirm_alone_ms": self.alone.summary_ms(),
            "confirm_ms": self.confirm.summary_ms(),
            "answer_alone_ms": self.answer_alone.summary_ms(),
            "answer_ms": self.answer.summary_ms(),
        }


@dataclass(frozen=True)
class StallReport:
    """All disturbances of a run."""

    settings: StallSettings
    product: str
    version: str
    stalls: dict[str, Stall]

    def as_json(self) -> str:
        """Return the result as JSON on one line."""
        return json.dumps(
            {
                "workload": "stalls",
                "parameters": self.settings.parameters(),
                "broker": {"product": self.product, "version": self.version},
                "results": self.results(),
            }
        )

    def results(self) -> dict[str, object]:
        """Return the figures, by disturbance."""
        return {name: stall.figures() for name, stall in self.stalls.items()}

    def print_table(self) -> None:
        """Print a table to standard output."""
        from rich.table import Table

        console = terminal.console()
        console.print(
            f"stalls on {self.product} {self.version}: what a quiet client waits for a confirm, "
            "and for an answer that needs no disk, in milliseconds",
            soft_wrap=True,
        )
        table = Table()
        table.add_column("while another client does", overflow="fold")
        for name in ("took s", "CPU s", "alone p99", "confirm p99", "worst", "answer p99", "worst"):
            table.add_column(name, justify="right", no_wrap=True)
        for name, stall in self.stalls.items():
            what = f"{name} {stall.count:,}"
            if stall.refused:
                table.add_row(what, "refused")
                continue
            table.add_row(
                what,
                f"{stall.took_s:.2f}",
                "" if stall.server_cpu_s is None else f"{stall.server_cpu_s:.2f}",
                _ms(stall.alone.percentile_ns(99)),
                _ms(stall.confirm.percentile_ns(99)),
                _ms(stall.confirm.max_ns),
                _ms(stall.answer.percentile_ns(99)),
                _ms(stall.answer.max_ns),
            )
        console.print(table)
        for name, stall in self.stalls.items():
            if stall.refused:
                console.print(f"{name}: {terminal.shown(stall.refused)}", soft_wrap=True)


def _ms(duration_ns: int) -> str:
    return f"{duration_ns / 1e6:,.1f}"
