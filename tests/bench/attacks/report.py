"""The result of `bench attacks`, as one JSON object or as a table for people."""

import statistics
from dataclasses import dataclass, field

from amqpstore_tools.bench.histogram import Histogram
from amqpstore_tools.offline import terminal
from tests.bench.attacks.others import Slice
from tests.bench.interference.report import CasesReport, print_reasons, shown_ms

_MIB = 1 << 20


@dataclass
class AttackResult:
    """Measurements of the other clients beside one attack."""

    count: int
    failed: str = ""  # why it could not be measured
    alone: list[Slice] = field(default_factory=list)
    attacked: list[Slice] = field(default_factory=list)
    confirm_alone: Histogram = field(default_factory=Histogram)
    confirm: Histogram = field(default_factory=Histogram)
    rss_before_bytes: int = 0  # 0 if the broker's process is unknown, as the next one
    rss_after_bytes: int = 0

    @property
    def ratio(self) -> float:
        """The others' rate beside the attack, as a part of the rate without it: the median of the
        rounds.
        """
        rounds = zip(self.attacked, self.alone, strict=True)
        return statistics.median(one.rate / max(1.0, other.rate) for one, other in rounds)

    @property
    def cpu_ratio(self) -> float:
        """The ratio, counted in the broker's processor time for each message: what other processes
        take is not in it. 0 if the process is unknown.
        """
        rounds = zip(self.attacked, self.alone, strict=True)
        return statistics.median(
            other.cpu_us / one.cpu_us if one.cpu_us else 0.0 for one, other in rounds
        )

    @property
    def logins(self) -> Histogram:
        """Return how long right logins took beside the attack."""
        merged = Histogram()
        merged.merge([one.logins for one in self.attacked])
        return merged

    @property
    def rss_peak_bytes(self) -> int:
        """The most memory that the broker had."""
        return max(one.rss_bytes for one in self.attacked)

    def figures(self) -> dict[str, object]:
        """Return the figures for JSON."""
        if self.failed:
            return {"count": self.count, "failed": self.failed}
        return {
            "count": self.count,
            "rate_alone": [round(one.rate) for one in self.alone],
            "rate": [round(one.rate) for one in self.attacked],
            "ratio": round(self.ratio, 3),
            "cpu_us_alone": [round(one.cpu_us, 1) for one in self.alone],
            "cpu_us": [round(one.cpu_us, 1) for one in self.attacked],
            "cpu_ratio": round(self.cpu_ratio, 3),
            "confirm_alone_ms": self.confirm_alone.summary_ms(),
            "confirm_ms": self.confirm.summary_ms(),
            "login_ms": self.logins.summary_ms(),
            "rss_before_bytes": self.rss_before_bytes,
            "rss_peak_bytes": self.rss_peak_bytes,
            "rss_after_bytes": self.rss_after_bytes,
        }


class AttackReport(CasesReport[AttackResult]):
    """Measurements of the other clients, by attack."""

    workload = "attacks"

    def print_table(self) -> None:
        """Print a table to standard output."""
        from rich.table import Table

        console = terminal.console()
        console.print(
            f"attacks on {self.product} {self.version}: the rate of others as a part of theirs "
            "without it, the same by the broker's processor time a message, what they wait for a "
            "confirm and for a login in milliseconds, and the "
            "broker's memory in MiB",
            soft_wrap=True,
        )
        table = Table()
        table.add_column("while another client does", overflow="fold")
        for name in (
            "others",
            "by cpu",
            "alone p99",
            "confirm p99",
            "login max",
            "before",
            "peak",
            "after",
        ):
            table.add_column(name, justify="right", no_wrap=True)
        for name, outcome in self.outcomes.items():
            table.add_row(f"{name} {outcome.count:,}", *_cells(outcome))
        console.print(table)
        print_reasons(console, {name: one.failed for name, one in self.outcomes.items()})


def _cells(outcome: AttackResult) -> list[str]:
    if outcome.failed:
        return ["not measured"]
    memory = (outcome.rss_before_bytes, outcome.rss_peak_bytes, outcome.rss_after_bytes)
    return [
        f"{outcome.ratio:.2f}",
        f"{outcome.cpu_ratio:.2f}" if outcome.cpu_ratio else "",
        shown_ms(outcome.confirm_alone.percentile_ns(99)),
        shown_ms(outcome.confirm.percentile_ns(99)),
        shown_ms(outcome.logins.max_ns),
        *(f"{rss_bytes / _MIB:,.0f}" if rss_bytes else "" for rss_bytes in memory),
    ]
