"""The overview of a store, on one page."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from amqpstore.evidence import find_wrong_kinds
from amqpstore.format.index import Entries
from amqpstore.identity.identity import SegmentHeader
from amqpstore.system.files import open_regular
from amqpstore_tools.inspect import usage
from amqpstore_tools.inspect.usage import PublishTimes, SizeStatistics
from amqpstore_tools.offline.contents import plain
from amqpstore_tools.offline.foreign_files import find_foreign
from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.offline.queues import QueueImage
from amqpstore_tools.offline.segments import SegmentImage
from amqpstore_tools.offline.soundness import is_known_damaged

REPORTS = "reports"

Facts = dict[str, Any]

_BAR = 20


def facts(image: StoreImage) -> Facts:
    """Return all facts. Reads the index files."""
    times, sizes = PublishTimes(image.segments), SizeStatistics()
    visible = [queue for queue in image.queues if not queue.is_hidden]
    queues = queue_facts(visible, times, sizes.add)
    for queue in image.queues:
        if queue.is_hidden:
            # Prepared messages take space until they are decided.
            queue.totals(sizes.add)
    return {
        **store_facts(image),
        "is_damaged": is_known_damaged(image),
        "vhosts": sorted(image.rows("vhosts")),
        "users": sorted(image.rows("users")),
        "exchanges": exchange_facts(image),
        "bindings": len(image.rows("bindings")),
        "policies": len(image.rows("policies")),
        "queues": queues,
        "segments": [segment_facts(one) for one in image.segments],
        "quarantined_segments": [segment_facts(one) for one in image.quarantined],
        "index_files": {
            "count": len(image.index_files),
            "bytes": sum(one.size or 0 for one in image.index_files),
            "missing": [one.path for one in image.index_files if one.size is None],
        },
        "checkpoint": _checkpoint(image),
        "log_tail": image.tail._asdict()
        | {"start": image.tail.start._asdict(), "end": image.tail.end._asdict()},
        "prepared": _prepared(image),
        "damage": [
            {"path": path, "offset": offset, "bytes": count, "reason": reason}
            for path, offset, count, reason in image.report.damage
        ],
        "lost": image.lost_count,
        "orphaned": len(image.report.orphaned),
        "shortfall": image.report.shortfall.text if image.report.shortfall else "",
        "passed_over": image.report.passed_over,
        "unknown_files": image.report.unknown_files,
        "last_recovery": last_recovery(image.directory),
        "usage": usage.facts(image, sizes, times),
    }


def store_facts(image: StoreImage) -> Facts:
    """Return which store it is, and which parts of it cannot be read."""
    return {
        "directory": image.directory,
        "format_version": image.format_version,
        "store_id": image.store_id.hex if image.store_id else None,
        "is_live": image.is_live,
        "taken_ms": image.taken_ms,
        "marker_reason": image.marker_reason,
        "catalog_reason": image.catalog_reason,
        "notes": image.notes,
        "wrong_kinds": [
            {"name": one.name, "reason": one.reason}
            for one in find_wrong_kinds(image.files, image.directory)
        ],
        "foreign_files": [
            {"name": one.name, "reason": one.reason}
            for one in find_foreign(image.files, image.directory)
        ],
        "bad_rows": [
            {"table": row.table, "key": plain(row.key), "reason": row.reason}
            for row in image.catalog.bad_rows
        ],
    }


def queue_facts(
    queues: Iterable[QueueImage],
    times: PublishTimes,
    see: Callable[[QueueImage, Entries], None] | None = None,
) -> list[Facts]:
    """Return the queues as a broker has them: the priority levels of one queue are combined.

    Args: see, is called with the columns of their messages.
    """
    together: dict[tuple[str | None, str | None, int], Facts] = {}
    for queue in queues:
        totals = queue.totals(see)
        key = (queue.vhost, queue.name, 0 if queue.name is not None else queue.id)
        facts = together.setdefault(key, _queue(queue))
        facts["ids"].append(queue.id)
        facts["ready"] += totals.ready
        facts["locked"] += totals.locked
        facts["delivered"] += totals.delivered
        facts["bytes"] += totals.bytes
        facts["lost"] += len(queue.lost)
        facts["unreadable"] += totals.unreadable
        facts["again"] += queue.again_count
        facts["is_recovered"] |= queue.is_recovered
        if totals.oldest_id is not None:
            before = facts["oldest_ms"], times.of(totals.oldest_id)
            facts["oldest_ms"] = min((ms for ms in before if ms is not None), default=None)
    return list(together.values())


def segment_facts(segment: SegmentImage) -> Facts:
    """Return the facts of one segment, without reading its records."""
    header = segment.header() if segment.size else None
    account = segment.account
    return {
        "number": segment.number,
        "state": segment.state.value,
        "path": segment.path,
        "bytes": segment.size,
        "live_bytes": segment.live_bytes if account else None,
        "garbage_bytes": segment.garbage_bytes if account else None,
        "messages": account.count if account else None,
        "live_messages": account.live_count if account else None,
        "first_id": segment.first_id,
        "end_id": segment.end_id,
        "end": segment.end,
        "created_ms": header.created_ms if isinstance(header, SegmentHeader) else None,
        "damage": [
            {"offset": offset, "bytes": count, "reason": reason}
            for offset, count, reason in segment.damage
        ],
    }


def last_recovery(directory: str) -> Facts | None:
    """Return the last recovery report of a broker; None if there is none."""
    reports = os.path.join(directory, REPORTS)
    try:
        names = sorted(name for name in os.listdir(reports) if name.startswith("recovery-"))
    except OSError:
        return None
    for name in reversed(names):
        path = os.path.join(reports, name)
        try:
            with open(open_regular(path), encoding="utf-8") as file:
                content = json.load(file)
        except (OSError, ValueError, RecursionError) as error:
            return {"path": path, "reason": str(error)}
        if isinstance(content, dict):
            return {"path": path, **content}
    return None


def _checkpoint(image: StoreImage) -> Facts | None:
    """Return where the last checkpoint was; None if there is none, or the catalog does not say."""
    start = image.tail.start
    return start._asdict() if start.segment else None


def _queue(queue: QueueImage) -> Facts:
    definition = queue.definition if isinstance(queue.definition, Mapping) else {}
    return {
        "vhost": queue.vhost,
        "name": queue.name,
        "label": queue.label,
        "ids": [],
        "ready": 0,
        "locked": 0,
        "delivered": 0,
        "bytes": 0,
        "lost": 0,
        "unreadable": 0,
        "again": 0,
        "is_recovered": False,
        "oldest_ms": None,
        "arguments": plain(definition.get("arguments", {})),
    }


def exchange_facts(image: StoreImage) -> list[Facts]:
    """Return the exchanges except the predeclared ones."""
    rows = [row for row in image.rows("exchanges").values() if isinstance(row, Mapping)]
    return [plain(dict(row)) for row in rows]


def _prepared(image: StoreImage) -> list[Facts]:
    return [
        {
            "queue_id": one.queue_id,
            "label": plain(one.label),
            "is_undecided": one.is_undecided,
            "is_purge": one.is_purge,
            "locked": [run._asdict() for run in one.locked],
            "publishes": [group._asdict() for group in one.publishes],
        }
        for one in image.prepared
    ]
