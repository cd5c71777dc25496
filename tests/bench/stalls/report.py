"""The result of `bench stalls`, as one JSON object or as a table for people."""

from dataclasses import dataclass, field

from amqpstore_tools.bench.histogram import Histogram
from amqpstore_tools.offline import terminal
from tests.bench.interference.report import CasesReport, print_reasons, shown_ms


@dataclass
class Stall:
    """The waits of the quiet client beside one disturbance."""

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


class StallReport(CasesReport[Stall]):
    """The waits of a quiet client, by disturbance."""

    workload = "stalls"

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
        for name, stall in self.outcomes.items():
            what = f"{name} {stall.count:,}"
            if stall.refused:
                table.add_row(what, "refused")
                continue
            table.add_row(
                what,
                f"{stall.took_s:.2f}",
                "" if stall.server_cpu_s is None else f"{stall.server_cpu_s:.2f}",
                shown_ms(stall.alone.percentile_ns(99)),
                shown_ms(stall.confirm.percentile_ns(99)),
                shown_ms(stall.confirm.max_ns),
                shown_ms(stall.answer.percentile_ns(99)),
                shown_ms(stall.answer.max_ns),
            )
        console.print(table)
        print_reasons(console, {name: stall.refused for name, stall in self.outcomes.items()})
