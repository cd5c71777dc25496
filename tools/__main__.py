"""The `amqpstore` command: one module a verb."""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version

from tools import compact, serve, upgrade
from tools.bench import command as bench
from tools.check import command as check
from tools.copying import copy_command, restore_command
from tools.drill import command as drill
from tools.inspect import command as inspect
from tools.jobs.archive import archive_command, as_of_command, replay_command
from tools.jobs.report import command as report
from tools.repair import command as repair
from tools.stats import command as stats
from tools.transfer import export_command, import_command, publish_command

_VERBS = {
    "serve": (serve, "run the broker"),
    "check": (check, "look for damage in a store"),
    "repair": (repair, "mend a store by a plan, which can be undone"),
    "inspect": (inspect, "show what is in a store, down to one record"),
    "stats": (stats, "show what takes the room in a store"),
    "copy": (copy_command, "copy a store, of a running broker too, and verify the copy"),
    "restore": (restore_command, "put a copy in the place of a store"),
    "export": (export_command, "write the messages of queues to a file"),
    "import": (import_command, "put exported messages into a stopped store"),
    "publish": (publish_command, "publish exported messages to a broker"),
    "compact": (compact, "give back the room that a stopped store does not need"),
    "upgrade": (upgrade, "say which format a store has, and bring it to this version's"),
    "archive": (archive_command, "write the log of a store to Parquet files, on Spark"),
    "replay": (replay_command, "publish a time of an archive again"),
    "as-of": (as_of_command, "say what a queue held at a time, by an archive"),
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
