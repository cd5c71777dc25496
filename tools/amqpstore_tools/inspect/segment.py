"""One segment: its state, and the records in it with the gaps between them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from amqpstore.format.records import Kind, Record
from amqpstore.identity.identity import SegmentHeader
from amqpstore_tools.inspect.overview import segment_facts
from amqpstore_tools.offline.exits import NotFoundError
from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.offline.segments import SegmentImage, SegmentState
from amqpstore_tools.offline.terminal import console, heading, shown, size, split_bar, table, when

Facts = dict[str, Any]

_BAR = 40


def facts(image: StoreImage, number: int, first: int, most: int) -> Facts:
    """Return the facts of a segment.

    Args: first, the first offset to list, and `most` records, 0 is all.
    Raises: NotFoundError, OSError.
    """
    segment = image.segment(number)
    if segment is None:
        raise NotFoundError(f"there is no segment {number} in {image.directory}")
    if segment.state is SegmentState.MISSING:
        raise NotFoundError(
            f"the catalog names segment {number}, but its file {segment.path} is missing"
        )
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    listed: list[Facts] = []
    gaps: list[Facts] = []
    # A torn tail is shown as well: whoever inspects a segment wants to see what is left of it.
    size = segment.size if segment.end is None else min(segment.end, segment.size)
    for item in segment.scan(size=size):
        name = Kind(item.kind).name if isinstance(item, Record) else "gap"
        counts[name] += 1
        sizes[name] += item.end - item.offset
        if isinstance(item, Record):
            fact = _record(item, name)
        else:
            fact = {
                "offset": item.offset,
                "bytes": item.end - item.offset,
                "kind": "gap",
                "reason": item.reason,
            }
            gaps.append(fact)
        if item.offset >= first and (not most or len(listed) < most):
            listed.append(fact)
    return {
        "directory": image.directory,
        **segment_facts(segment),
        "store_id": _store_id(segment),
        "counts": dict(counts),
        "bytes_by_kind": dict(sizes),
        "behind_the_end_bytes": segment.size - size,
        "gaps": gaps,
        "records": listed,
    }


def _record(found: Record, name: str) -> Facts:
    return {
        "offset": found.offset,
        "bytes": found.end - found.offset,
        "kind": name,
        "number": found.number,
        "batch": found.batch,
        "flags": found.flags,
    }


def _store_id(segment: SegmentImage) -> str | None:
    header = segment.header()
    return header.store_id.hex() if isinstance(header, SegmentHeader) else None


def show(facts: Facts) -> None:
    """Print the facts."""
    from rich.text import Text

    out = console()
    out.print(Text(f"Segment {facts['number']}, {facts['state']}", "bold"))
    out.print(f"  {shown(facts['path'])}")
    out.print(f"  {size(facts['bytes'])}, created {when(facts['created_ms'])} UTC")
    if facts["end"] is not None:
        out.print(f"  its recorded end is {facts['end']:,}")
    if facts["behind_the_end_bytes"]:
        out.print(f"  {facts['behind_the_end_bytes']:,} bytes after it are not part of the store")
    if facts["end_id"]:
        out.print(f"  messages {facts['first_id']:,} to before {facts['end_id']:,}")
    if facts["live_bytes"] is not None:
        live = facts["live_bytes"] / facts["bytes"] if facts["bytes"] else 0.0
        text = f" {100 * live:.0f} % live, {facts['live_messages']:,} of {facts['messages']:,}"
        out.print(Text.assemble("  ", split_bar(live, _BAR), f"{text} messages"))
    rows = table("records", "count", "bytes", right="count bytes")
    for name, count in facts["counts"].items():
        rows.add_row(name, f"{count:,}", size(facts["bytes_by_kind"][name]))
    out.print(heading("What is in it"))
    out.print(rows)
    if facts["gaps"]:
        out.print(heading("Gaps"))
    for gap in facts["gaps"]:
        text = f"  at {gap['offset']:,}, {gap['bytes']:,} bytes: {gap['reason']}"
        out.print(Text(shown(text), "red"))
    for row in facts["damage"]:
        text = f"  compaction found damage at {row['offset']:,}, {row['bytes']:,} bytes"
        out.print(Text(shown(f"{text}: {row['reason']}"), "red"))
    rows = table(
        "offset", "kind", "number", "batch", "bytes", "flags", right="offset number batch bytes"
    )
    for row in facts["records"]:
        if row["kind"] == "gap":
            rows.add_row(f"{row['offset']:,}", "gap", "", "", f"{row['bytes']:,}", "")
            continue
        rows.add_row(
            f"{row['offset']:,}",
            row["kind"],
            f"{row['number']:,}",
            str(row["batch"]),
            f"{row['bytes']:,}",
            "compressed" if row["flags"] else "",
        )
    out.print(heading("Records"))
    out.print(rows)
    if (total := sum(facts["counts"].values())) > len(facts["records"]):
        out.print(
            f"  {total:,} in all: continue with --first OFFSET, or show all with --limit 0",
            style="dim",
        )
