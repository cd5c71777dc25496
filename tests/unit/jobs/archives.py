"""Tools of the tests of archives: archives are written in this process, and read without Spark."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow.parquet as pq

from amqpstore_tools.archive.archiving import archive
from amqpstore_tools.archive.committing import Archive
from amqpstore_tools.archive.events import PUBLISH
from amqpstore_tools.archive.manifest import ArchiveManifest
from amqpstore_tools.archive.writing import ArchiveResult, SegmentItem
from amqpstore_tools.offline.contents import operation_name
from amqpstore_tools.offline.image import StoreImage

_EVENTS = {"ENQUEUE": PUBLISH, "ACK": "ack", "DELIVERED": "deliver", "PURGE": "purge"}

Event = tuple[int, str, int, int, int]
"""LSN, event, queue id, position, count."""

QueuePosition = tuple[int, int]
"""Queue id and position."""


def here(
    items: Sequence[SegmentItem], write: Callable[[Iterable[SegmentItem]], ArchiveResult]
) -> list[ArchiveResult]:
    """Two segments at a time."""
    return [write(items[start : start + 2]) for start in range(0, len(items), 2)]


def run(directory: str, out: str) -> ArchiveManifest | None:
    return archive(directory, out, here)


def rows_of(out: str) -> list[dict[str, Any]]:
    """All rows of all files that count."""
    return [
        row
        for manifest in Archive(out).manifests()
        for entry in manifest.files
        for row in pq.read_table(os.path.join(out, entry.path), partitioning=None).to_pylist()
    ]


def events_of(rows: Iterable[dict[str, Any]]) -> Counter[Event]:
    """Return the events of the log, and how often each is there."""
    return Counter(
        (row["lsn"], row["event"], row["queue_id"], row["position"], row["count"])
        for row in rows
        if row["event"] not in ("held", "gone", "delete")
    )


def log_of(directory: str) -> Counter[Event]:
    """Return what the log of a store says; one batch may say the same twice."""
    found: Counter[Event] = Counter()
    with StoreImage.open(directory) as image:
        for segment in image.log_segments():
            for transaction in image.transactions(segment):
                for one in transaction.operations:
                    event = _EVENTS[operation_name(one.kind)]
                    runs = [(one.first_sequence, one.message_count)]
                    if event == PUBLISH:
                        runs = [(one.first_sequence + n, 1) for n in range(one.message_count)]
                    found.update((transaction.lsn, event, one.queue_id, *run) for run in runs)
    return found


def held_by(rows: Iterable[dict[str, Any]]) -> dict[QueuePosition, bytes | None]:
    """Return what queues hold in the end, as an archive says it: places and bodies."""
    came: dict[QueuePosition, bytes | None] = {}
    left: set[QueuePosition] = set()
    gone = set()
    for row in rows:
        positions = range(row["position"], row["position"] + row["count"])
        if row["event"] in (PUBLISH, "held"):
            assert (row["queue_id"], row["position"]) not in came
            came[row["queue_id"], row["position"]] = row["body"]
        elif row["event"] in ("ack", "purge", "gone"):
            left |= {(row["queue_id"], position) for position in positions}
        elif row["event"] == "delete":
            gone.add(row["queue_id"])
    return {
        place: body for place, body in came.items() if place not in left and place[0] not in gone
    }


def held_in(directory: str) -> dict[QueuePosition, bytes]:
    """Return the bodies by queue and position, as the store has them."""
    found = {}
    with StoreImage.open(directory) as image:
        for queue in image.queues:
            for entry in queue.entries():
                message = image.message(entry.message_id)
                assert message is not None
                found[queue.id, entry.sequence] = bytes(message.message(image.decoder).body)
    return found
