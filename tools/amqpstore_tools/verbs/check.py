"""`amqpstore check`: look for damage in a store."""

from __future__ import annotations

import argparse

from amqpstore_tools.check.engine import check
from amqpstore_tools.check.findings import WHERE_EXPLAINED
from amqpstore_tools.check.store import Checked
from amqpstore_tools.offline import terminal
from amqpstore_tools.offline.exits import DAMAGED, OK, add_json, run_tool
from amqpstore_tools.offline.json_output import write_json
from amqpstore_tools.offline.progress import progress_bar
from amqpstore_tools.spark.engine import add_engine, executor_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the data directory and the options."""
    parser.description = (
        "Verify every checksum, reference, counter and name in a data directory, "
        "whether the store opens or not. Nothing in it is changed."
    )
    parser.add_argument("directory", metavar="DIR", help="data directory")
    parser.add_argument(
        "--live", action="store_true", help="check a snapshot while a broker runs on DIR"
    )
    add_json(parser, "errors or warnings were found (notes are normal after a crash)")
    parser.epilog = f"{parser.epilog} {WHERE_EXPLAINED}"
    add_engine(parser, "segments and index files are distributed over a cluster")


def run(arguments: argparse.Namespace) -> int:
    """Check. Returns the exit code."""
    return run_tool("check", lambda: _check(arguments), has_live=True, as_json=arguments.json)


def _check(arguments: argparse.Namespace) -> int:
    with progress_bar() as tell, executor_of(arguments, "check") as executor:
        checked = check(arguments.directory, live=arguments.live, executor=executor, tell=tell)
    if arguments.json:
        write_json(as_json(checked))
    else:
        # Imported here, so that the other verbs start without rich.
        from amqpstore_tools.check.report import print_report

        print_report(checked, arguments.directory, terminal.console())
    return DAMAGED if checked.is_damaged else OK


def as_json(checked: Checked) -> dict[str, object]:
    """Return what `--json` prints."""
    return {
        "sound": not checked.is_damaged,
        "compared": checked.is_compared,
        "queues": checked.queues,
        "messages": checked.messages,
        "prepared": checked.prepared,
        "segments": checked.segments,
        "segment_bytes": checked.segment_bytes,
        "index_files": checked.index_files,
        "seconds": round(checked.seconds, 3),
        "cpu_seconds": round(checked.cpu_seconds, 3),
        "findings": [finding.as_json() for finding in checked.findings],
    }
