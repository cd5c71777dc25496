"""`amqpstore replay`: publishes messages of an archive again."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

from amqpstore_tools.archive.layout import QueueName
from amqpstore_tools.offline.exits import UsageError, add_json, run_tool
from amqpstore_tools.offline.json_output import write_json
from amqpstore_tools.offline.progress import Progress, progress_bar
from amqpstore_tools.offline.terminal import say
from amqpstore_tools.offline.times import time_ms
from amqpstore_tools.spark.engine import add_master
from amqpstore_tools.spark.requirements import require_spark
from amqpstore_tools.transfer.broker_options import (
    add_skip,
    add_url,
    address_and_vhost,
    print_confirmed,
)
from amqpstore_tools.transfer.lines import Line, MessageLine
from amqpstore_tools.transfer.publishing import as_it_was_routed, publish_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the archive, which of its messages, and where they go."""
    parser.description = (
        "Publish the messages of an archived queue and time span again, in the same order and with "
        "confirms. They go directly to the queue, or with --routed to their original exchange."
    )
    parser.add_argument("out", metavar="OUT", help="an archive")
    parser.add_argument("--queue", required=True, metavar="Q", help="name of the queue")
    parser.add_argument(
        "--from",
        dest="least_ms",
        type=time_ms,
        metavar="T",
        help="messages published at T or later: ISO 8601, or ms since 1970",
    )
    parser.add_argument(
        "--to", dest="most_ms", type=time_ms, metavar="T", help="messages published before T"
    )
    add_url(parser, "virtual host of the queue")
    parser.add_argument("--into", metavar="Q", help="publish to this queue instead")
    parser.add_argument(
        "--routed",
        action="store_true",
        help="publish to the original exchanges, with the original routing keys",
    )
    add_skip(parser)
    add_master(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Replay. Returns the exit code."""
    return run_tool("replay", lambda: _replay(arguments), as_json=arguments.json)


def _replay(arguments: argparse.Namespace) -> None:
    address, vhost = address_and_vhost(arguments)
    if arguments.routed and arguments.into:
        raise UsageError("--into and --routed cannot be combined")
    require_spark()
    # Imported here, so that the other verbs start without Spark.
    from amqpstore_tools.archive import reading
    from amqpstore_tools.spark.cluster import cluster

    name = QueueName(vhost, arguments.queue)
    span = {"least_ms": arguments.least_ms, "most_ms": arguments.most_ms}
    into = arguments.into or arguments.queue
    archived = reading.find(arguments.out, name, **span)
    with cluster(arguments.master, "replay") as spark, progress_bar(in_bytes=False) as show:
        frame = reading.published(spark.spark, archived.paths, **span).cache()
        lines = _Lines(reading.lines(frame, name), show, frame.count())
        started = time.monotonic()
        published = publish_lines(
            address,
            lines,
            route=as_it_was_routed if arguments.routed else lambda _line: ("", into),
            vhost=vhost,
            skip=arguments.skip,
        )
        seconds = time.monotonic() - started
    result = {
        "url": str(address),
        "queue": arguments.queue,
        "confirmed": published.confirmed,
        "unreadable": lines.unreadable,
        "seconds": round(seconds, 3),
    }
    write_json(result) if arguments.json else _print(result)


def _print(result: dict[str, Any]) -> None:
    print_confirmed(result)
    if unreadable := result["unreadable"]:
        say(f"  skipped, because their content is damaged: {unreadable:,}")


class _Lines:
    """Messages to be sent; `unreadable` of them are left out."""

    def __init__(self, lines: Iterator[MessageLine | None], show: Progress, total: int) -> None:
        self._lines = lines
        self._show = show
        self._total = total
        self.unreadable = 0

    def __iter__(self) -> Iterator[Line]:
        for done, line in enumerate(self._lines, 1):
            if line is None:
                self.unreadable += 1
            else:
                yield line
            self._show("publishing", done, self._total)
