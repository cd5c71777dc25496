"""`amqpstore permissions`: what users may do in virtual hosts."""

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
from amqpstore_tools.offline.json_output import write_json
from amqpstore_tools.offline.terminal import say

_SYNTAX = "an RE2 expression, found anywhere in a name; '' matches nothing"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `permissions`."""
    actions = add_actions(parser)
    action = add_action(actions, "list", "list permissions, and those for routing keys", _list)
    action.add_argument(
        "--user", metavar="USER", default="", help="only of this user (default: all)"
    )
    add_vhost(action, None)
    action = add_action(actions, "set", "set the permissions of a user in a virtual host", _set)
    action.add_argument("user", metavar="USER")
    for kind, meaning in (
        ("configure", "queues and exchanges that may be declared and deleted"),
        ("write", "exchanges to publish to, and queues to bind"),
        ("read", "queues to consume from, and exchanges to bind to"),
    ):
        action.add_argument(
            f"--{kind}", metavar="PATTERN", required=True, help=f"{meaning}: {_SYNTAX}"
        )
    add_vhost(action)
    action = add_action(
        actions, "clear", "take all permissions in a virtual host from a user", _clear
    )
    action.add_argument("user", metavar="USER")
    add_vhost(action)
    action = add_action(
        actions, "set-topic", "restrict the routing keys of a user at an exchange", _set_topic
    )
    action.add_argument("user", metavar="USER")
    action.add_argument("exchange", metavar="EXCHANGE")
    for kind, meaning in (("write", "publish with"), ("read", "bind with")):
        action.add_argument(
            f"--{kind}",
            metavar="PATTERN",
            required=True,
            help=f"routing keys to {meaning}; {{username}} and {{vhost}} stand for the client's",
        )
    add_vhost(action)
    action = add_action(actions, "clear-topic", "remove such a restriction", _clear_topic)
    action.add_argument("user", metavar="USER")
    action.add_argument("exchange", metavar="EXCHANGE", nargs="?", help="default: of all exchanges")
    add_vhost(action)


def run(arguments: argparse.Namespace) -> int:
    """Run the action. Returns the exit code."""
    return run_action(arguments)


def _list(arguments: argparse.Namespace) -> None:
    found = ask(arguments, user=arguments.user, vhost=arguments.vhost or "")
    if arguments.json:
        write_json(found)
        return
    columns = ("user", "vhost", "configure", "write", "read")
    show_rows(arguments, "permissions", found["permissions"], *columns)
    if found["topic_permissions"]:
        say("")
        columns = ("user", "vhost", "exchange", "write", "read")
        show_rows(arguments, "topic_permissions", found["topic_permissions"], *columns)


def _named(arguments: argparse.Namespace, *names: str) -> dict[str, str]:
    return {name: getattr(arguments, name) for name in names}


def _set(arguments: argparse.Namespace) -> None:
    ask(arguments, permission=_named(arguments, "user", "vhost", "configure", "write", "read"))
    tell(arguments, f"permissions of {arguments.user} in vhost {arguments.vhost} set")


def _clear(arguments: argparse.Namespace) -> None:
    ask(arguments, user=arguments.user, vhost=arguments.vhost)
    tell(arguments, f"permissions of {arguments.user} in vhost {arguments.vhost} cleared")


def _set_topic(arguments: argparse.Namespace) -> None:
    ask(arguments, permission=_named(arguments, "user", "vhost", "exchange", "write", "read"))
    tell(arguments, f"routing keys of {arguments.user} at exchange {arguments.exchange} set")


def _clear_topic(arguments: argparse.Namespace) -> None:
    ask(arguments, user=arguments.user, vhost=arguments.vhost, exchange=arguments.exchange)
    where = arguments.exchange or "all exchanges"
    tell(arguments, f"routing keys of {arguments.user} at {where} are not restricted any more")
