"""`amqpstore archive`: the log of a store to Parquet files."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from amqpstore_tools.offline.exits import add_json, run_tool
from amqpstore_tools.offline.json_output import write_json
from amqpstore_tools.offline.locations import require_outside
from amqpstore_tools.offline.progress import progress_bar
from amqpstore_tools.offline.terminal import counted, say, size
from amqpstore_tools.spark.engine import add_master
from amqpstore_tools.spark.requirements import require_spark

if TYPE_CHECKING:
    from amqpstore_tools.archive.manifest import ArchiveManifest
    from amqpstore_tools.archive.writing import ArchiveResult, SegmentItem


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the two directories and the options."""
    parser.description = (
        "Add the new part of the log of the store in DIR to the archive OUT, as Parquet files: "
        "every publish, delivery, ack and purge, exactly once. A broker may be running on DIR. If "
        "a run is killed, just run it again: files count only once a run is complete."
    )
    parser.add_argument("directory", metavar="DIR", help="a data directory")
    parser.add_argument("out", metavar="OUT", help="the archive; created if it does not exist")
    add_master(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Archive. Returns the exit code."""
    return run_tool("archive", lambda: _archive(arguments), as_json=arguments.json)


def _archive(arguments: argparse.Namespace) -> None:
    require_outside(arguments.directory, arguments.out)
    require_spark()
    # Imported here, so that the other verbs start without Spark.
    from amqpstore_tools.archive.archiving import archive
    from amqpstore_tools.spark.cluster import cluster

    with cluster(arguments.master, "archive") as spark, progress_bar() as show:
        started = time.monotonic()

        def spread(
            items: Sequence[SegmentItem], write: Callable[[Iterable[SegmentItem]], ArchiveResult]
        ) -> list[ArchiveResult]:
            return spark.by_group(
                items, lambda item: item.size - item.start, write, show, "archiving"
            )

        manifest = archive(arguments.directory, arguments.out, spread, is_local=spark.is_local)
        result = _result(arguments.out, manifest, time.monotonic() - started)
    write_json(result) if arguments.json else say(_text(result))


def _result(out: str, manifest: ArchiveManifest | None, seconds: float) -> dict[str, Any]:
    if manifest is None:
        return {"archive": out, "run": None, "events": {}, "seconds": round(seconds, 3)}
    return {
        "archive": out,
        "run": manifest.run,
        "up_to_lsn": manifest.position.lsn - 1,
        "batches": manifest.batches,
        "events": manifest.events,
        "files": len(manifest.files),
        "rows": sum(entry.rows for entry in manifest.files),
        "bytes": sum(entry.bytes for entry in manifest.files),
        "missing_lsns": manifest.missing,
        "damaged_places": manifest.damaged,
        "unreadable_messages": manifest.unreadable,
        "seconds": round(seconds, 3),
    }


def _text(result: dict[str, Any]) -> str:
    if result["run"] is None:
        return "nothing new since the last run"
    events = ", ".join(f"{count:,} {event}" for event, count in sorted(result["events"].items()))
    rate = result["rows"] / max(result["seconds"], 0.001)
    size_of = f"{counted(result['files'], 'file')}, {size(result['bytes'])}"
    lines = [
        f"run {result['run']}: {events or 'no events'}, up to LSN {result['up_to_lsn']}",
        f"  {size_of}, in {result['seconds']:.1f} s ({rate:,.0f} rows/s)",
    ]
    if missing := result["missing_lsns"]:
        lines.append(
            f"  {missing:,} batches of the log no longer existed: compaction was faster. "
            "Their messages that queues still hold are archived as held."
        )
    if damaged := result["damaged_places"]:
        lines.append(f"  {counted(damaged, 'damaged place')} skipped: see amqpstore check")
    if unreadable := result["unreadable_messages"]:
        lines.append(f"  {counted(unreadable, 'message')} without their content: it is damaged")
    return "\n".join(lines)
