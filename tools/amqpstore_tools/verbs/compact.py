"""`amqpstore compact`: frees all disk space that a stopped store does not need."""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from amqpstore import Options, Store
from amqpstore.errors import UnreadableFileError
from amqpstore.system.filenames import INDEX, SEGMENTS
from amqpstore.system.files import FileType, type_of
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.offline.exits import DAMAGED, OK, add_json, run_tool
from amqpstore_tools.offline.json_output import write_json
from amqpstore_tools.offline.locations import require_store
from amqpstore_tools.offline.progress import progress_bar
from amqpstore_tools.offline.short_log import refuse_short_log
from amqpstore_tools.offline.terminal import counted, say, size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `compact`."""
    parser.description = (
        "Compact a store that no broker has open as far as possible: live messages are merged into "
        "as few segments as possible, and everything else is removed, except in the last segment. "
        "It may be interrupted at any time."
    )
    parser.add_argument("directory", metavar="DIR", help="data directory")
    parser.add_argument(
        "--segment-bytes",
        type=int,
        default=Options().segment_bytes,
        metavar="N",
        help="size of the new segments (default: %(default)s, as for `serve`)",
    )
    add_json(parser, "done, but damage was found")


def run(arguments: argparse.Namespace) -> int:
    """Compact. Returns the exit code."""

    def tool() -> int:
        result = _compact(arguments.directory, arguments.segment_bytes)
        write_json(result) if arguments.json else _print(result)
        return DAMAGED if result["damage"] else OK

    no_space = (
        "A compaction needs room for one new segment, and the reserve is used up. Remove something "
        "else from that disk, then run it again; nothing is lost."
    )
    return run_tool("compact", tool, as_json=arguments.json, no_space=no_space)


def _compact(directory: str, segment_bytes: int) -> dict[str, Any]:
    """Raises: StoreError, OSError."""
    require_store(directory)
    started = time.monotonic()
    before = _sizes(directory)
    options = Options(segment_bytes=segment_bytes, reserve_bytes=0, least_free_bytes=0)
    damage: list[list[object]] = []
    moved = 0
    with (
        progress_bar() as show,
        Store.open(directory, options=options, worker=InlineWorker()) as store,
    ):
        refuse_short_log(directory, store)
        try:
            for compacted in store.upkeep.compact():
                damage += [list(one) for one in compacted.damage]
                moved += compacted.moved_bytes
                show("compacting", moved, max(sum(before.values()), moved))
        except FileNotFoundError as error:
            raise UnreadableFileError(error.filename, str(error.strerror)) from error
    after = _sizes(directory)
    return {
        "directory": directory,
        "segments_before": len([path for path in before if path.endswith(".segment")]),
        "segments_after": len([path for path in after if path.endswith(".segment")]),
        "bytes_before": sum(before.values()),
        "bytes_after": sum(after.values()),
        "damage": damage,
        "seconds": round(time.monotonic() - started, 3),
    }


def _sizes(directory: str) -> dict[str, int]:
    """Return the sizes of the files that hold messages, by path."""
    return {
        entry.path: entry.stat().st_size
        for name in (SEGMENTS, INDEX)
        if os.path.isdir(folder := os.path.join(directory, name))
        for entry in os.scandir(folder)
        if type_of(entry.path) is FileType.FILE
    }


def _print(result: dict[str, Any]) -> None:
    before, after = result["bytes_before"], result["bytes_after"]
    freed = f"{size(before - after)} freed" if after < before else "nothing to free"
    say(
        f"{result['directory']}: {size(before)} in "
        f"{counted(result['segments_before'], 'segment')} before, {size(after)} in "
        f"{result['segments_after']:,} now; {freed}, in {result['seconds']:.1f} s"
    )
    for path, offset, count, reason in result["damage"]:
        say(f"  damaged: {path} at {offset:,}, {count:,} bytes: {reason}")
    if result["damage"]:
        say("  The damaged segments are in quarantine/, complete.")
