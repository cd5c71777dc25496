"""`amqpstore restore`: a copy takes the place of a store."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import msgspec

from tools.copying.restoring import restore
from tools.ending import add_json, end
from tools.offline.exits import OK
from tools.offline.terminal import counted, size
from tools.progress import progress_bar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `restore`."""
    parser.description = (
        "Put a copy in the place of a store that no broker has open. The copy is checked before "
        "anything is replaced; what was there is kept, as DIR.before-restore-TIME."
    )
    parser.add_argument("copy", metavar="COPY", help="what `amqpstore copy` made; it is only read")
    parser.add_argument("directory", metavar="DIR", help="data directory, or where there is none")
    parser.add_argument(
        "--links",
        action="store_true",
        help="share files that never change with COPY, as hard links: faster, and one bad disk "
        "block harms both",
    )
    parser.add_argument(
        "--damaged", action="store_true", help="accept a copy of a store that was damaged already"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Restore. Returns the exit code."""

    def work() -> dict[str, Any]:
        started = time.monotonic()
        with progress_bar() as show:
            restored = restore(
                arguments.copy,
                arguments.directory,
                links=arguments.links,
                accept_damage=arguments.damaged,
                progress=show,
            )
        copied = restored.copied
        return {
            "directory": arguments.directory,
            "store_id": copied.store_id,
            "kept": restored.kept,
            "files": sum(copied.files.values()),
            "bytes": sum(copied.bytes.values()),
            "verified_bytes": copied.verified_bytes,
            "damage": [msgspec.to_builtins(one) for one in copied.damage],
            "seconds": round(time.monotonic() - started, 3),
        }

    def show_result(result: dict[str, Any]) -> int:
        if not arguments.json:
            _print(result)
        return OK

    return end("restore", arguments, work, show_result)


def _print(result: dict[str, Any]) -> None:
    sys.stdout.write(
        f"{result['directory']}: restored store {result['store_id']}, {size(result['bytes'])} "
        f"in {counted(result['files'], 'file')}, verified, in {result['seconds']:.1f} s\n"
    )
    if result["kept"]:
        sys.stdout.write(
            f"  what was there is kept: {result['kept']}\n"
            "  Remove that when you are sure that you do not need it.\n"
        )
    if damage := result["damage"]:
        sys.stdout.write(f"  {counted(len(damage), 'place')} of the copy are damaged\n")
