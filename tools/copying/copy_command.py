"""`amqpstore copy`: a verified copy of a store, whether or not a broker runs on it."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from typing import Any

import msgspec

from tools.copying.copier import Options, copy_store
from tools.ending import DAMAGED, add_json, end
from tools.offline.exits import OK
from tools.offline.terminal import counted, size
from tools.progress import progress_bar

_SHOWN = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `copy`."""
    parser.description = (
        "Make a consistent copy of a store, of a running broker's too, and verify it. Files that "
        "never change are hard links where DIR and TARGET are on one file system."
    )
    parser.add_argument("directory", metavar="DIR", help="data directory; it is only read")
    parser.add_argument("target", metavar="TARGET", help="a new directory, or an empty one")
    parser.add_argument(
        "--against",
        metavar="COPY",
        help="an earlier copy, where TARGET is to be: what has not changed since is shared with it",
    )
    parser.add_argument(
        "--no-links",
        action="store_true",
        help="copy all bytes, so that a bad disk block does not harm both",
    )
    parser.add_argument(
        "--verify-all",
        action="store_true",
        help="read what is shared with the earlier copy, too, and not only what is new",
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Copy. Returns the exit code."""
    options = Options(
        links=not arguments.no_links,
        against=arguments.against,
        verify="all" if arguments.verify_all else "new",
    )

    def work() -> dict[str, Any]:
        started = time.monotonic()
        with progress_bar() as show:
            copied = copy_store(arguments.directory, arguments.target, options, show)
        result = dataclasses.asdict(copied)
        result["damage"] = [msgspec.to_builtins(one) for one in copied.damage]
        return {**result, "seconds": round(time.monotonic() - started, 3)}

    def show_result(result: dict[str, Any]) -> int:
        if not arguments.json:
            print_copied(result)
        return DAMAGED if result["damage"] else OK

    return end("copy", arguments, work, show_result)


def print_copied(result: dict[str, Any]) -> None:
    """What was copied, for people."""
    how = ", ".join(
        f"{_HOW[kind]} {size(result['bytes'][kind])} in {counted(count, 'file')}"
        for kind, count in sorted(result["files"].items())
    )
    was = "running" if result["was_running"] else "stopped"
    sys.stdout.write(
        f"{result['target']}: a copy of the {was} store {result['store_id']}\n"
        f"  {how or 'no messages'}\n"
        f"  verified {size(result['verified_bytes'])}; the log ends in segment "
        f"{result['log_segment']} at {result['log_offset']:,}; {result['seconds']:.1f} s\n"
    )
    if damage := result["damage"]:
        sys.stdout.write(f"  damaged in the store already, in {counted(len(damage), 'place')}:\n")
        for one in damage[:_SHOWN]:
            sys.stdout.write(
                f"    {one['path']} at {one['offset']:,}, {one['bytes']:,} bytes: {one['reason']}\n"
            )
        if len(damage) > _SHOWN:
            sys.stdout.write("    ... all of it is in COPY.json\n")


_HOW = {"copied": "copied", "linked": "linked", "earlier": "shared with the earlier copy"}
