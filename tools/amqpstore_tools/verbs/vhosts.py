"""`amqpstore vhosts`: list, add and delete virtual hosts."""

from __future__ import annotations

import argparse

from amqpstore_tools.administration.options import (
    add_action,
    add_actions,
    add_limits,
    ask,
    object_in,
    run_action,
    show_rows,
    tell,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `vhosts`."""
    actions = add_actions(parser)
    add_action(
        actions, "list", "list the virtual hosts, with the number of queues and exchanges", _list
    )
    action = add_action(actions, "add", "create a virtual host", _add)
    action.add_argument("name", metavar="VHOST")
    action.add_argument(
        "--owner", metavar="USER", default="", help="a user who gets all permissions in it"
    )
    action = add_action(
        actions,
        "set-limits",
        "set the limits of a virtual host, in place of those it has",
        _set_limits,
    )
    action.add_argument("name", metavar="VHOST")
    add_limits(action, "max-connections, max-queues, max-exchanges and max-bindings")
    action = add_action(
        actions,
        "trace",
        "copy all messages of a virtual host to its exchange amq.rabbitmq.trace, or stop that",
        _trace,
    )
    action.add_argument("name", metavar="VHOST")
    action.add_argument("state", choices=("on", "off"), help="a start of the broker turns it off")
    action = add_action(
        actions,
        "delete",
        "delete a virtual host with all its queues and messages, and close its connections",
        _delete,
    )
    action.add_argument("name", metavar="VHOST")


def run(arguments: argparse.Namespace) -> int:
    """Run the action. Returns the exit code."""
    return run_action(arguments)


def _list(arguments: argparse.Namespace) -> None:
    rows = ask(arguments)
    if not arguments.json:
        for row in rows:
            row["name"] += "  (being deleted)" if row["deleted"] else ""
            row["name"] += "  (traced)" if row["tracing"] else ""
    show_rows(arguments, "vhosts", rows, "name", "queues", "exchanges", "limits")


def _add(arguments: argparse.Namespace) -> None:
    ask(arguments, name=arguments.name, owner=arguments.owner)
    tell(arguments, f"vhost {arguments.name} added")


def _delete(arguments: argparse.Namespace) -> None:
    ask(arguments, name=arguments.name)
    tell(arguments, f"vhost {arguments.name} deleted")


def _set_limits(arguments: argparse.Namespace) -> None:
    ask(arguments, name=arguments.name, limits=object_in("LIMITS", arguments.limits))
    tell(arguments, f"limits of vhost {arguments.name} set")


def _trace(arguments: argparse.Namespace) -> None:
    ask(arguments, name=arguments.name, on=arguments.state == "on")
    tell(arguments, f"tracing of vhost {arguments.name} is {arguments.state}")
