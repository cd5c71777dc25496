"""`amqpstore stats`: shows what takes the space in a store."""

from __future__ import annotations

import argparse

from amqpstore_tools.offline.exits import add_json, run_tool
from amqpstore_tools.offline.json_output import write_json
from amqpstore_tools.offline.progress import progress_bar
from amqpstore_tools.repair.imaging import RemainingImage
from amqpstore_tools.stats.figures import figures
from amqpstore_tools.stats.picture import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the directory and the options."""
    parser.description = (
        "Show what takes up the space in the data directory DIR of a stopped "
        "broker, or with --live of a running one: sizes, ages and garbage. Ages are those of whole "
        "segments; messages that compaction has moved may be older. Nothing is changed."
    )
    parser.add_argument("data", metavar="DIR", help="data directory")
    parser.add_argument(
        "--live", action="store_true", help="read a snapshot while a broker runs on DIR"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show it. Returns the exit code."""
    return run_tool("stats", lambda: _stats(arguments), has_live=True, as_json=arguments.json)


def _stats(arguments: argparse.Namespace) -> None:
    with progress_bar() as tell:
        image = RemainingImage.open(arguments.data, live=arguments.live, tell=tell)
    with image:
        found = figures(image)
    if arguments.json:
        write_json(found)
    else:
        show(found)
