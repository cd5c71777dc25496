"""The `amqpstore` command: one module a verb."""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version

from tools import serve
from tools.bench import command as bench
from tools.check import command as check
from tools.drill import command as drill
from tools.inspect import command as inspect
from tools.repair import command as repair

_VERBS = {
    "serve": (serve, "run the broker"),
    "check": (check, "look for damage in a data directory, without changing it"),
    "repair": (repair, "mend a data directory by a plan, which can be undone"),
    "bench": (bench, "measure a broker, ours or another"),
    "drill": (drill, "break a store that may be broken, and see what survives"),
    "inspect": (inspect, "show what is in a store"),
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
