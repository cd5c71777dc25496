"""The verbs of the `amqpstore` command: one module each, named after it.

- `serve`, `bench`, `drill`: run, measure and stress the broker or the engine; `config`: the
  configuration that `serve` uses.
- `users`, `vhosts`, `permissions`, `policies`, `definitions`: what operators define, on a running
  broker or a stopped one; `exchanges`: where a message would go there; `messages`: the messages of
  a queue; `connections`: those of clients.
- `cluster`: a group of replicas, its members and who leads.
- `inspect`, `check`, `repair`, `compact`, `upgrade`: inspect a data directory, and
  maintain it.
- `copy`, `restore`, `export`, `import_`, `publish`: copies of stores and of messages.
- `archive`, `replay`, `as_of`, `report`: jobs on Spark.
"""

from __future__ import annotations

import argparse
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


def run(arguments: Sequence[str]) -> int:
    """Run the verb that the arguments name. Returns the exit code."""
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
