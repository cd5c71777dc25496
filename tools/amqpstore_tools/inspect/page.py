"""Prints the overview of a store."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from amqpstore_tools.inspect import usage
from amqpstore_tools.offline.terminal import (
    console,
    counted,
    heading,
    picture_width,
    shown,
    size,
    split_bar,
    strip,
    table,
    when,
)

Facts = dict[str, Any]

_BAR = 20


def show(found: Facts, most: int) -> None:
    """Print the facts. Args: most, rows of a table, 0 is all."""
    out = console()
    _show_store(found)
    if found["is_damaged"] and not found["catalog_reason"]:
        out.print(
            "  it is damaged: what follows is what a broker would serve, and a repair may keep"
        )
        out.print("  more (see `amqpstore repair DIR --plan plan.json`)")
    _show_topology(found, most)
    show_queues(found["queues"], found["taken_ms"], most)
    usage.show_messages(found["usage"], found["taken_ms"])
    usage.show_disk(found["usage"])
    show_segments(found["segments"], most)
    for segment in found["quarantined_segments"]:
        out.print(f"  quarantined: {shown(segment['path'])}, {size(segment['bytes'])}")
    _show_log(found)
    _show_prepared(found["prepared"])
    _show_damage(found, most)
    _show_recovery(found["last_recovery"])


def _show_store(facts: Facts) -> None:
    """Print the first lines: which store it is."""
    from rich.text import Text

    out = console()
    out.print(Text(shown(facts["directory"]), "bold"))
    out.print(f"  store {facts['store_id'] or 'unknown'}, format version {facts['format_version']}")
    if facts["is_live"]:
        out.print(f"  a broker runs on it: snapshot of {when(facts['taken_ms'])} UTC")
    if facts["marker_reason"]:
        out.print(Text(f"  STORE cannot be read: {facts['marker_reason']}", "red"))
    if facts["catalog_reason"]:
        text = f"  the catalog cannot be read: {shown(facts['catalog_reason'])}"
        out.print(Text(text, "red"))
        out.print("  what follows is what `amqpstore repair` would keep of the store")
    for note in facts["notes"]:
        out.print(Text(f"  {shown(note)}", "red"))
    for wrong in (*facts["wrong_kinds"], *facts["foreign_files"]):
        out.print(Text(f"  {shown(wrong['name'])}: {shown(wrong['reason'])}", "red"))
    for row in facts["bad_rows"]:
        text = f"  row {shown(row['key'])} of table {row['table']} cannot be read: {row['reason']}"
        out.print(Text(shown(text), "red"))


def _show_topology(facts: Facts, most: int) -> None:
    out = console()
    named = [exchange for exchange in facts["exchanges"] if isinstance(exchange.get("name"), str)]
    out.print(
        f"  {counted(len(facts['vhosts']), 'virtual host')}, "
        f"{counted(len(facts['users']), 'user')}, {counted(len(named), 'exchange')} of its own, "
        f"{counted(facts['bindings'], 'binding')}, {counted(facts['policies'], 'policy')}"
    )
    queues = Counter(queue["vhost"] for queue in facts["queues"])
    exchanges = Counter(str(exchange.get("vhost")) for exchange in named)
    if len(facts["vhosts"]) > 1:
        rows = table("virtual host", "queues", "exchanges", right="queues exchanges")
        for vhost in first(facts["vhosts"], most):
            rows.add_row(shown(vhost, 40), f"{queues[vhost]:,}", f"{exchanges[vhost]:,}")
        out.print(heading("Virtual hosts"))
        out.print(rows)
        more(facts["vhosts"], most)
    if named:
        rows = table("vhost", "exchange", "type", "durable", wrap="exchange")
        for exchange in first(named, most):
            rows.add_row(
                shown(exchange.get("vhost"), 20),
                shown(exchange["name"]),
                shown(exchange.get("type"), 24),
                "yes" if exchange.get("durable") else "no",
            )
        out.print(heading("Exchanges"))
        out.print(rows)
        more(named, most)


def show_queues(queues: list[Facts], taken_ms: int, most: int) -> None:
    """Print the queues, the largest first if there are many. Args: taken_ms, when that was so."""
    out = console()
    ready = sum(queue["ready"] for queue in queues)
    out.print(heading(f"Queues: {len(queues):,}, with {counted(ready, 'message')}"))
    if not queues:
        return
    bad = any(queue["lost"] or queue["unreadable"] for queue in queues)
    locked = any(queue["locked"] for queue in queues)
    again = any(queue["again"] for queue in queues)
    shown_if = {"locked": locked, "unreadable": bad, "again": again}
    extra = [name for name, is_shown in shown_if.items() if is_shown]
    columns = ["vhost", "queue", "ready", "delivered", "bytes", "oldest", *extra]
    rows = table(*columns, right="ready delivered bytes locked unreadable again", wrap="queue")
    if most and len(queues) > most:
        queues = sorted(queues, key=lambda one: (-one["bytes"], -one["ready"]))
        out.print("  largest first:")
    for queue in first(queues, most):
        cells = [
            shown(queue["vhost"] if queue["vhost"] is not None else "-", 20),
            shown(queue["label"]),
            f"{queue['ready']:,}",
            f"{queue['delivered']:,}",
            size(queue["bytes"]),
            usage.age_at(taken_ms, queue["oldest_ms"]),
        ]
        if locked:
            cells.append(f"{queue['locked']:,}")
        if bad:
            cells.append(f"{queue['lost'] + queue['unreadable']:,}")
        if again:
            cells.append(f"{queue['again']:,}")
        rows.add_row(*cells)
    out.print(rows)
    more(queues, most)
    if any(queue["delivered"] for queue in queues):
        out.print("delivered: delivered before and not acked; ready again, flagged redelivered")
    if again:
        out.print("again: may have been acked; they would be delivered again, flagged redelivered")


def show_segments(segments: list[Facts], most: int) -> None:
    """Print a bar for each segment; if there are many, a strip of all, and those with the most
    garbage.
    """
    out = console()
    total = sum(one["bytes"] for one in segments)
    garbage = sum(one["garbage_bytes"] or 0 for one in segments)
    percent = 100 * garbage / total if total else 0
    is_known = any(one["live_bytes"] is not None for one in segments)
    what = f"{size(garbage)} ({percent:.0f} %) garbage" if is_known else "live part unknown"
    out.print(heading(f"Segments: {len(segments):,}, {size(total)}, {what}"))
    if not segments:
        return
    if most and len(segments) > most and is_known:
        out.print("  live part of each, in the order of their messages:")
        fractions = [_live(one) for one in segments]
        width = max(picture_width(out) - 4, 10)
        for start in range(0, min(len(fractions), 8 * width), width):
            last = start + width >= 8 * width
            some = fractions[start:] if last else fractions[start : start + width]
            out.print(f"  {strip(some, width)}")
        segments = sorted(segments, key=lambda one: -(one["garbage_bytes"] or 0))
        out.print("  most garbage first:")
    rows = table("segment", "state", "size", "live", "", "messages", right="size messages")
    for segment in first(segments, most):
        known = segment["live_bytes"] is not None
        rows.add_row(
            str(segment["number"]),
            segment["state"],
            size(segment["bytes"]),
            split_bar(_live(segment), _BAR) if known else "unknown",
            f"{100 * _live(segment):3.0f} %" if known else "",
            f"{segment['live_messages']:,} of {segment['messages']:,}" if known else "",
        )
    out.print(rows)
    more(segments, most)


def _show_log(facts: Facts) -> None:
    out = console()
    tail = facts["log_tail"]
    checkpoint = facts["checkpoint"]
    out.print(heading("Log"))
    if checkpoint:
        out.print(
            f"  checkpoint at segment {checkpoint['segment']}, offset {checkpoint['offset']:,}: "
            f"before LSN {checkpoint['lsn']:,}, message {checkpoint['message_id']:,}"
        )
    elif facts["catalog_reason"]:
        out.print("  the position of the last checkpoint is unknown: all of the log was read")
    else:
        out.print("  no checkpoint: all of the log is read at a start")
    where = "behind it" if checkpoint else "in all"
    out.print(
        f"  {where} {size(tail['bytes'])}: {counted(tail['batches'], 'batch')}, "
        f"{counted(tail['messages'], 'message')}, {counted(tail['operations'], 'operation')}; "
        f"next is LSN {tail['end']['lsn']:,}"
    )
    if tail["torn_bytes"]:
        what = "being written" if facts["is_live"] else "torn tail"
        out.print(
            f"  {what}: {tail['torn_bytes']:,} bytes, {tail['rolled_back']:,} messages, left out"
        )
    index = facts["index_files"]
    out.print(f"  {counted(index['count'], 'index file')}, {size(index['bytes'])}")


def _show_prepared(prepared: list[Facts]) -> None:
    if not prepared:
        return
    out = console()
    undecided = sum(one["is_undecided"] and not one["is_purge"] for one in prepared)
    text = f"Prepared transactions: {undecided:,} undecided"
    if purges := sum(one["is_undecided"] and one["is_purge"] for one in prepared):
        text = f"{text}. Purges that can be undone: {purges:,}"
    out.print(heading(text))
    rows = table("queue id", "label", "publishes", "acks", "", right="publishes acks", wrap="label")
    for one in prepared:
        kind = "purge" if one["is_purge"] else ""
        rows.add_row(
            str(one["queue_id"]),
            shown(_label(one["label"])),
            f"{sum(group['message_count'] for group in one['publishes']):,}",
            f"{sum(run['message_count'] for run in one['locked']):,}",
            kind if one["is_undecided"] else "done with",
        )
    out.print(rows)


def _label(label: Any) -> str:
    if isinstance(label, dict):
        return ", ".join(f"{key} {value}" for key, value in label.items())
    return str(label)


def _show_damage(found: Facts, most: int) -> None:
    from rich.text import Text

    out = console()
    damage = found["damage"]
    if damage or found["lost"] or found["orphaned"]:
        text = f"Damage: {counted(len(damage), 'place')}, {counted(found['lost'], 'message')} lost"
        out.print(heading(f"{text}, {found['orphaned']:,} orphaned"))
    for reason in filter(None, (found["shortfall"], found["passed_over"])):
        out.print(Text(f"  {shown(reason)}", "red"))
    for one in first(damage, most):
        where = os.path.relpath(one["path"], found["directory"])
        text = f"  {where} at {one['offset']:,}, {one['bytes']:,} bytes: {one['reason']}"
        out.print(Text(shown(text), "red"))
    more(damage, most)
    for name in first(found["unknown_files"], most):
        out.print(f"  unknown file, left alone: {shown(name)}")


def _show_recovery(report: Facts | None) -> None:
    out = console()
    out.print(heading("Last recovery after a crash"))
    if report is None:
        out.print("  there is no report")
        return
    out.print(f"  {shown(report['path'])}")
    if "reason" in report:
        out.print(f"  cannot be read: {shown(report['reason'])}")
        return
    names = ("messages", "redelivered", "torn_bytes", "rolled_back", "lost", "orphaned")
    counts = ", ".join(f"{name} {report.get(name, '?')}" for name in names)
    damage = report.get("damage")
    out.print(f"  {shown(report.get('time', '?'))}: {shown(counts)}")
    if damage:
        out.print(f"  damage in {counted(len(damage), 'place')}")


def _live(segment: Facts) -> float:
    return (segment["live_bytes"] or 0) / segment["bytes"] if segment["bytes"] else 0.0


def first(values: list[Any], most: int) -> list[Any]:
    """Return the values that are shown; 0 is all."""
    return values[:most] if most else values


def more(values: list[Any], most: int) -> None:
    """Print how many are not shown."""
    if most and len(values) > most:
        console().print(f"  and {len(values) - most:,} more: --limit 0 shows all", style="dim")
