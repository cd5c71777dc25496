"""`amqpstore policies`: settings for all queues and exchanges whose names match."""

from __future__ import annotations

import argparse
import json

from amqpstore_tools.administration.options import (
    add_action,
    add_actions,
    add_vhost,
    ask,
    object_in,
    run_action,
    show_rows,
    tell,
)

_APPLY_TO = ("all", "queues", "classic_queues", "quorum_queues", "exchanges")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `policies`."""
    actions = add_actions(parser)
    action = add_action(actions, "list", "list the policies", _list)
    _add_operator(action)
    add_vhost(action, None)
    action = add_action(actions, "set", "add a policy, or change it", _set)
    action.add_argument("name", metavar="NAME")
    action.add_argument(
        "pattern", metavar="PATTERN", help="an RE2 expression, found anywhere in a name"
    )
    action.add_argument(
        "definition", metavar="DEFINITION", help="""a JSON object, such as '{"max-length": 1000}'"""
    )
    action.add_argument("--apply-to", choices=_APPLY_TO, default="all", help="default: %(default)s")
    action.add_argument(
        "--priority", type=int, default=0, help="the highest applies (default: %(default)s)"
    )
    _add_operator(action)
    add_vhost(action)
    action = add_action(actions, "clear", "remove a policy", _clear)
    action.add_argument("name", metavar="NAME")
    _add_operator(action)
    add_vhost(action)


def _add_operator(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--operator",
        action="store_true",
        help="operator policies, which limit what policies and clients say",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the action. Returns the exit code."""
    return run_action(arguments)


def _list(arguments: argparse.Namespace) -> None:
    rows = ask(arguments, vhost=arguments.vhost or "", operator=arguments.operator)
    if not arguments.json:
        for row in rows:
            row["definition"] = json.dumps(row["definition"], ensure_ascii=False)
    columns = ("vhost", "name", "pattern", "apply-to", "priority", "definition")
    show_rows(arguments, "policies", rows, *columns)


def _set(arguments: argparse.Namespace) -> None:
    definition = object_in("DEFINITION", arguments.definition)
    policy = {
        "vhost": arguments.vhost,
        "name": arguments.name,
        "pattern": arguments.pattern,
        "definition": definition,
        "apply-to": arguments.apply_to,
        "priority": arguments.priority,
    }
    answer = ask(arguments, policy=policy, operator=arguments.operator)
    # A broker that is older than this command answers with nothing.
    notes: list[str] = (answer or {}).get("notes", [])
    tell(arguments, f"policy {arguments.name} in vhost {arguments.vhost} set", notes)


def _clear(arguments: argparse.Namespace) -> None:
    ask(arguments, vhost=arguments.vhost, name=arguments.name, operator=arguments.operator)
    tell(arguments, f"policy {arguments.name} in vhost {arguments.vhost} removed")
