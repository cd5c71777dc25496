"""`amqpstore upgrade`: converts a store of an earlier format to that of this version.

A step takes a store from one format version to the next. Each is safe from a crash by itself: it
makes its changes so that both versions can read what a crash leaves, or makes them again, and
writes the marker with the new version last. Opening a store takes the same steps.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from amqpstore.catalog.catalog import LmdbCatalog
from amqpstore.errors import DamageError, FormatVersionError, NotAStoreError
from amqpstore.format.records import FORMAT_VERSION
from amqpstore.identity import marker
from amqpstore.recovery.opening import give_rows_checksums
from amqpstore.system.filenames import CATALOG, MARKER
from amqpstore.system.files import OsFiles
from amqpstore_tools.offline.exits import add_json, run_tool
from amqpstore_tools.offline.json_output import write_json
from amqpstore_tools.offline.locations import require_store
from amqpstore_tools.offline.locks import exclusive_lock
from amqpstore_tools.offline.terminal import say

Step = Callable[[str], None]
"""Converts the store in a directory to the next version, including the marker. The store is
locked.
"""


def _give_rows_checksums(directory: str) -> None:
    """Convert from version 1 to version 2. Raises: DamageError, DurabilityError, OSError."""
    files = OsFiles()
    found = marker.read(files, directory)
    if found is None:
        raise NotAStoreError(directory, f"it has no file {MARKER}")
    catalog = LmdbCatalog(os.path.join(directory, CATALOG), False, plain=True)
    try:
        give_rows_checksums(files, directory, catalog, found.store_id)
    finally:
        catalog.close()


STEPS: Mapping[int, Step] = {1: _give_rows_checksums}
"""By the version that they start from."""

_VERSION = re.compile(rb"amqpstore\nformat-version: ([0-9]{1,9})\n")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `upgrade`."""
    parser.description = (
        "Show the format version of a store, and convert it to the version that this amqpstore "
        f"uses, which is {FORMAT_VERSION}. Make a copy first: an upgrade cannot be undone."
    )
    parser.add_argument("directory", metavar="DIR", help="data directory")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Upgrade. Returns the exit code."""

    def tool() -> None:
        found, done = upgrade(arguments.directory)
        result = {"directory": arguments.directory, "found": found, "version": done}
        write_json(result) if arguments.json else say(_said(result))

    return run_tool("upgrade", tool, as_json=arguments.json)


def _said(result: dict[str, Any]) -> str:
    directory, found, version = result["directory"], result["found"], result["version"]
    if found == version:
        return f"{directory} has format version {found}, the current one: there is nothing to do."
    return f"{directory} had format version {found}, and has {version} now."


def upgrade(
    directory: str, steps: Mapping[int, Step] = STEPS, newest: int = FORMAT_VERSION
) -> tuple[int, int]:
    """Convert the store in `directory` to version `newest`. Returns its version before, and now.

    Raises: NotAStoreError; StoreLockedError; FormatVersionError, if it is newer, or no step leads
    from it; DamageError (the marker); what a step raises. Earlier steps stay done.
    """
    require_store(directory)
    present = format_version(directory)
    _check(directory, present, steps, newest)
    if present == newest:
        marker.read(OsFiles(), directory)
        return present, present
    with exclusive_lock(directory, "upgrade"):
        version = present = format_version(directory)
        _check(directory, present, steps, newest)
        while version < newest:
            steps[version](directory)
            version += 1
            if format_version(directory) != version:
                path = os.path.join(directory, MARKER)
                raise DamageError(
                    path, 0, f"the step to format version {version} did not record it"
                )
    return present, version


def format_version(directory: str) -> int:
    """Return the version in a store's marker. Raises: DamageError, OSError."""
    path = os.path.join(directory, MARKER)
    with open(path, "rb") as file:
        text = file.read(4096)
    if not (match := _VERSION.match(text)):
        raise DamageError(path, 0, "it cannot be parsed as the marker of a store")
    return int(match[1])


def _check(directory: str, version: int, steps: Mapping[int, Step], newest: int) -> None:
    if version > newest or any(one not in steps for one in range(version, newest)):
        raise FormatVersionError(directory, version, newest)
