"""`amqpstore publish`: messages from a file to a broker that runs."""

from __future__ import annotations

import argparse
import time
from typing import Any

from amqpstore_tools.client.connection import Address
from amqpstore_tools.client.errors import CommandLineError
from amqpstore_tools.offline.exits import UsageError, add_json, run_tool
from amqpstore_tools.offline.json_output import write_json
from amqpstore_tools.offline.progress import progress_bar
from amqpstore_tools.offline.terminal import counted, say
from amqpstore_tools.transfer.input import lines_of, opened
from amqpstore_tools.transfer.publishing import as_it_was_routed, publish_lines, to_its_queue

_DEFAULT_URL = "amqp://guest:guest@127.0.0.1:5672/%2F"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `publish`."""
    parser.description = (
        "Publish the messages in a file of `amqpstore export` to a broker, in "
        "order and with confirms. Each message goes directly to the queue it was in, or "
        "with --routed "
        "to its original exchange."
    )
    parser.add_argument(
        "file", metavar="FILE", help="file of exported messages; - is standard input"
    )
    parser.add_argument(
        "--url",
        default=_DEFAULT_URL,
        help="URL of the broker (default: %(default)s)",
        metavar="URL",
    )
    parser.add_argument(
        "--vhost",
        metavar="NAME",
        help="publish the messages of this virtual host (default: the one in URL)",
    )
    parser.add_argument(
        "--routed",
        action="store_true",
        help="publish to the original exchange, with the original routing key",
    )
    parser.add_argument(
        "--skip",
        type=int,
        default=0,
        metavar="N",
        help="skip the first N messages, which were confirmed in an earlier run",
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Publish. Returns the exit code."""
    return run_tool("publish", lambda: _publish(arguments), as_json=arguments.json)


def _publish(arguments: argparse.Namespace) -> None:
    started = time.monotonic()
    try:
        address = Address.parse(arguments.url)
    except CommandLineError as error:
        raise UsageError(str(error)) from None
    vhost = address.vhost if arguments.vhost is None else arguments.vhost
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
    say(
        f"{counted(result['confirmed'], 'message')} published to {result['url']} and "
        f"confirmed, in {result['seconds']:.1f} s"
    )
    if left_out := result["of_other_virtual_hosts"]:
        say(f"  skipped, because they belong to other virtual hosts: {left_out:,}")
