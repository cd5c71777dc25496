"""`amqpstore definitions`: all definitions as one JSON file, in RabbitMQ's form."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from amqpstore_tools.administration.options import (
    add_action,
    add_actions,
    add_vhost,
    ask,
    run_action,
    tell,
)
from amqpstore_tools.offline.exits import LEFT_OUT, OK, UsageError
from amqpstore_tools.offline.json_output import write_json
from amqpstore_tools.offline.output import output_file
from amqpstore_tools.offline.terminal import counted, say

_STANDARD = "-"
_MAX_BYTES = 64 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `definitions`."""
    actions = add_actions(parser)
    one = add_action(
        actions,
        "export",
        "write users, virtual hosts, permissions, policies, queues, exchanges and bindings",
        _export,
    )
    one.add_argument(
        "file", metavar="FILE", nargs="?", default=_STANDARD, help="default: -, standard output"
    )
    add_vhost(one, None)
    one = add_action(
        actions, "import", "add and change what a file says; nothing is deleted", _import
    )
    one.add_argument("file", metavar="FILE", help="file of definitions; - is standard input")
    add_vhost(one, None)


def run(arguments: argparse.Namespace) -> int:
    """Run the action. Returns the exit code."""
    return run_action(arguments)


def _export(arguments: argparse.Namespace) -> None:
    if arguments.json and arguments.file == _STANDARD:
        raise UsageError("--json needs a FILE, because both would go to standard output")
    found = ask(arguments, vhost=arguments.vhost or "")
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    if arguments.file == _STANDARD:
        sys.stdout.buffer.write(text.encode(errors="backslashreplace"))
        sys.stdout.buffer.flush()
        return
    # It has password hashes.
    with output_file(arguments.file, is_private=True) as file:
        file.write(text.encode(errors="backslashreplace"))
    counts = {kind: len(entries) for kind, entries in found.items() if entries}
    if arguments.json:
        write_json({"output": arguments.file, **counts})
    else:
        said = ", ".join(f"{kind.replace('_', ' ')}: {count}" for kind, count in counts.items())
        say(f"{arguments.file}: {said or 'nothing'}")


def _import(arguments: argparse.Namespace) -> int:
    """Import a file. Returns the exit code: a failure, if anything was left out."""
    content = _read(arguments.file)
    answer = ask(arguments, content=content, vhost=arguments.vhost or "", source=arguments.file)
    left_out: list[str] = answer["left_out"]
    notes: list[str] = answer.get("notes", [])  # of a broker that is older than this command
    code = LEFT_OUT if left_out else OK
    if arguments.json:
        write_json({"input": arguments.file, "left_out": left_out, "notes": notes})
        return code
    for note in notes:
        say(f"note: {note}", sys.stderr)
    for one in left_out:
        say(f"left out: {one}", sys.stderr)
    rest = f"; {counted(len(left_out), 'definition')} left out" if left_out else ""
    tell(arguments, f"{arguments.file} imported{rest}")
    return code


def _read(path: str) -> Any:
    if path == _STANDARD:
        read = sys.stdin.buffer.read(_MAX_BYTES + 1)
    else:
        with open(path, "rb") as file:
            read = file.read(_MAX_BYTES + 1)
    if len(read) > _MAX_BYTES:
        raise UsageError(f"{path} has more than {_MAX_BYTES >> 20} MiB")
    try:
        return json.loads(read)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from None
