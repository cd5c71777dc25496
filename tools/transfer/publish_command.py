"""`amqpstore publish`: messages from a file to a broker that runs."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from tools.bench.connection import Address
from tools.bench.errors import UsageError as AddressError
from tools.ending import UsageError, add_json, end
from tools.offline.exits import OK
from tools.offline.terminal import counted
from tools.progress import progress_bar
from tools.transfer.input import lines_of, opened
from tools.transfer.publishing import as_it_was_routed, publish_lines, to_its_queue

_DEFAULT_URL = "amqp://guest:guest@127.0.0.1:5672/%2F"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `publish`."""
    parser.description = (
        "Publish what `amqpstore export` wrote to a broker, in order, and wait for each confirm. A "
        "message goes into the queue that it was in, or with --routed the way that it came."
    )
    parser.add_argument("file", metavar="FILE", help="what was exported; - is standard input")
    parser.add_argument(
        "--url", default=_DEFAULT_URL, help="of the broker (default: %(default)s)", metavar="URL"
    )
    parser.add_argument(
        "--vhost",
        metavar="NAME",
        help="messages that were in this virtual host (default: the one of URL)",
    )
    parser.add_argument(
        "--routed",
        action="store_true",
        help="to the exchange and with the routing key that it was published with",
    )
    parser.add_argument(
        "--skip",
        type=int,
        default=0,
        metavar="N",
        help="leave out the first N messages: they were confirmed before",
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Publish. Returns the exit code."""

    def work() -> dict[str, Any]:
        started = time.monotonic()
        try:
            address = Address.parse(arguments.url)
        except AddressError as error:
            raise UsageError(str(error)) from None
        vhost = address.vhost if arguments.vhost is None else arguments.vhost
        route = as_it_was_routed if arguments.routed else to_its_queue
        with opened(arguments.file) as (file, size), progress_bar() as show:
            lines = lines_of(arguments.file, file, size, show, "publishing")
            published = publish_lines(address, lines, route=route, vhost=vhost, skip=arguments.skip)
        return {
            "url": str(address),
            "messages": published.messages,
            "confirmed": published.confirmed,
            "of_other_virtual_hosts": published.left_out,
            "seconds": round(time.monotonic() - started, 3),
        }

    def show_result(result: dict[str, Any]) -> int:
        if not arguments.json:
            sys.stdout.write(
                f"{counted(result['confirmed'], 'message')} published to {result['url']} and "
                f"confirmed, in {result['seconds']:.1f} s\n"
            )
            if left_out := result["of_other_virtual_hosts"]:
                sys.stdout.write(f"  left out, as of other virtual hosts: {left_out:,}\n")
        return OK

    return end("publish", arguments, work, show_result)
