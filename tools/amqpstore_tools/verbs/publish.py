"""`amqpstore publish`: messages from a file to a broker that runs."""

from __future__ import annotations

import argparse
import time
from typing import Any

from amqpstore_tools.offline.exits import add_json, run_tool
from amqpstore_tools.offline.json_output import write_json
from amqpstore_tools.offline.progress import progress_bar
from amqpstore_tools.offline.terminal import say
from amqpstore_tools.transfer.broker_options import (
    add_skip,
    add_url,
    address_and_vhost,
    print_confirmed,
)
from amqpstore_tools.transfer.input import lines_of, opened
from amqpstore_tools.transfer.publishing import as_it_was_routed, publish_lines, to_its_queue


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `publish`."""
    parser.description = (
        "Publish the messages in a file of `amqpstore export` to a broker, in order and with "
        "confirms. Each message goes directly to the queue it was in, or with --routed to its "
        "original exchange."
    )
    parser.add_argument(
        "file", metavar="FILE", help="file of exported messages; - is standard input"
    )
    add_url(parser, "publish the messages of this virtual host")
    parser.add_argument(
        "--routed",
        action="store_true",
        help="publish to the original exchange, with the original routing key",
    )
    add_skip(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Publish. Returns the exit code."""
    return run_tool("publish", lambda: _publish(arguments), as_json=arguments.json)


def _publish(arguments: argparse.Namespace) -> None:
    started = time.monotonic()
    address, vhost = address_and_vhost(arguments)
    route = as_it_was_routed if arguments.routed else to_its_queue
    with opened(arguments.file) as (file, size), progress_bar() as show:
        lines = lines_of(arguments.file, file, size, show, "publishing")
        published = publish_lines(address, lines, route=route, vhost=vhost, skip=arguments.skip)
    result = {
        "url": str(address),
        "messages": published.messages,
        "confirmed": published.confirmed,
        "of_other_virtual_hosts": published.left_out,
        "seconds": round(time.monotonic() - started, 3),
    }
    write_json(result) if arguments.json else _print(result)


def _print(result: dict[str, Any]) -> None:
    print_confirmed(result)
    if left_out := result["of_other_virtual_hosts"]:
        say(f"  skipped, because they belong to other virtual hosts: {left_out:,}")
