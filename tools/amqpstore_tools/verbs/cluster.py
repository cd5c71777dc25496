"""`amqpstore cluster`: found a group of replicas, add and remove members, and choose who leads."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from amqpstore_server.config.config import Config
from amqpstore_server.config.keys import ConfigError
from amqpstore_server.config.options import add_options, sources_of
from amqpstore_tools.cluster import founding, joining, leadership, status
from amqpstore_tools.cluster.group import GroupKeys, open_group
from amqpstore_tools.cluster.naming import member_named, named
from amqpstore_tools.offline.exits import (
    NEEDS_CARE,
    OK,
    ToolError,
    UsageError,
    add_json,
    run_tool,
)
from amqpstore_tools.offline.json_output import write_json
from amqpstore_tools.offline.terminal import say

_MEMBER = "its id, the beginning of it, or its address (HOST:PORT)"
_FIRST_REPLICAS = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `cluster`."""
    parser.description = (
        "Found a group of replicas, add and remove members, and choose who leads. The cluster and "
        "its etcd are those of the configuration that `amqpstore serve` would use with the same "
        "options."
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    action = _add(
        actions, "init", "make the store in the data directory a group of one member", _init
    )
    action.add_argument(
        "--from-leader",
        action="store_true",
        help="the keys in etcd are lost: write them anew from this stopped member, the last leader",
    )
    _add_yes(action, "with --from-leader: ")
    action = _add(actions, "join", "make an empty data directory that of a new member", _join)
    action.add_argument(
        "--observer", action="store_true", help="keep a copy, and never lead or be waited for"
    )
    _add(actions, "status", "show who leads, who is in sync, and what is wrong", _status)
    action = _add(actions, "set", "change a setting of the group", _set)
    action.add_argument(
        "key",
        metavar="KEY",
        choices=["min_in_sync"],
        help="min_in_sync: with fewer replicas in sync, the leader included, nothing is confirmed",
    )
    action.add_argument("value", metavar="NUMBER", type=int)
    action = _add(actions, "remove", "remove a member that is gone for good", _remove)
    action.add_argument("member", metavar="MEMBER", help=_MEMBER)
    action = _add(
        actions, "switchover", "have another member lead, without losing anything", _switch
    )
    action.add_argument(
        "--to", metavar="MEMBER", help=f"{_MEMBER} (default: the oldest one in sync that runs)"
    )
    action = _add(
        actions,
        "force-leader",
        "have a member lead that is not in sync, when all that are are gone for good",
        _force,
    )
    action.add_argument("member", metavar="MEMBER", help=_MEMBER)
    _add_yes(action)
    _add(actions, "leave", "make the directory of a stopped member that of a single node", _leave)


def _add(
    actions: Any,
    name: str,
    summary: str,
    act: Callable[[argparse.Namespace, Config, GroupKeys], Any],
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=summary, description=summary)
    add_options(parser)
    one = "the group needs to be looked after" if name == "status" else ""
    add_json(parser, one or "what was named does not exist")
    parser.set_defaults(act=act)
    return parser


def _add_yes(parser: argparse.ArgumentParser, when: str = "") -> None:
    parser.add_argument("--yes", action="store_true", help=f"{when}do it without asking")


def run(arguments: argparse.Namespace) -> int:
    """Run the action. Returns the exit code."""

    def act() -> int | None:
        try:
            config = sources_of(arguments).load().config
        except ConfigError as error:
            raise UsageError(str(error)) from None
        with open_group(config) as group:
            found: int | None = arguments.act(arguments, config, group)
        return found

    return run_tool(f"cluster {arguments.action}", act, as_json=arguments.json)


def _init(arguments: argparse.Namespace, config: Config, group: GroupKeys) -> None:
    if arguments.from_leader:
        _confirm(
            arguments,
            f"{founding.described_store(config.data)}\n"
            "Its store becomes the group's: what was confirmed and is not in it is lost for ever. "
            "Do this on the last leader, with all members stopped, and only if the keys in etcd "
            "cannot be had back.",
        )
        own = founding.found_again(group, config.data)
        said = "the others join it again, each with `amqpstore cluster join`"
    else:
        own = founding.found(group, config.data)
        said = "start it with `amqpstore serve`, and have others join"
    _tell(
        arguments,
        f"group founded at {group.where}, with member {own.member} in {config.data}: {said}",
        member=own.member,
    )


def _join(arguments: argparse.Namespace, config: Config, group: GroupKeys) -> None:
    joined = joining.join(group, config.data, is_observer=arguments.observer)
    text = f"member {joined.member} has joined with {config.data}: start it with `amqpstore serve`"
    if joined.same_address:
        text += (
            f"\nmember {joined.same_address} has the same address: if this one takes its place, "
            f"run `amqpstore cluster remove {joined.same_address}`"
        )
    view = group.view()
    if len(view.voters) > _FIRST_REPLICAS and joined.min_in_sync == 1:
        text += (
            "\na leader that is alone confirms from its own disk: run `amqpstore cluster set "
            "min_in_sync 2` once two replicas are in sync"
        )
    _tell(arguments, text, member=joined.member, min_in_sync=joined.min_in_sync)


def _status(arguments: argparse.Namespace, _config: Config, group: GroupKeys) -> int:
    view = group.founded()
    if arguments.json:
        write_json(status.facts(group.settings, view))
    else:
        status.show(group.settings, view)
    return NEEDS_CARE if any(status.problems(view)) else OK


def _set(arguments: argparse.Namespace, _config: Config, group: GroupKeys) -> None:
    view = joining.set_min_in_sync(group, arguments.value)
    text = f"{arguments.key} is {arguments.value}"
    if len(view.in_sync) < arguments.value:
        text += f": publishers are blocked until so many are in sync, and {len(view.in_sync)} are"
    _tell(arguments, text)


def _remove(arguments: argparse.Namespace, _config: Config, group: GroupKeys) -> None:
    view = group.founded()
    member = member_named(view, arguments.member)
    joining.remove(group, member)
    _tell(
        arguments,
        f"member {named(view, member)} is removed; its directory is of no use to the group",
        member=member,
    )


def _switch(arguments: argparse.Namespace, _config: Config, group: GroupKeys) -> None:
    view = group.founded()
    to = member_named(view, arguments.to) if arguments.to else ""
    _tell_leader(arguments, group, leadership.switch_over(group, to))


def _force(arguments: argparse.Namespace, _config: Config, group: GroupKeys) -> None:
    view = group.founded()
    member = member_named(view, arguments.member)
    _confirm(arguments, leadership.what_is_lost(group, view, member))
    _tell_leader(arguments, group, leadership.force_leader(group, view, member))


def _leave(arguments: argparse.Namespace, config: Config, group: GroupKeys) -> None:
    member = joining.leave(group, config.data)
    _tell(
        arguments,
        f"member {member} has left: {config.data} is that of a single node, with the store as it "
        "was when it stopped; what clients do there is not in the group",
        member=member,
    )


def _confirm(arguments: argparse.Namespace, text: str) -> None:
    """Say what is about to happen, and go on if a person agrees. Raises: ToolError, UsageError."""
    say(text, sys.stderr)
    if arguments.yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("no terminal to ask on: use --yes once you have read this")
    sys.stderr.write("Type yes to go on: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip() != "yes":
        raise ToolError("nothing was changed")


def _tell(arguments: argparse.Namespace, text: str, **facts: Any) -> None:
    write_json({"done": text, **facts}) if arguments.json else say(text)


def _tell_leader(
    arguments: argparse.Namespace, group: GroupKeys, switched: leadership.Switched
) -> None:
    _tell(
        arguments,
        f"member {named(group.view(), switched.member)} leads term {switched.term}, after "
        f"{switched.seconds:.1f} s",
        member=switched.member,
        term=switched.term,
        seconds=round(switched.seconds, 3),
    )
