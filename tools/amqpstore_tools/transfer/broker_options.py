"""The options of commands that publish to a broker, and what they print of it."""

from __future__ import annotations

import argparse
from typing import Any

from amqpstore_tools.client.connection import Address
from amqpstore_tools.client.errors import CommandLineError
from amqpstore_tools.offline.exits import UsageError
from amqpstore_tools.offline.terminal import counted, say

_DEFAULT_URL = "amqp://guest:guest@127.0.0.1:5672/%2F"


def add_url(parser: argparse.ArgumentParser, vhost: str) -> None:
    """Add --url and --vhost. Args: vhost, what the latter is for."""
    parser.add_argument(
        "--url",
        default=_DEFAULT_URL,
        help="URL of the broker (default: %(default)s)",
        metavar="URL",
    )
    parser.add_argument("--vhost", metavar="NAME", help=f"{vhost} (default: the one in URL)")


def add_skip(parser: argparse.ArgumentParser) -> None:
    """Add --skip."""
    parser.add_argument(
        "--skip",
        type=int,
        default=0,
        metavar="N",
        help="skip the first N messages, which were confirmed in an earlier run",
    )


def address_and_vhost(arguments: argparse.Namespace) -> tuple[Address, str]:
    """Return what the options of `add_url` name. Raises: UsageError."""
    try:
        address = Address.parse(arguments.url)
    except CommandLineError as error:
        raise UsageError(str(error)) from None
    return address, address.vhost if arguments.vhost is None else arguments.vhost


def print_confirmed(result: dict[str, Any]) -> None:
    """Print how many messages were published, and how long it took."""
    say(
        f"{counted(result['confirmed'], 'message')} published to {result['url']} and "
        f"confirmed, in {result['seconds']:.1f} s"
    )
