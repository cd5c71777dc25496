"""The result of `bench store`, as one JSON object or as a table for people."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from amqpstore_tools.offline import terminal
from tests.bench.store.job import Figures
from tests.bench.store.settings import StoreSettings


@dataclass(frozen=True)
class StoreReport:
    """Figures by section: one section for each job of the run. Their names end in their unit."""

    settings: StoreSettings
    sections: dict[str, Figures]

    def as_json(self) -> str:
        """Return the result as JSON on one line."""
        return json.dumps(
            {
                "workload": f"store {self.settings.workload}",
                "parameters": self.settings.parameters(),
                "results": self.sections,
            }
        )

    def print_table(self) -> None:
        """Print a table to standard output: a row for each figure, a column for each section."""
        from rich.table import Table

        console = terminal.console(soft_wrap=True)
        given = ", ".join(f"{name} {value}" for name, value in self.settings.parameters().items())
        console.print(f"store {self.settings.workload}: {given}")
        columns = {name: dict(_flat(figures)) for name, figures in self.sections.items()}
        table = Table("", *columns)
        for column in table.columns[1:]:
            column.justify = "right"
        for name in dict.fromkeys(name for column in columns.values() for name in column):
            table.add_row(name, *(_shown(column.get(name, "")) for column in columns.values()))
        console.print(table)


def _flat(figures: Figures) -> Iterator[tuple[str, object]]:
    """Yield the figures, and each percentile as a figure of its own."""
    for name, value in figures.items():
        if isinstance(value, dict):
            for part, number in value.items():
                yield f"{name} {part}", number
        else:
            yield name, value


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)
