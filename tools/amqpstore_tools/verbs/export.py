"""`amqpstore export`: the messages of queues, as JSON Lines or msgpack."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

from amqpstore_tools.offline.exits import DAMAGED, OK, UsageError, add_json, run_tool
from amqpstore_tools.offline.json_output import write_json
from amqpstore_tools.offline.locations import require_outside
from amqpstore_tools.offline.output import output_file
from amqpstore_tools.offline.progress import progress_bar
from amqpstore_tools.offline.soundness import is_damaged
from amqpstore_tools.offline.terminal import counted, say, size
from amqpstore_tools.repair.imaging import RemainingImage
from amqpstore_tools.transfer.exporting import ExportedQueue, chosen, export, queues_of
from amqpstore_tools.transfer.lines import FORMATS, LineWriter

if TYPE_CHECKING:
    from amqpstore_tools.repair.exporting import RemainingQueue, Remains

STANDARD = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `export`."""
    parser.description = (
        "Write the messages of queues to a file, with all properties and headers "
        "and their types. The store is only read."
    )
    parser.add_argument("directory", metavar="DIR", help="data directory")
    parser.add_argument(
        "output", metavar="FILE", nargs="?", default=STANDARD, help="default: -, standard output"
    )
    parser.add_argument(
        "--queue", metavar="NAME", action="append", help="only this queue; may be repeated"
    )
    parser.add_argument("--vhost", metavar="NAME", help="only queues of this virtual host")
    parser.add_argument(
        "--format", choices=FORMATS, default=FORMATS[0], help="default: %(default)s"
    )
    parser.add_argument(
        "--live", action="store_true", help="read a snapshot while a broker runs on DIR"
    )
    add_json(parser, "done, but damage was found")


def run(arguments: argparse.Namespace) -> int:
    """Export. Returns the exit code."""
    return run_tool("export", lambda: _export(arguments), has_live=True, as_json=arguments.json)


def _export(arguments: argparse.Namespace) -> int:
    if arguments.json and arguments.output == STANDARD:
        raise UsageError("--json needs a FILE, because both would go to standard output")
    if arguments.output != STANDARD:
        require_outside(arguments.directory, arguments.output)
    started = time.monotonic()
    directory = os.path.normpath(arguments.directory)
    remains: Remains | None = None
    left: list[RemainingQueue] = []
    with (
        progress_bar(in_bytes=False) as show,
        RemainingImage.open(directory, live=arguments.live, tell=show) as image,
        _opened(arguments.output) as file,
    ):
        remains = image.remains
        if remains is None and is_damaged(image) and not image.is_live:
            remains = image.find_remains()
        if remains is not None:
            left = chosen(remains.queues, directory, arguments.queue, arguments.vhost)
        queues: Sequence[ExportedQueue] = left
        if remains is None:
            queues = chosen(queues_of(image), directory, arguments.queue, arguments.vhost)
        store_id = image.store_id.hex if image.store_id else ""
        # What is in memory by now stays: the garbage collector need not look at it again.
        gc.freeze()
        exported = export(store_id, LineWriter(file, arguments.format), queues, show)
        in_doubt = sum(one.is_undecided and not one.is_purge for one in image.prepared)
    result = {
        "output": arguments.output,
        "queues": len({(queue.key.vhost, queue.key.name) for queue in queues}),
        "messages": exported.messages,
        "unreadable": exported.unreadable,
        "in_doubt": remains.in_doubt if remains else in_doubt,
        "again": _again(left),
        "recovered": [*dict.fromkeys(one.key.label for one in left if one.is_recovered)],
        "notes": remains.truth.notes if remains else [],
        "is_damaged": remains is not None,
        "bytes": exported.bytes,
        "seconds": round(time.monotonic() - started, 3),
    }
    write_json(result) if arguments.json else _print(result)
    return DAMAGED if exported.unreadable or result["is_damaged"] else OK


def _again(left: Iterable[RemainingQueue]) -> Counter[str]:
    """Return how many messages may have been acked, by queue."""
    found: Counter[str] = Counter()
    for one in left:
        if one.again:
            found[one.key.label] += one.again
    return found


@contextlib.contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    """Open the file of that name; or standard output."""
    if path == STANDARD:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with output_file(path) as file:
        yield file


def _print(result: dict[str, Any]) -> None:
    """Print the result on stderr, as the messages may be on standard output."""
    out = sys.stderr
    total = sum(result["messages"].values())
    say(
        f"{counted(total, 'message')} of {counted(result['queues'], 'queue')} exported, "
        f"{size(result['bytes'])} in {result['seconds']:.1f} s",
        out,
    )
    if in_doubt := result["in_doubt"]:
        say(f"  skipped: what {counted(in_doubt, 'transaction')} in doubt would publish", out)
    for queue, count in result["unreadable"].items():
        say(f"  not readable: {counted(count, 'message')} of queue {queue}", out)
    if result["is_damaged"]:
        say(
            "  warning: the store is damaged, see `amqpstore check`; this is what is left of it",
            out,
        )
    for note in result["notes"]:
        say(f"  warning: {note}", out)
    for queue in result["recovered"]:
        say(f"  its name is lost, and made of its id: queue {queue}", out)
    for queue, count in result["again"].items():
        say(f"  perhaps acked before: {counted(count, 'message')} of queue {queue}", out)
