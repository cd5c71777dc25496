"""Options of the format, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tools.spark.schemas import VIEWS

READ_VIEWS = ("messages", "transactions", "queues", "segments", "findings")
MODES = ("tap", "consume")

_MIB = 1 << 20


class OptionError(ValueError):
    """An option says what cannot be."""


@dataclass(frozen=True)
class ReadOptions:
    """Of `spark.read`: the store in `path`, one of its views, and how.

    `hold` is a directory for the hard links, empty for the one beside the store; `hold_idle_s` is
    how long they stay when nobody reads by them. A task reads about `partition_bytes` of segments.
    """

    path: str
    view: str = "messages"
    columns: tuple[str, ...] | None = None
    bodies: bool = True
    partition_bytes: int = 32 * _MIB
    hold: str = ""
    hold_idle_s: int = 3600

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadOptions:
        """Raises: OptionError."""
        view = options.get("view", "messages")
        if view not in READ_VIEWS:
            raise OptionError(f"there is no view {view!r}: take one of {', '.join(READ_VIEWS)}")
        return cls(
            path=required(options, "path", "load(DIR) names the store"),
            view=view,
            columns=columns_of(options, view),
            bodies=boolean(options, "bodies", default=True),
            partition_bytes=number(options, "partition_bytes", 32 * _MIB, least=1),
            hold=options.get("hold", ""),
            hold_idle_s=number(options, "hold_idle_s", 3600, least=1),
        )


def columns_of(options: Mapping[str, str], view: str) -> tuple[str, ...] | None:
    """The columns that are asked for; None for all. Raises: OptionError."""
    if "columns" not in options:
        return None
    names = tuple(name.strip() for name in options["columns"].split(",") if name.strip())
    known = [name for name, _ in VIEWS[view]]
    for name in names:
        if name not in known:
            raise OptionError(f"view {view} has no column {name!r}; it has {', '.join(known)}")
    if not names:
        raise OptionError("option columns names no column")
    return names


def boolean(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Raises: OptionError."""
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise OptionError(f"option {name} is true or false, not {text!r}")
    return text == "true"


def number(options: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    """Raises: OptionError."""
    text = options.get(name, str(default))
    if not text.isdecimal() or int(text) < least:
        raise OptionError(f"option {name} is a number from {least} on, not {text!r}")
    return int(text)


def choice(options: Mapping[str, str], name: str, default: str, among: Sequence[str]) -> str:
    """Raises: OptionError."""
    text = options.get(name, default)
    if text not in among:
        raise OptionError(f"option {name} is one of {', '.join(among)}, not {text!r}")
    return text


def required(options: Mapping[str, str], name: str, hint: str) -> str:
    if not options.get(name):
        raise OptionError(f"option {name} is missing: {hint}")
    return options[name]



