"""The common base of the results of `bench stalls` and `bench attacks`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

from amqpstore_tools.offline import terminal
from tests.bench.interference.settings import CaseSettings

if TYPE_CHECKING:
    from rich.console import Console


class CaseResult(Protocol):
    """Measurements beside one case."""

    def figures(self) -> dict[str, object]:
        """Return the figures for JSON."""


ResultT = TypeVar("ResultT", bound=CaseResult)


@dataclass(frozen=True)
class CasesReport(Generic[ResultT]):
    """The results of a run, by case."""

    workload: ClassVar[str]

    settings: CaseSettings
    product: str
    version: str
    outcomes: dict[str, ResultT]

    def as_json(self) -> str:
        """Return the result as JSON on one line."""
        return json.dumps(
            {
                "workload": self.workload,
                "parameters": self.settings.parameters(),
                "broker": {"product": self.product, "version": self.version},
                "results": self.results(),
            }
        )

    def results(self) -> dict[str, object]:
        """Return the figures, by case."""
        return {name: one.figures() for name, one in self.outcomes.items()}


def print_reasons(console: Console, reasons: Mapping[str, str]) -> None:
    """Print why cases were not measured, below the table; nothing for those that were."""
    for name, reason in reasons.items():
        if reason:
            console.print(f"{name}: {terminal.shown(reason)}", soft_wrap=True)


def shown_ms(duration_ns: int) -> str:
    """Return a duration in milliseconds for a table."""
    return f"{duration_ns / 1e6:,.1f}"
