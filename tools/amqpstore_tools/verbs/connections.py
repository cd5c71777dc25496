"""`amqpstore connections`: list the connections of clients, and close them."""

from __future__ import annotations

import argparse

from amqpstore_tools.administration.options import (
    add_action,
    add_actions,
    add_vhost,
    ask,
    run_action,
    show_rows,
    tell,
)
from amqpstore_tools.offline.exits import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `connections`."""
    actions = add_actions(parser)
    one = add_action(actions, "list", "list the open connections", _list)
    _add_user(one)
    add_vhost(one, default=None)
    one = add_action(
        actions,
        "close",
        "close a connection, or all of a user or to a virtual host; clients may connect again",
        _close,
    )
    one.add_argument(
        "name", metavar="NAME", nargs="?", default="", help="its name, as `list` shows it"
    )
    _add_user(one)
    add_vhost(one, default=None)
    one.add_argument("--reason", metavar="TEXT", help="what clients are told")


def _add_user(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--user", metavar="USER", help="only those of a user")


def run(arguments: argparse.Namespace) -> int:
    """Run the action. Returns the exit code."""
    return run_action(arguments)


def _chosen(arguments: argparse.Namespace) -> dict[str, str]:
    chosen = {"user": arguments.user, "vhost": arguments.vhost}
    return {name: value for name, value in chosen.items() if value is not None}


def _list(arguments: argparse.Namespace) -> None:
    rows = ask(arguments, **_chosen(arguments))
    columns = ("name", "user", "vhost", "state", "channels", "client")
    show_rows(arguments, "connections", rows, *columns)


def _close(arguments: argparse.Namespace) -> None:
    chosen = _chosen(arguments)
    if not (arguments.name or any(chosen.values())):
        raise UsageError("name a connection, or say --user or --vhost")
    more = {} if arguments.reason is None else {"reason": arguments.reason}
    closed = ask(arguments, name=arguments.name, **chosen, **more)["closed"]
    tell(arguments, f"{closed} connection{'s' if closed != 1 else ''} closed")
