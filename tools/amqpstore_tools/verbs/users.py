"""`amqpstore users`: list, add, change and delete users."""

from __future__ import annotations

import argparse
from typing import Any

from amqpstore_tools.administration.client import asked
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
from amqpstore_tools.administration.passwords import read_password
from amqpstore_tools.offline.exits import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `users`."""
    actions = add_actions(parser)
    add_action(actions, "list", "list the users, with their tags", _list)
    action = add_action(actions, "add", "add a user, who has no permissions yet", _add)
    action.add_argument("name", metavar="USER")
    _add_password(action, "ask for the password on the terminal")
    _add_tags(action)
    action = add_action(
        actions,
        "change",
        "change the password or the tags of a user; without options, ask for a new password",
        _change,
    )
    action.add_argument("name", metavar="USER")
    _add_password(action, "the password stays if only tags are given")
    _add_tags(action)
    action.add_argument("--no-tags", action="store_true", help="remove all tags")
    action = add_action(
        actions, "set-limits", "set the limits of a user, in place of those it has", _set_limits
    )
    action.add_argument("name", metavar="USER")
    add_limits(action, "max-connections and max-channels")
    action = add_action(
        actions, "delete", "delete a user with its permissions, and close its connections", _delete
    )
    action.add_argument("name", metavar="USER")


def _add_password(parser: argparse.ArgumentParser, default: str) -> None:
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--password-file",
        metavar="FILE",
        help=f"read the password from the first line of a file; - is standard input "
        f"(default: {default})",
    )
    how.add_argument(
        "--no-password", action="store_true", help="no login with a password is possible"
    )


def _add_tags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tag",
        metavar="TAG",
        action="append",
        help="administrator, monitoring, policymaker, management or impersonator; may be repeated",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the action. Returns the exit code."""
    return run_action(arguments)


def _list(arguments: argparse.Namespace) -> None:
    show_rows(arguments, "users", ask(arguments), "name", "tags", "password", "limits")


def _add(arguments: argparse.Namespace) -> None:
    password = None if arguments.no_password else read_password(arguments.password_file)
    _set(arguments, password, arguments.tag or [], is_new=True)
    tell(arguments, f"user {arguments.name} added")


def _change(arguments: argparse.Namespace) -> None:
    if arguments.no_tags and arguments.tag:
        raise UsageError("--tag and --no-tags exclude each other")
    tags = [] if arguments.no_tags else arguments.tag
    keeps = tags is not None and not arguments.password_file and not arguments.no_password
    password = None
    if not keeps and not arguments.no_password:
        password = read_password(arguments.password_file)
    _set(arguments, password, tags, has_password=not arguments.no_password)
    tell(arguments, f"user {arguments.name} changed")


def _set(
    arguments: argparse.Namespace, password: str | None, tags: list[str] | None, **more: Any
) -> None:
    request = {"do": "users set", "name": arguments.name, "password": password, "tags": tags}
    asked(arguments.data, {**request, **more})


def _delete(arguments: argparse.Namespace) -> None:
    ask(arguments, name=arguments.name)
    tell(arguments, f"user {arguments.name} deleted")


def _set_limits(arguments: argparse.Namespace) -> None:
    ask(arguments, name=arguments.name, limits=object_in("LIMITS", arguments.limits))
    tell(arguments, f"limits of user {arguments.name} set")
