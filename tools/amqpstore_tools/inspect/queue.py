"""One queue: its definition, and its messages one by one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from amqpstore_tools.inspect.overview import queue_facts
from amqpstore_tools.inspect.usage import PublishTimes
from amqpstore_tools.offline.contents import plain
from amqpstore_tools.offline.exits import NotFoundError
from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.offline.queues import QueueImage
from amqpstore_tools.offline.terminal import console, counted, heading, shown, size, table, when

Facts = dict[str, Any]

_BATCH = 1000
"""Messages that are looked up, and rows that are printed, together."""


def facts(image: StoreImage, name: str, vhost: str | None, first: int, most: int) -> Facts:
    """Return the facts of a queue; `messages` is an iterator, as there may be many.

    Args: name, or `#ID` for a stored queue by its id; first, the first sequence to list, and `most`
    messages, 0 is all.
    Raises: NotFoundError, OSError.
    """
    queues = find_queues(image, name, vhost)
    [summary] = queue_facts(queues, PublishTimes(image.segments))
    unreadable = [
        {"path": one.path, "reason": one.reason, "messages": one.live}
        for queue in queues
        for one in queue.unreadable
    ]
    return {
        "directory": image.directory,
        **summary,
        "levels": [
            {
                "queue_id": queue.id,
                "level": queue.level or 0,
                "messages": queue.live_count,
                "next_sequence": queue.next_sequence,
            }
            for queue in queues
        ],
        "definition": plain(queues[0].definition),
        "unreadable_files": unreadable,
        "messages": _messages(image, queues, first, most),
    }


def find_queues(image: StoreImage, name: str, vhost: str | None) -> list[QueueImage]:
    """Return the stored queues of a name: one for each priority in use. Raises: NotFoundError."""
    queues = [
        queue
        for queue in image.queues
        if (queue.name == name and vhost in (None, queue.vhost)) or f"#{queue.id}" == name
    ]
    vhosts = sorted({str(queue.vhost) for queue in queues})
    if len(vhosts) > 1:
        raise NotFoundError(
            f"queues named {shown(name)} are in the virtual hosts "
            f"{', '.join(map(shown, vhosts))}: choose one with --vhost"
        )
    if not queues:
        where = f" in virtual host {shown(vhost)}" if vhost is not None else ""
        raise NotFoundError(
            f"there is no queue {shown(name)}{where}; `amqpstore inspect DIR --limit 0` lists all, "
            "and #ID names one by its id"
        )
    # In the order of delivery: the highest priority first.
    return sorted(queues, key=lambda queue: -(queue.level or 0))


def _messages(
    image: StoreImage, queues: list[QueueImage], first: int, most: int
) -> Iterator[Facts]:
    return islice(_all_messages(image, queues, first), most or None)


def _all_messages(image: StoreImage, queues: list[QueueImage], first: int) -> Iterator[Facts]:
    for queue in queues:
        entries = (entry for entry in queue.entries() if entry.sequence >= first)
        while some := list(islice(entries, _BATCH)):
            stored = dict(image.messages(sorted(entry.message_id for entry in some)))
            for entry in some:
                found = stored[entry.message_id]
                yield {
                    "queue_id": queue.id,
                    "level": queue.level or 0,
                    **entry._asdict(),
                    "segment": found.segment.number if found else None,
                    "offset": found.record.offset if found else None,
                }


def show(facts: Facts) -> None:
    """Print the facts."""
    from rich.text import Text

    out = console()
    vhost = f" in virtual host {shown(facts['vhost'])}" if facts["vhost"] is not None else ""
    out.print(Text(f"Queue {shown(facts['label'])}{vhost}", "bold"))
    out.print(
        f"  {counted(facts['ready'], 'message')}, {size(facts['bytes'])}; "
        f"{facts['delivered']:,} of them were delivered before"
    )
    if facts["locked"]:
        out.print(f"  {counted(facts['locked'], 'message')} more wait for a prepared transaction")
    if facts["lost"]:
        out.print(Text(f"  {facts['lost']:,} messages are lost: their records are damaged", "red"))
    for row in facts["unreadable_files"]:
        text = f"  {row['messages']:,} messages cannot be read: {row['path']}: {row['reason']}"
        out.print(Text(shown(text), "red"))
    for key, value in sorted(facts["arguments"].items()):
        out.print(f"  {shown(key)}: {shown(value)}")
    if len(facts["levels"]) > 1:
        for level in facts["levels"]:
            text = f"  priority {level['level']}: queue id {level['queue_id']}"
            out.print(f"{text}, {counted(level['messages'], 'message')}")
    out.print(heading("Messages"))
    count = 0
    while some := list(islice(facts["messages"], _BATCH)):
        rows = table(
            "sequence",
            "id",
            "size",
            "delivered",
            "prio",
            "expires (UTC)",
            "segment",
            "offset",
            right="sequence id size delivered prio segment offset",
        )
        for row in some:
            is_there = row["segment"] is not None
            rows.add_row(
                f"{row['sequence']}",
                f"{row['message_id']}",
                size(row["size"]),
                f"{row['delivery_count']}",
                f"{row['priority']}",
                when(row["expires_ms"])[:19],
                f"{row['segment']}" if is_there else Text("missing", "red"),
                f"{row['offset']}" if is_there else "",
            )
        count += len(some)
        out.print(rows)
    if count < facts["ready"] + facts["locked"] + facts["lost"]:
        out.print("  continue with --first SEQUENCE, or show all with --limit 0", style="dim")
