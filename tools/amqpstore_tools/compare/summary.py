"""Medians and ratios of the figures of the rounds."""

from dataclasses import dataclass, field
from statistics import median
from typing import Any

from amqpstore_tools.compare.workloads import Figure, NamedWorkload


@dataclass(frozen=True)
class Spread:
    """Some values: their median, and the extremes."""

    median: float
    least: float
    most: float
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: list[float]) -> "Spread | None":
        """Return the spread of some values; None without values."""
        if not values:
            return None
        return cls(median(values), min(values), max(values), tuple(values))


@dataclass
class Rounds:
    """The results of one workload: by broker, one for each round; None if it failed."""

    workload: NamedWorkload
    results: list[list[dict[str, Any] | None]]
    failures: list[str] = field(default_factory=list)  # by broker: the last, empty for none

    def spread(self, figure: Figure, broker: int) -> Spread | None:
        """Return the spread of a figure over the rounds."""
        read = (figure.read(results) for results in self.results[broker] if results is not None)
        return Spread.of([value for value in read if value is not None])

    def ratio(self, figure: Figure, other: int) -> Spread | None:
        """Return the ratio of the first broker's figure to another's, round by round."""
        ratios = []
        for ours, theirs in zip(self.results[0], self.results[other], strict=True):
            if ours is None or theirs is None:
                continue
            one, two = figure.read(ours), figure.read(theirs)
            if one is not None and two:
                ratios.append(one / two)
        return Spread.of(ratios)

    def figures(self) -> list[Figure]:
        """Return the figures that were measured on any broker."""
        return [
            figure
            for figure in self.workload.figures
            if any(self.spread(figure, broker) for broker in range(len(self.results)))
        ]
