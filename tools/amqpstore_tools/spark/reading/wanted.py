"""Selects rows: by options, and by the filters of a query that are understood here.

Spark applies its own filters to every row again, so these may let rows through; they must not drop
one that is wanted. A row with null in a column does not pass a filter on it.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

_SLACK_MS = 3_600_000
"""How far a clock may have been set back before a segment is left out wrongly."""


@dataclass(frozen=True)
class Wanted:
    """The conditions for rows: None is no condition. Bounds are inclusive; times in ms since
    1970.
    """

    vhosts: frozenset[str] | None = None
    queues: frozenset[str] | None = None
    states: frozenset[str] | None = None
    segments: frozenset[int] | None = None
    least_segment: int | None = None
    most_segment: int | None = None
    least_ms: int | None = None
    most_ms: int | None = None

    def has_queue(self, vhost: str | None, queue: str | None) -> bool:
        """Tell whether rows of a queue may be wanted."""
        return (self.vhosts is None or vhost in self.vhosts) and (
            self.queues is None or queue in self.queues
        )

    def has_state(self, state: str) -> bool:
        """Tell whether rows of a state may be wanted."""
        return self.states is None or state in self.states

    def has_segment(self, number: int) -> bool:
        """Tell whether rows of a segment may be wanted."""
        return (
            (self.segments is None or number in self.segments)
            and (self.least_segment is None or number >= self.least_segment)
            and (self.most_segment is None or number <= self.most_segment)
        )

    def has_time(self, time_ms: int | None) -> bool:
        """Tell whether rows of a time may be wanted; None is unknown."""
        if time_ms is None:
            return self.least_ms is None and self.most_ms is None
        return (self.least_ms is None or time_ms >= self.least_ms) and (
            self.most_ms is None or time_ms <= self.most_ms
        )

    def has_span(self, first_ms: int | None, last_ms: int | None) -> bool:
        """Tell whether a segment that began and ended at these times may have wanted rows."""
        if (
            self.most_ms is not None
            and first_ms is not None
            and first_ms - _SLACK_MS > self.most_ms
        ):
            return False
        return self.least_ms is None or last_ms is None or last_ms + _SLACK_MS >= self.least_ms


ALL = Wanted()


def wanted_of(filters: Sequence[Filter], time_column: str, wanted: Wanted) -> Wanted:
    """Combine filters, all of which must be met. Filters that are not understood here are left out.

    Args: wanted, the conditions without them.
    """
    values: dict[str, Any] = vars(wanted).copy()
    for one in filters:
        attribute: tuple[str, ...] = getattr(one, "attribute", ())
        if len(attribute) == 1:
            for name, value in _meaning(one, attribute[0], time_column):
                before = values.get(name)
                if before is None:
                    values[name] = value
                elif name.startswith("least"):
                    values[name] = max(before, value)
                elif name.startswith("most"):
                    values[name] = min(before, value)
                else:
                    values[name] = before & value
    return Wanted(**values)


_SETS = {"vhost": "vhosts", "queue": "queues", "state": "states", "segment": "segments"}


def _meaning(one: Filter, column: str, time_column: str) -> list[tuple[str, Any]]:
    if isinstance(one, (EqualTo, In)) and column in _SETS:
        values = one.value if isinstance(one, In) else (one.value,)
        return [(_SETS[column], frozenset(value for value in values if value is not None))]
    bounds = _bounds(one)
    if bounds is None or one.value is None:  # type: ignore[attr-defined]
        return []
    value = one.value  # type: ignore[attr-defined]
    if column == "segment" and isinstance(value, int):
        return [(f"{side}_segment", value) for side in bounds]
    if column == time_column and isinstance(value, datetime.datetime):
        # Rounded outwards: times in the store are whole milliseconds.
        time_ms = value.timestamp() * 1000
        outwards = {"least": int(time_ms) - 1, "most": int(time_ms) + 1}
        return [(f"{side}_ms", outwards[side]) for side in bounds]
    return []


def _bounds(one: Filter) -> tuple[str, ...] | None:
    if isinstance(one, EqualTo):
        return "least", "most"
    if isinstance(one, (GreaterThan, GreaterThanOrEqual)):
        return ("least",)
    if isinstance(one, (LessThan, LessThanOrEqual)):
        return ("most",)
    return None
