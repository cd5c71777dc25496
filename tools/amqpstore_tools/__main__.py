"""The `amqpstore` command: one module per verb."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from importlib.metadata import version

_VERBS = {
    "serve": ("serve", "run the broker"),
    "check": ("check", "look for damage in a store"),
    "repair": ("repair", "mend a store by a plan, which can be undone"),
    "inspect": ("inspect", "show what is in a store, down to one record"),
    "stats": ("stats", "show what takes the room in a store"),
    "copy": ("copy", "copy a store, of a running broker too, and verify the copy"),
    "restore": ("restore", "put a copy in the place of a store"),
    "export": ("export", "write the messages of queues to a file"),
    "import": ("import_", "put exported messages into a stopped store"),
    "publish": ("publish", "publish exported messages to a broker"),
    "compact": ("compact", "give back the room that a stopped store does not need"),
    "upgrade": ("upgrade", "say which format a store has, and bring it to this version's"),
    "archive": ("archive", "write the log of a store to Parquet files, on Spark"),
    "replay": ("replay", "publish a time of an archive again"),
    "as-of": ("as_of", "say what a queue held at a time, by an archive"),
    "report": ("report", "draw what is in a store, as a page of HTML, on Spark"),
    "drill": ("drill", "break a store that may be broken, and see what survives"),
    "bench": ("bench", "measure a broker, ours or another"),
}
"""By name, the module in `verbs` and a one-line description."""


def main() -> int:
    """Run the verb that the command line names. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="amqpstore", description="A durable AMQP 0-9-1 message broker."
    )
    parser.add_argument("--version", action="version", version=version("amqpstore"))
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    parsers = {
        name: verbs.add_parser(name, help=summary, description=summary)
        for name, (_, summary) in _VERBS.items()
    }
    verb = next(iter(sys.argv[1:]), "")
    if verb not in _VERBS:  # help, the version, or an error
        verb = parser.parse_args().verb
    # Loading the modules of all verbs takes longer than most verbs run.
    module = import_module(f"amqpstore_tools.verbs.{_VERBS[verb][0]}")
    module.add_arguments(parsers[verb])
    return int(module.run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
