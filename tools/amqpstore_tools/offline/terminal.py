"""Terminal output of offline tools: sizes, times, bars, and names that cannot control the
terminal.
"""

from __future__ import annotations

import sys
import unicodedata
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇█"
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")

_UNWRAPPED = 1 << 20
"""Columns of output to a pipe or a file: grep does not find a path that is wrapped."""
_PICTURE = 80
"""Columns of a picture there."""


def console(*, soft_wrap: bool = False) -> Console:
    """Make a console that writes to stdout: in colours and wrapped on a terminal, and each row in
    one line, however long, in a pipe or a file.

    Args: soft_wrap, whether a terminal is left to wrap long lines, so that they can be copied.
    """
    # Imported here, so that the other verbs start without it.
    from rich.console import Console

    class OutConsole(Console):
        def on_broken_pipe(self) -> None:
            """Handle a closed pipe as `exits.run_tool` does: it is not a failure."""
            raise BrokenPipeError

    # An explicit width also takes precedence over COLUMNS, which shells export.
    width = None if sys.stdout.isatty() else _UNWRAPPED
    return OutConsole(
        file=sys.stdout,
        width=width,
        soft_wrap=soft_wrap,
        highlight=False,
        markup=False,
        emoji=False,
    )


def picture_width(out: Console) -> int:
    """Return how many columns a picture may have: the terminal's, or 80 without one."""
    return _PICTURE if out.width == _UNWRAPPED else out.width


def say(text: str, out: TextIO | None = None) -> None:
    """Write lines of text, to stdout by default, that cannot control the terminal."""
    (out or sys.stdout).write(f"{shown_lines(text)}\n")


def table(*columns: str, right: str = "", wrap: str = "") -> Table:
    """Return an empty table with these headings; those in `right` are numbers, those in `wrap` text
    that may be folded.
    """
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(
            column,
            justify="right" if column in right.split() else "left",
            no_wrap=column not in wrap.split(),
            overflow="fold" if column in wrap.split() else "ellipsis",
        )
    return made


def heading(text: str) -> Text:
    """Return the first line of a part."""
    from rich.text import Text

    return Text(f"\n{text}", "bold")


def shown(text: object, most: int = 0) -> str:
    """Escape a text so that it cannot control the terminal.

    Args: most, characters of it, if not all.
    """
    escaped = "".join(one if _is_printed(one) else _escape(one) for one in str(text))
    return escaped if not most or len(escaped) <= most else f"{escaped[: most - 1]}…"


def shown_lines(text: str) -> str:
    """Escape a text as `shown` does, but keep line feeds and tabs."""
    return "\n".join("\t".join(map(shown, line.split("\t"))) for line in text.split("\n"))


def counted(count: int, noun: str) -> str:
    """Return a number of things: 1 message, 2 messages, 2 batches, 2 policies."""
    if count == 1:
        return f"{count:,} {noun}"
    if noun.endswith("y"):
        return f"{count:,} {noun[:-1]}ies"
    return f"{count:,} {noun}{'es' if noun.endswith('ch') else 's'}"


def size(count: int) -> str:
    """Return bytes, in the unit that makes it a short number."""
    if count < 1000:
        return f"{count} B"
    number = float(count)
    unit = "B"
    for unit in _UNITS:  # noqa: B007 - the last one is used
        number /= 1024
        if number < 999.5:
            break
    return f"{number:.1f} {unit}" if number < 99.95 else f"{number:.0f} {unit}"


def when(ms: int | None) -> str:
    """Return a time, ms since 1970, in UTC; a dash for none."""
    if not ms:
        return "-"
    try:
        found = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
    return f"{found:%Y-%m-%d %H:%M:%S}.{ms % 1000:03}"


def age(ms: int) -> str:
    """Return a duration or an age, in the unit that makes it a short number."""
    seconds = ms / 1000
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def bar(fraction: float, width: int) -> str:
    """Return a bar of `width` characters, of which a fraction is filled."""
    eighths = round(min(max(fraction, 0.0), 1.0) * width * 8)
    if fraction > 0:
        eighths = max(eighths, 1)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def split_bar(live: float, width: int) -> Text:
    """Return a bar of live bytes, in green, and garbage."""
    from rich.text import Text

    full = round(min(max(live, 0.0), 1.0) * width)
    if live > 0:
        full = max(full, 1)
    return Text.assemble(("█" * full, "green"), ("░" * (width - full), "yellow"))


def strip(fractions: list[float], width: int) -> str:
    """Return a column for each fraction, as high as it is; averages of them if there are many."""
    columns = min(len(fractions), width)
    found = []
    for column in range(columns):
        start = column * len(fractions) // columns
        stop = max((column + 1) * len(fractions) // columns, start + 1)
        some = fractions[start:stop]
        mean = sum(some) / len(some)
        found.append(_LEVELS[min(int(mean * len(_LEVELS)), len(_LEVELS) - 1)])
    return "".join(found)


def _is_printed(one: str) -> bool:
    # Characters that change the direction of what follows are of category Cf.
    return one == " " or (one.isprintable() and unicodedata.category(one) != "Cf")


def _escape(one: str) -> str:
    return one.encode("unicode_escape", "backslashreplace").decode()
