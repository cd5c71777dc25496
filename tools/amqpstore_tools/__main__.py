"""The `amqpstore` command: one module a verb."""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version

from amqpstore_tools.verbs import (
    archive,
    as_of,
    bench,
    check,
    compact,
    copy,
    drill,
    export,
    import_,
    inspect,
    publish,
    repair,
    replay,
    report,
    restore,
    serve,
    stats,
    upgrade,
)

_VERBS = {
    "serve": (serve, "run the broker"),
    "check": (check, "look for damage in a store"),
    "repair": (repair, "mend a store by a plan, which can be undone"),
    "inspect": (inspect, "show what is in a store, down to one record"),
    "stats": (stats, "show what takes the room in a store"),
    "copy": (copy, "copy a store, of a running broker too, and verify the copy"),
    "restore": (restore, "put a copy in the place of a store"),
    "export": (export, "write the messages of queues to a file"),
    "import": (import_, "put exported messages into a stopped store"),
    "publish": (publish, "publish exported messages to a broker"),
    "compact": (compact, "give back the room that a stopped store does not need"),
    "upgrade": (upgrade, "say which format a store has, and bring it to this version's"),
    "archive": (archive, "write the log of a store to Parquet files, on Spark"),
    "replay": (replay, "publish a time of an archive again"),
    "as-of": (as_of, "say what a queue held at a time, by an archive"),
    "report": (report, "draw what is in a store, as a page of HTML, on Spark"),
    "drill": (drill, "break a store that may be broken, and see what survives"),
    "bench": (bench, "measure a broker, ours or another"),
}


def main() -> int:
    """Run the verb that the command line names. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="amqpstore", description="A durable AMQP 0-9-1 message broker."
    )
    parser.add_argument("--version", action="version", version=version("amqpstore"))
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, (module, summary) in _VERBS.items():
        module.add_arguments(verbs.add_parser(name, help=summary, description=summary))
    arguments = parser.parse_args()
    module, _ = _VERBS[arguments.verb]
    return int(module.run(arguments))


if __name__ == "__main__":
    sys.exit(main())
