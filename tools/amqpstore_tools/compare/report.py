"""The result of `bench compare`, as one JSON object or as a table for people."""

import json
import os
from dataclasses import asdict, dataclass

from amqpstore_tools.compare.settings import CompareSettings
from amqpstore_tools.compare.summary import Rounds, Spread
from amqpstore_tools.offline import terminal


@dataclass(frozen=True)
class ComparedBroker:
    """One of the brokers."""

    label: str
    address: str
    product: str
    version: str


@dataclass(frozen=True)
class CompareReport:
    """Everything that was measured."""

    settings: CompareSettings
    started: str  # UTC
    brokers: list[ComparedBroker]
    rounds: dict[str, Rounds]  # by the workload's name

    def as_json(self) -> str:
        """Return the result as JSON on one line."""
        return json.dumps(
            {
                "workload": "compare",
                "started": self.started,
                "cores": os.cpu_count(),
                "rounds": self.settings.rounds,
                "brokers": [asdict(broker) for broker in self.brokers],
                "workloads": {name: self._figures(one) for name, one in self.rounds.items()},
            }
        )

    def _figures(self, rounds: Rounds) -> dict[str, object]:
        others = range(1, len(self.brokers))
        return {
            "title": rounds.workload.title,
            "command": ["amqpstore", "bench", *rounds.workload.arguments],
            "failures": rounds.failures,
            "figures": [
                {
                    "name": ".".join(figure.path),
                    "title": figure.title,
                    "unit": figure.unit,
                    "brokers": [
                        _as_json(rounds.spread(figure, broker))
                        for broker in range(len(self.brokers))
                    ],
                    "ratios": [_as_json(rounds.ratio(figure, other)) for other in others],
                }
                for figure in rounds.figures()
            ],
        }

    def print_table(self) -> None:
        """Print a table to standard output."""
        from rich.table import Table
        from rich.text import Text

        console = terminal.console()
        console.print(
            f"medians of {terminal.counted(self.settings.rounds, 'round')}, and least to most; "
            f"ratios are those of {terminal.shown(self.brokers[0].label)} to the other broker",
            soft_wrap=True,
        )
        table = Table()
        table.add_column("", overflow="fold", min_width=24)
        for broker in self.brokers:
            table.add_column(terminal.shown(broker.label), justify="right")
        for broker in self.brokers[1:]:
            table.add_column(f"ratio to {terminal.shown(broker.label)}", justify="right")
        for name, rounds in self.rounds.items():
            table.add_section()
            table.add_row(Text(f"{name}: {terminal.shown(rounds.workload.title)}", style="bold"))
            for figure in rounds.figures():
                spreads = (rounds.spread(figure, broker) for broker in range(len(self.brokers)))
                ratios = (rounds.ratio(figure, other) for other in range(1, len(self.brokers)))
                table.add_row(
                    f"  {figure.title}, {figure.unit}",
                    *(spread_text(spread, figure.digits) for spread in spreads),
                    *(spread_text(ratio, 2) for ratio in ratios),
                )
        console.print(table)
        for line in self.failed():
            console.print(terminal.shown(line), soft_wrap=True)

    def failed(self) -> list[str]:
        """Return what failed, and where."""
        return [
            f"{name} on {broker.label}: {failure}"
            for name, rounds in self.rounds.items()
            for broker, failure in zip(self.brokers, rounds.failures, strict=True)
            if failure
        ]


def spread_text(spread: Spread | None, digits: int) -> str:
    """Return the median, and the extremes if there are any."""
    if spread is None:
        return "-"
    shown = f"{spread.median:,.{digits}f}"
    if len(spread.values) > 1:
        shown += f" ({spread.least:,.{digits}f}-{spread.most:,.{digits}f})"
    return shown


def _as_json(spread: Spread | None) -> dict[str, object] | None:
    if spread is None:
        return None
    return {
        "median": round(spread.median, 4),
        "min": round(spread.least, 4),
        "max": round(spread.most, 4),
        "values": [round(value, 4) for value in spread.values],
    }
