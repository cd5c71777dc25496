"""The figures of a store as charts in the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from amqpstore_tools.inspect.page import show_store
from amqpstore_tools.offline.terminal import (
    age,
    bar,
    console,
    counted,
    heading,
    picture_width,
    shown,
    size,
    split_bar,
    strip,
    table,
)

if TYPE_CHECKING:
    from rich.console import Console

Facts = dict[str, Any]

_STRIP_LINES = 6
_LEAST_BAR, _MAX_BAR = 12, 60


def show(found: Facts) -> None:
    """Print the figures."""
    show_store(found)
    _show_disk(found)
    _show_garbage(found)
    _show_classes(found)
    _show_queues(found)
    _show_messages(found)


def _show_disk(found: Facts) -> None:
    out = console()
    parts = found["disk_bytes"]
    total = sum(parts.values())
    out.print(heading(f"On the disk: {size(total)}"))
    rows = table("", "", "", right="")
    for part, count in sorted(parts.items(), key=lambda one: -one[1]):
        rows.add_row(f"  {part}", f"{size(count):>9}", bar(count / total, _wide(out)))
    rows.show_header = False
    out.print(rows)


def _show_garbage(found: Facts) -> None:
    from rich.text import Text

    out = console()
    segments = found["segments"]
    total = found["segment_bytes"]
    out.print(heading(f"{counted(len(segments), 'segment')}: {size(total)}"))
    if found["live_bytes"] is None or not total:
        out.print("  live part unknown" if total else "  none")
        return
    live = found["live_bytes"] / total
    text = f" {size(found['live_bytes'])} live, {size(found['garbage_bytes'])} garbage"
    out.print(
        Text.assemble("  ", split_bar(live, _wide(out)), f"{text} ({100 - 100 * live:.0f} %)")
    )
    if len(segments) > 1:
        out.print("  live part of each, in the order of their messages:")
        fractions = [(one["live_bytes"] or 0) / one["bytes"] for one in segments]
        width = max(picture_width(out) - 2, 10)
        lines = min(-(-len(fractions) // width), _STRIP_LINES)
        for line in range(lines):
            start, stop = (n * len(fractions) // lines for n in (line, line + 1))
            out.print(Text(f"  {strip(fractions[start:stop], width - 2)}", "green"))


def _show_classes(found: Facts) -> None:
    out = console()
    count = found["messages"]
    text = f"{counted(count, 'message')}: {size(found['message_bytes'])}"
    delivered = f", {found['delivered']:,} delivered before" if found["delivered"] else ""
    out.print(heading(f"{text}{delivered}"))
    if found["unreadable"]:
        out.print(f"  and {found['unreadable']:,} whose index files cannot be read", style="red")
    if not count:
        return
    _show_bars("size", "messages", found["messages_by_size"], "to_bytes", size, "{:,}".format)
    if any(one["live_bytes"] for one in found["live_by_age"]):
        out.print()
        _show_bars("age", "live_bytes", found["live_by_age"], "to_ms", age, size)


def _show_bars(
    title: str,
    value: str,
    classes: list[Facts],
    bound: str,
    say_bound: Callable[[int], str],
    say_value: Callable[[int], str],
) -> None:
    """Print a bar for each class that is not empty. Args: value and bound, their names in a
    class.
    """
    out = console()
    total = sum(one[value] for one in classes)
    heading_of = value.removesuffix("_bytes")
    rows = table(title, heading_of, "", right=heading_of)
    before = 0
    for one in classes:
        name = f"to {say_bound(one[bound])}" if one[bound] else f"over {say_bound(before)}"
        before = one[bound]
        if one[value]:
            rows.add_row(f"  {name}", say_value(one[value]), bar(one[value] / total, _wide(out)))
    out.print(rows)


def _show_queues(found: Facts) -> None:
    out = console()
    queues = [one for one in found["largest_queues"] if one["messages"] or one["unreadable"]]
    out.print(heading(f"The largest of {counted(found['queues'], 'queue')}"))
    if not queues:
        out.print("  all are empty")
        return
    most = max(one["bytes"] for one in queues) or 1
    rows = table("queue", "messages", "bytes", "oldest", "", right="messages bytes", wrap="queue")
    for one in queues:
        rows.add_row(
            f"  {_name(one)}",
            f"{one['messages']:,}",
            size(one["bytes"]),
            _age_of(found, one["oldest_ms"]),
            bar(one["bytes"] / most, _wide(out) - 4),
        )
    out.print(rows)


def _show_messages(found: Facts) -> None:
    out = console()
    messages = found["largest_messages"]
    if not messages:
        return
    out.print(heading("The largest messages"))
    most = messages[0]["bytes"] or 1
    rows = table("id", "queue", "bytes", "age", "", right="id bytes", wrap="queue")
    for one in messages:
        more = f" and {one['queues'] - 1} more" if one["queues"] > 1 else ""
        rows.add_row(
            str(one["id"]),
            f"{_name(one)}{more}",
            size(one["bytes"]),
            _age_of(found, one["published_ms"]),
            bar(one["bytes"] / most, _wide(out) - 4),
        )
    out.print(rows)


def _wide(out: Console) -> int:
    """Return the width of a bar: what 80 columns leave beside the longest figures, more on a wider
    terminal.
    """
    return min(max(picture_width(out) - 56, _LEAST_BAR), _MAX_BAR)


def _name(one: Facts) -> str:
    vhost = one["vhost"]
    label = shown(one["label"], 60)
    return label if vhost in (None, "/") else f"{label} in {shown(vhost, 20)}"


def _age_of(found: Facts, time_ms: int | None) -> str:
    return "-" if time_ms is None else age(max(found["taken_ms"] - time_ms, 0))
