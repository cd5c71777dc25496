"""Formats of numbers, times and states on the pages."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from markupsafe import Markup

_BINARY = ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB"))
GOOD_STATES = frozenset({"running", "idle"})
_FLAGS = (
    ("durable", "durable"),
    ("auto_delete", "auto-delete"),
    ("exclusive", "exclusive"),
)


def number(value: Any) -> str:
    """Write a count, with a comma for thousands; a dash if it is unknown."""
    return f"{value:,}" if isinstance(value, int) else "-"


def size(value: Any) -> str:
    """Write a number of bytes."""
    if not isinstance(value, int | float):
        return "-"
    for power, unit in _BINARY:
        if abs(value) >= 1024**power:
            return f"{_short(value / 1024**power)} {unit}"
    return f"{value:.0f} B"


def per_second(value: Any) -> str:
    """Write a rate; a dash for none."""
    if not isinstance(value, int | float) or not value:
        return "-"
    return f"{value:,.0f}/s" if value >= 100 else f"{_short(value)}/s"


def rate(row: Mapping[str, Any], key: str) -> str:
    """Write the rate of a counter in the `message_stats` of a row."""
    return per_second(((row.get("message_stats") or {}).get(f"{key}_details") or {}).get("rate"))


def bytes_per_second(value: Any) -> str:
    """Write a rate of bytes; a dash for none."""
    return f"{size(value)}/s" if value else "-"


def duration(seconds: Any) -> str:
    """Write a duration, in the two units that matter."""
    if not isinstance(seconds, int | float):
        return "-"
    if seconds < 1:
        return f"{_short(seconds * 1000)} ms"
    for unit, name, smaller, small in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if seconds >= unit:
            return f"{int(seconds // unit)} {name} {int(seconds % unit // smaller)} {small}"
    return f"{_short(seconds)} s"


def moment(milliseconds: Any) -> str:
    """Write a time of the clock, in UTC."""
    if not isinstance(milliseconds, int | float):
        return "-"
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def moment_of_seconds(seconds: Any) -> str:
    """Write what a publisher says is a time, in seconds since 1970, with that time in UTC, unless
    it is out of range.
    """
    try:
        return f"{seconds} ({moment(seconds * 1000)})"
    except (ValueError, OverflowError, OSError):
        return str(seconds)


def flags(row: Mapping[str, Any]) -> list[str]:
    """Return the properties of a queue or exchange that are set."""
    return [label for key, label in _FLAGS if row.get(key)]


def state(row: Mapping[str, Any]) -> Markup:
    """Write the state of a connection or channel as a badge."""
    found = str(row.get("state") or "running")
    kind = "good" if found in GOOD_STATES else "warn"
    return badge(found, kind)


def badge(text: str, kind: str = "") -> Markup:
    """Write a word in a coloured field."""
    return Markup('<span class="badge {}">{}</span>').format(kind, text)


def json(value: Any) -> str:
    """Write a value as JSON, as it was asked for."""
    return msgspec.json.encode(value).decode()


def _short(value: float) -> str:
    text = f"{value:.3g}"
    return f"{value:,.0f}" if "e" in text else text
