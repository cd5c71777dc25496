"""Recovery reports: what a start found after a crash is logged, and stored as JSON in `reports/`
beside the store.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from amqpstore import Store
from amqpstore.system.durability import reason_of
from amqpstore_server.broker.channels.branches import Xid
from amqpstore_server.broker.definitions.stored import misshapen
from amqpstore_server.reports.reports import write_report

_LOGGED_QUEUES = 20
_LOGGED_FILES = 20
"""The report has all of them."""

_log = logging.getLogger(__name__)


def keep_report(
    store: Store, now: datetime, set_aside: Sequence[tuple[str, str]] = ()
) -> str | None:
    """Log what recovery found, and write a report if the last run did not end cleanly.

    Args: set_aside, the queues that failed at this start, as virtual host and name. Returns the
    path of the report; None if the last run ended cleanly, or the report cannot be written. A
    report that cannot be written is logged, and does not prevent the start.
    """
    report = store.recovery_report
    queues = _by_queue(store)
    summary = {
        "segments": report.segments,
        "scanned_bytes": report.scanned_bytes,
        "messages": sum(queue["kept"] for queue in queues),
        "redelivered": sum(report.redelivered.values()),
        "torn_bytes": report.torn_bytes,
        "rolled_back": report.rolled_back,
        "lost": report.lost_count,
        "orphaned": len(report.orphaned),
    }
    for extra in _damage_by_file(report.damage):
        _log.error("damage", extra=extra)
    if report.shortfall:
        text = f"{report.shortfall.text}. `amqpstore check` lists what is damaged"
        _log.error("the log is short", extra={"reason": text})
    if report.passed_over:
        _log.error("the store needs a repair", extra={"reason": report.passed_over})
    level = logging.INFO if report.is_clean else logging.WARNING
    _log.log(level, "store opened", extra=summary)
    if report.is_clean and not report.scanned_bytes and not set_aside:
        return None
    touched = [queue for queue in queues if queue["redelivered"] or _has_losses(queue)]
    for queue in touched[:_LOGGED_QUEUES]:
        _log.log(logging.WARNING if _has_losses(queue) else logging.INFO, "recovered", extra=queue)
    content = {
        "time": now.isoformat(timespec="milliseconds"),
        **summary,
        "queues": queues,
        "set_aside": [{"vhost": vhost, "queue": queue} for vhost, queue in set_aside],
        "in_doubt": _in_doubt(store),
        "damage": [
            {"path": path, "offset": offset, "bytes": size, "reason": reason}
            for path, offset, size, reason in report.damage
        ],
        "unknown_files": report.unknown_files,
        "shortfall": asdict(report.shortfall),
        "passed_over": report.passed_over,
    }
    try:
        path = write_report(store.directory, "recovery", now, json.dumps(content, indent=2))
    except OSError as error:
        _log.error("the recovery report could not be saved", extra={"reason": reason_of(error)})
        return None
    _log.info("recovery report", extra={"path": path})
    return path


def _damage_by_file(damage: Iterable[tuple[str, int, int, str]]) -> Iterator[dict[str, object]]:
    """Yield the fields of a line of the log for each damaged file, with those of its first place;
    the files beyond the first ones are summed up in one.
    """
    by_file: dict[str, list[tuple[int, int, str]]] = {}
    for path, offset, size, reason in damage:
        by_file.setdefault(path, []).append((offset, size, reason))
    files = [*by_file.items()]
    for path, places in files[:_LOGGED_FILES]:
        offset, _, reason = places[0]
        size = sum(one[1] for one in places)
        found = {"path": path, "offset": offset, "bytes": size, "reason": reason}
        yield found if len(places) == 1 else {**found, "places": len(places)}
    if others := files[_LOGGED_FILES:]:
        places = [one for _, some in others for one in some]
        yield {"files": len(others), "places": len(places), "bytes": sum(one[1] for one in places)}


def _by_queue(store: Store) -> list[dict[str, Any]]:
    """Return the recovery result of each affected queue, by virtual host and name."""
    report = store.recovery_report
    lost = [queue_id for queue_id, _, _ in report.lost]
    queues = []
    for queue_id in sorted({*report.kept, *report.redelivered, *lost}):
        if store.is_hidden(queue_id):
            continue
        stored = store.queues.get(queue_id)
        if stored is None and queue_id not in lost:
            continue  # It belonged to a transaction that is decided.
        definition: Any = stored.definition if stored else None
        named = definition if isinstance(definition, dict) else {}
        queues.append(
            {
                "vhost": named.get("vhost"),
                "queue": named.get("name"),
                "queue_id": queue_id,
                "kept": report.kept.get(queue_id, 0),
                "redelivered": report.redelivered.get(queue_id, 0),
                "lost": lost.count(queue_id),
                "quarantined": stored.quarantined.count if stored else 0,
                "unreadable": stored.unreadable_count if stored else 0,
            }
        )
    return queues


def _in_doubt(store: Store) -> list[dict[str, Any]]:
    """Return the undecided distributed transactions, and the messages they have locked."""
    rows = []
    for prepared in store.prepared.values():
        label = prepared.label
        if misshapen("branches", label):
            continue  # The broker has logged that it cannot decide it.
        format_id, global_id, branch_id = label["xid"]
        locked: Counter[str] = Counter()
        for queue, run in prepared.locked:
            definition: Any = queue.definition
            if not misshapen("queues", definition):
                locked[definition["name"]] += run.count
        rows.append(
            {
                "vhost": label["vhost"],
                "user": label["user"],
                "xid": str(Xid(format_id, global_id, branch_id)),
                "locked": dict(locked),
            }
        )
    return rows


def _has_losses(queue: dict[str, Any]) -> bool:
    return bool(queue["lost"] or queue["quarantined"] or queue["unreadable"])
