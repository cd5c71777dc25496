"""`amqpstore report`: a store as one page of HTML."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from amqpstore_tools.offline.exits import add_json, run_tool
from amqpstore_tools.offline.json_output import write_json
from amqpstore_tools.offline.locations import require_outside
from amqpstore_tools.offline.output import output_file
from amqpstore_tools.offline.progress import progress_bar
from amqpstore_tools.offline.terminal import say
from amqpstore_tools.spark.engine import add_master
from amqpstore_tools.spark.requirements import require_spark

if TYPE_CHECKING:
    from amqpstore_tools.report.tally import Item, Tally


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the data directory and the file."""
    parser.description = (
        "Write an HTML page with charts of a data directory: rates by queue and time, sizes, ages "
        "of waiting messages, reasons for redeliveries and dead letters, garbage, and routing "
        "keys. The page is one file without external resources. A broker may be running on DIR."
    )
    parser.add_argument("directory", metavar="DIR", help="a data directory")
    parser.add_argument(
        "--out",
        default="report.html",
        metavar="FILE",
        help="file to write (default: %(default)s)",
    )
    add_master(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Report. Returns the exit code."""
    return run_tool("report", lambda: _report(arguments), as_json=arguments.json)


def _report(arguments: argparse.Namespace) -> None:
    require_outside(arguments.directory, arguments.out)
    require_spark()
    # Imported here, so that the other verbs start without Spark.
    from amqpstore_tools.report.gathering import gather
    from amqpstore_tools.report.page import page
    from amqpstore_tools.spark.cluster import cluster

    with cluster(arguments.master, "report") as spark, progress_bar() as show:
        started = time.monotonic()

        def spread(items: Sequence[Item], count: Callable[[Iterable[Item]], Tally]) -> list[Tally]:
            return spark.by_group(items, lambda item: item.size, count, show, "counting")

        figures = gather(arguments.directory, spread, is_local=spark.is_local)
        seconds = time.monotonic() - started
    with output_file(arguments.out) as file:
        file.write(page(figures).encode())
    if not arguments.json:
        say(f"{arguments.out}, in {seconds:.1f} s")
        return
    write_json(
        {
            "page": arguments.out,
            "segments": len(figures.segments),
            "batches": figures.tally.batches,
            "damaged_places": figures.tally.damaged,
            "seconds": round(seconds, 3),
        }
    )
