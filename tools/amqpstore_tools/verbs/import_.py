"""`amqpstore import`: messages from a file into a store that no broker has open."""

from __future__ import annotations

import argparse
import time
from typing import Any

from amqpstore_tools.offline.exits import add_json, run_tool
from amqpstore_tools.offline.json_output import write_json
from amqpstore_tools.offline.progress import progress_bar
from amqpstore_tools.offline.terminal import counted, say
from amqpstore_tools.transfer.importing import import_lines
from amqpstore_tools.transfer.input import lines_of, opened


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `import`."""
    parser.description = (
        "Add the messages in a file of `amqpstore export` at the end of their "
        "queues: all of them, or none. For a running broker use `amqpstore publish`."
    )
    parser.add_argument("directory", metavar="DIR", help="data directory of a stopped broker")
    parser.add_argument(
        "file", metavar="FILE", help="file of exported messages; - is standard input"
    )
    parser.add_argument(
        "--create", action="store_true", help="create missing queues, with their original settings"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Import. Returns the exit code."""
    return run_tool("import", lambda: _import(arguments), as_json=arguments.json)


def _import(arguments: argparse.Namespace) -> None:
    started = time.monotonic()
    with opened(arguments.file) as (file, size), progress_bar() as show:
        lines = lines_of(arguments.file, file, size, show, "importing")
        imported = import_lines(arguments.directory, lines, create=arguments.create)
    result = {
        "directory": arguments.directory,
        "messages": imported.messages,
        "created": imported.created,
        "seconds": round(time.monotonic() - started, 3),
    }
    write_json(result) if arguments.json else _print(result)


def _print(result: dict[str, Any]) -> None:
    total = sum(result["messages"].values())
    say(
        f"{result['directory']}: {counted(total, 'message')} imported into "
        f"{counted(len(result['messages']), 'queue')} in {result['seconds']:.1f} s"
    )
    for queue in result["created"]:
        say(f"  created queue {queue}")
