"""`amqpstore restore`: replaces a store by a copy."""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import msgspec

from amqpstore_tools.copying.restoring import restore
from amqpstore_tools.offline.exits import add_json, run_tool
from amqpstore_tools.offline.json_output import write_json
from amqpstore_tools.offline.locations import with_reserve
from amqpstore_tools.offline.progress import progress_bar
from amqpstore_tools.offline.terminal import counted, say, size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `restore`."""
    parser.description = (
        "Replace a store that no broker has open by a copy. The copy is verified "
        "before anything is replaced; the previous store is kept as DIR.before-restore-TIME."
    )
    parser.add_argument(
        "copy", metavar="COPY", help="a copy made by `amqpstore copy`; it is only read"
    )
    parser.add_argument(
        "directory", metavar="DIR", help="data directory to restore; it need not exist"
    )
    parser.add_argument(
        "--links",
        action="store_true",
        help="share files that never change with COPY, as hard links: faster, and one bad disk "
        "block harms both",
    )
    parser.add_argument(
        "--damaged", action="store_true", help="accept a copy of a store that was already damaged"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Restore. Returns the exit code."""
    return run_tool("restore", lambda: _restore(arguments), as_json=arguments.json)


def _restore(arguments: argparse.Namespace) -> None:
    started = time.monotonic()
    with progress_bar() as show:
        work = partial(
            restore,
            arguments.copy,
            arguments.directory,
            links=arguments.links,
            accept_damage=arguments.damaged,
            progress=show,
        )
        restored = with_reserve(arguments.directory, work)
    copied = restored.copied
    result = {
        "directory": arguments.directory,
        "store_id": copied.store_id,
        "kept": restored.kept,
        "files": sum(copied.files.values()),
        "bytes": sum(copied.bytes.values()),
        "verified_bytes": copied.verified_bytes,
        "damage": [msgspec.to_builtins(one) for one in copied.damage],
        "seconds": round(time.monotonic() - started, 3),
    }
    write_json(result) if arguments.json else _print(result)


def _print(result: dict[str, Any]) -> None:
    say(
        f"{result['directory']}: restored store {result['store_id']}, {size(result['bytes'])} "
        f"in {counted(result['files'], 'file')}, verified, in {result['seconds']:.1f} s"
    )
    if result["kept"]:
        say(f"  the previous store is kept: {result['kept']}")
        say("  Remove it once you are sure that you do not need it.")
    if damage := result["damage"]:
        say(f"  the copy contains damage of its store, in {counted(len(damage), 'place')}")
