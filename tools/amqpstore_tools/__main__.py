"""The `amqpstore` command: one module per verb."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Any

_VERBS = {
    "serve": ("serve", "run the broker"),
    "config": ("config", "check a configuration, and show where its values come from"),
    "cluster": ("cluster", "found a group of replicas, and choose its members and who leads"),
    "users": ("users", "list, add, change and delete users"),
    "vhosts": ("vhosts", "list, add and delete virtual hosts"),
    "connections": ("connections", "list the connections of clients, and close them"),
    "permissions": ("permissions", "say what users may do in virtual hosts"),
    "policies": ("policies", "set and clear policies and operator policies"),
    "exchanges": ("exchanges", "explain where a message would go, and why"),
    "definitions": ("definitions", "export and import definitions, in RabbitMQ's JSON"),
    "messages": ("messages", "browse and handle the messages of a queue, undo its purge"),
    "check": ("check", "look for damage in a store"),
    "repair": ("repair", "repair a damaged store by a plan, which can be undone"),
    "inspect": ("inspect", "show the content of a store, down to one record"),
    "stats": ("stats", "show what takes up the space in a store"),
    "copy": ("copy", "copy a store, even of a running broker, and verify the copy"),
    "restore": ("restore", "replace a store by a copy"),
    "export": ("export", "write the messages of queues to a file"),
    "import": ("import_", "add exported messages to a stopped store"),
    "publish": ("publish", "publish exported messages to a broker"),
    "compact": ("compact", "free the disk space that a stopped store does not need"),
    "upgrade": ("upgrade", "convert a store to the format of this version"),
    "archive": ("archive", "add the log of a store to an archive of Parquet files, on Spark"),
    "replay": ("replay", "publish messages from an archive again, on Spark"),
    "as-of": ("as_of", "show what a queue held at a point in time, from an archive, on Spark"),
    "report": ("report", "write an HTML page with charts of a store, on Spark"),
    "drill": ("drill", "prove durability: break a throw-away store, and check what survives"),
    "bench": ("bench", "measure a broker, amqpstore or another"),
}
"""By name, the module in `verbs` and a one-line description."""


class _Parser(argparse.ArgumentParser):
    """A parser, also of each verb and action, whose options may come before, between and behind its
    arguments.

    By itself argparse gives an argument that may be omitted its default as soon as it has those
    before it, and takes one behind an option that follows for an error.
    """

    _is_intermixed = False

    def __init__(self, **options: Any) -> None:
        # "--password" would be taken for "--password-file".
        super().__init__(allow_abbrev=False, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        has_optional = any(one.nargs in ("?", "*") for one in self._get_positional_actions())
        # It would lose a "--", which says what is not an option.
        if self._is_intermixed or not has_optional or "--" in (args or ()):
            return super().parse_known_args(args, namespace)
        self._is_intermixed = True  # It calls this method for each of the two.
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_intermixed = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the verb that the arguments name, those of the process by default. Returns the exit
    code."""
    _open_missing_streams()
    if arguments is None:
        arguments = sys.argv[1:]
    parser = _Parser(prog="amqpstore", description="A durable AMQP 0-9-1 message broker.")
    parser.add_argument("--version", action="version", version=version("amqpstore"))
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    parsers = {
        name: verbs.add_parser(name, help=summary, description=summary)
        for name, (_, summary) in _VERBS.items()
    }
    verb = next(iter(arguments), "")
    if verb not in _VERBS:  # help, the version, or an error
        verb = parser.parse_args(arguments).verb
    # Loading the modules of all verbs takes longer than most verbs run.
    module = import_module(f"amqpstore_tools.verbs.{_VERBS[verb][0]}")
    module.add_arguments(parsers[verb])
    return int(module.run(parser.parse_args(arguments)))


def _open_missing_streams() -> None:
    """Open /dev/null in the place of the standard streams that the process was started without.

    Else a file of the store would get the descriptor of stderr, and with it whatever a library in C
    writes there.
    """
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115


if __name__ == "__main__":
    sys.exit(main())
