"""The parts that the verbs for operators share: their options, and how they end."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from amqpstore_server.config.keys import ConfigError
from amqpstore_server.config.sources import ConfigSources
from amqpstore_tools.administration.client import asked
from amqpstore_tools.offline.exits import UsageError, add_json, run_tool
from amqpstore_tools.offline.json_output import write_json
from amqpstore_tools.offline.terminal import console, say, shown, table

DEFAULT_VHOST = "/"


def add_actions(parser: argparse.ArgumentParser) -> Any:
    """Return what the actions of a verb are added to with `add_action`."""
    return parser.add_subparsers(dest="action", metavar="ACTION", required=True)


def add_action(
    actions: Any, name: str, summary: str, act: Callable[[argparse.Namespace], int | None]
) -> argparse.ArgumentParser:
    """Add an action, with the options that all have. `act` carries it out."""
    parser: argparse.ArgumentParser = actions.add_parser(name, help=summary, description=summary)
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="data directory, of a running broker or a stopped one (default: that of the "
        "configuration, as `amqpstore config` shows it)",
    )
    add_json(parser, "what was named does not exist")
    parser.set_defaults(act=act)
    return parser


def add_vhost(parser: argparse.ArgumentParser, default: str | None = DEFAULT_VHOST) -> None:
    """Add the option for the virtual host."""
    said = "default: all" if default is None else f"default: {default}"
    parser.add_argument("--vhost", metavar="VHOST", default=default, help=f"virtual host ({said})")


def add_limits(parser: argparse.ArgumentParser, known: str) -> None:
    """Add the argument that has limits."""
    parser.add_argument(
        "limits",
        metavar="LIMITS",
        help=f"a JSON object, with {known}; a negative number is no limit, {{}} removes all",
    )


def object_in(name: str, text: str) -> dict[str, Any]:
    """Return the JSON object in an argument. Raises: UsageError."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{name} is not a JSON object")
    return found


def run_action(arguments: argparse.Namespace) -> int:
    """Run the action that the arguments name. Returns the exit code."""

    def act() -> int | None:
        if arguments.data is None:
            arguments.data = _configured_directory()
        code: int | None = arguments.act(arguments)
        return code

    return run_tool(f"{arguments.verb} {arguments.action}", act, as_json=arguments.json)


def _configured_directory() -> str:
    """Return the data directory of a broker that is started here without options."""
    try:
        return ConfigSources(environment=dict(os.environ)).load().config.data
    except ConfigError as error:
        raise UsageError(f"name the data directory with --data: {error}") from None


def ask(arguments: argparse.Namespace, **request: Any) -> Any:
    """Ask the broker for the action that the arguments name; returns its answer."""
    do = f"{arguments.verb} {arguments.action}"
    return asked(arguments.data, {"do": do, **request})


def tell(arguments: argparse.Namespace, text: str, notes: Sequence[str] = ()) -> None:
    """Print what was done, and notes about what was accepted but has no effect."""
    if arguments.json:
        write_json({"done": text, **({"notes": list(notes)} if notes else {})})
        return
    say(text)
    for note in notes:
        say(f"note: {note}", sys.stderr)


def show_rows(
    arguments: argparse.Namespace, name: str, rows: Sequence[dict[str, Any]], *columns: str
) -> None:
    """Show a list as a table, or as JSON."""
    if arguments.json:
        write_json({name: list(rows)})
        return
    if not rows:
        say(f"no {name.replace('_', ' ')}")
        return
    right = " ".join(column for column in columns if isinstance(rows[0][column], int))
    found = table(*columns, right=right, wrap=" ".join(columns))
    for row in rows:
        found.add_row(*[_cell(row[column]) for column in columns])
    console().print(found)


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return shown(", ".join(f"{name} {limit}" for name, limit in value.items()) or "-")
    if isinstance(value, list):
        return shown(", ".join(map(str, value)) or "-")
    if value == "":
        return "''"
    return shown(value)
