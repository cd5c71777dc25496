"""The command line of `amqpstore check`."""

from __future__ import annotations

import argparse
import sys

from amqpstore import StoreError, StoreLockedError
from tools.check.board import board
from tools.check.check import Checked, check
from tools.offline import terminal
from tools.offline.json_output import write_json

_CLEAN, _FOUND, _NOT_CHECKED, _INTERRUPTED = 0, 1, 2, 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the data directory and the options."""
    parser.description = (
        "Look at every checksum, reference, counter and name in a data directory, whether the "
        "store opens or not. Nothing in it is changed."
    )
    parser.epilog = (
        "Exit codes: 0 sound (there may be notes: what a crash leaves), 1 errors or warnings were "
        "found, 2 it could not be checked, 130 interrupted. tools/check/FINDINGS.md lists the "
        "codes of findings."
    )
    parser.add_argument("directory", metavar="DIR", help="a data directory")
    parser.add_argument(
        "--live",
        action="store_true",
        help="a broker may be running on DIR: check what was durable at one moment",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Checks. Returns the exit code."""
    try:
        with board() as tell:
            checked = check(arguments.directory, live=arguments.live, tell=tell)
    except (StoreError, OSError) as error:
        text = str(error)
        if isinstance(error, StoreLockedError):
            text = f"{text} With --live it is checked while the broker runs."
        if arguments.json:
            write_json({"error": text, "kind": type(error).__name__})
        else:
            sys.stderr.write(f"amqpstore check: {text}\n")
        return _NOT_CHECKED
    except KeyboardInterrupt:
        sys.stderr.write("amqpstore check: interrupted\n")
        return _INTERRUPTED
    if arguments.json:
        write_json(as_json(checked))
    else:
        # Here, so that the other verbs start without what it draws with.
        from tools.check.report import print_report

        print_report(checked, arguments.directory, terminal.console())
    return _FOUND if checked.is_damaged else _CLEAN


def as_json(checked: Checked) -> dict[str, object]:
    """What `--json` prints."""
    return {
        "sound": not checked.is_damaged,
        "compared": checked.is_compared,
        "queues": checked.queues,
        "messages": checked.messages,
        "prepared": checked.prepared,
        "segments": checked.segments,
        "segment_bytes": checked.segment_bytes,
        "index_files": checked.index_files,
        "findings": [finding.as_json() for finding in checked.findings],
    }
