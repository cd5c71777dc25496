"""`amqpstore copy`: a verified copy of a store, whether or not a broker runs on it."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import time
from typing import Any

import msgspec

from amqpstore.errors import DamageError, NotAStoreError
from amqpstore.evidence import find_wrong_kinds
from amqpstore.system.filenames import CATALOG, MARKER, SEGMENTS
from amqpstore_tools.copying.copier import CATALOG_PATH, CopyOptions, copy_store
from amqpstore_tools.copying.errors import CopyError
from amqpstore_tools.offline.exits import DAMAGED, OK, add_json, run_tool
from amqpstore_tools.offline.json_output import write_json
from amqpstore_tools.offline.locations import require_outside
from amqpstore_tools.offline.progress import progress_bar
from amqpstore_tools.offline.read_only_files import ReadOnlyFiles
from amqpstore_tools.offline.terminal import counted, say, size

_SHOWN = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `copy`."""
    parser.description = (
        "Make a consistent copy of a store, even of a running broker's, and verify it. Files that "
        "never change become hard links if DIR and TARGET are on one file system."
    )
    parser.add_argument("directory", metavar="DIR", help="data directory; it is only read")
    parser.add_argument("target", metavar="TARGET", help="a new directory, or an empty one")
    parser.add_argument(
        "--against",
        metavar="COPY",
        help="an earlier copy on the file system of TARGET: unchanged files are shared with it",
    )
    parser.add_argument(
        "--no-links",
        action="store_true",
        help="copy all bytes, so that one bad disk block cannot damage both",
    )
    parser.add_argument(
        "--verify-all",
        action="store_true",
        help="also verify the files that are shared with the earlier copy, not only new ones",
    )
    add_json(parser, "done, but damage was found")


def run(arguments: argparse.Namespace) -> int:
    """Copy. Returns the exit code."""
    return run_tool("copy", lambda: _copy(arguments), as_json=arguments.json)


def _copy(arguments: argparse.Namespace) -> int:
    require_outside(arguments.directory, arguments.target)
    options = CopyOptions(
        links=not arguments.no_links,
        against=arguments.against,
        verify="all" if arguments.verify_all else "new",
    )
    started = time.monotonic()
    try:
        with progress_bar() as show:
            copied = copy_store(arguments.directory, arguments.target, options, show)
    except (DamageError, NotAStoreError) as error:
        if not os.path.isdir(os.path.join(arguments.directory, SEGMENTS)):
            raise
        raise CopyError(_what_to_do(arguments, error)) from error
    result = dataclasses.asdict(copied)
    result["damage"] = [msgspec.to_builtins(one) for one in copied.damage]
    result["seconds"] = round(time.monotonic() - started, 3)
    write_json(result) if arguments.json else print_copied(result)
    return DAMAGED if copied.damage else OK


def _what_to_do(arguments: argparse.Namespace, error: Exception) -> str:
    """Return why a store with a damaged marker or catalog cannot be copied, and what to do."""
    for wrong in find_wrong_kinds(ReadOnlyFiles(), arguments.directory):
        if wrong.name in (MARKER, CATALOG, CATALOG_PATH):
            # A copy of it would be of no use, or be the thing itself, where a link leads.
            return f"{arguments.directory}/{wrong.name}: {wrong.reason}"
    paths = shlex.join([arguments.directory, arguments.target])
    return f"{str(error).removesuffix('.')}. Copy the files as they are: cp -a {paths}"


def print_copied(result: dict[str, Any]) -> None:
    """Print what was copied, for people."""
    how = ", ".join(
        f"{_HOW[kind]} {size(result['bytes'][kind])} in {counted(count, 'file')}"
        for kind, count in sorted(result["files"].items())
    )
    was = "running" if result["was_running"] else "stopped"
    say(f"{result['target']}: a copy of the {was} store {result['store_id']}")
    say(f"  {how or 'no messages'}")
    say(
        f"  verified {size(result['verified_bytes'])}; the log ends in segment "
        f"{result['log_segment']} at {result['log_offset']:,}; {result['seconds']:.1f} s"
    )
    if damage := result["damage"]:
        say(f"the store itself was damaged already, in {counted(len(damage), 'place')}:")
        for one in damage[:_SHOWN]:
            location = f"{one['path']} at {one['offset']:,}, {one['bytes']:,} bytes"
            say(f"    {location}: {one['reason']}")
        if len(damage) > _SHOWN:
            say("    ... see COPY.json for all of it")


_HOW = {"copied": "copied", "linked": "linked", "earlier": "shared with the earlier copy"}
