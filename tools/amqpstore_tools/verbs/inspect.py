"""`amqpstore inspect`: show the content of a store, down to one record."""

from __future__ import annotations

import argparse

from amqpstore_tools.inspect import (
    follow,
    message,
    overview,
    page,
    queue,
    segment,
    transaction,
    vhost,
)
from amqpstore_tools.offline.exits import UsageError, exit_codes, run_tool
from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.offline.json_output import write_json
from amqpstore_tools.offline.progress import progress_bar
from amqpstore_tools.repair.imaging import RemainingImage

_DEFAULT_LIMIT = 20
_FOLLOW_LIMIT = 10
_SHOWN_IDS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the directory, what of it is looked at, and the options of all."""
    parser.description = (
        "Show the content of the data directory DIR of a stopped broker, or with "
        "--live of a running one. Nothing in it is changed."
    )
    parser.epilog = exit_codes("not found")
    parser.add_argument("data", metavar="DIR", help="data directory")
    _add_common(parser)
    parser.add_argument(
        "--follow",
        action="store_true",
        help="show the log as it grows, until Ctrl-C; a broker may be running",
    )
    what = parser.add_subparsers(
        dest="what", metavar="[WHAT]", help="show one part instead of an overview"
    )
    part = what.add_parser("vhost", help="a virtual host: exchanges, bindings, policies, queues")
    part.add_argument("name", metavar="NAME", help="name of the virtual host")
    _add_common(part, is_part=True)
    part = what.add_parser("segment", help="a segment and its records")
    part.add_argument("number", type=_number, metavar="N", help="number of the segment")
    part.add_argument(
        "--first", type=_number, default=0, metavar="OFFSET", help="first offset to show"
    )
    _add_common(part, is_part=True)
    part = what.add_parser("queue", help="a queue and its messages")
    part.add_argument(
        "name", metavar="NAME", help="name of the queue, or #ID for its id in the store"
    )
    part.add_argument(
        "--vhost", metavar="VHOST", help="virtual host, if several have a queue of that name"
    )
    part.add_argument(
        "--first", type=_number, default=0, metavar="SEQUENCE", help="first sequence to show"
    )
    _add_common(part, is_part=True)
    part = what.add_parser("message", help="a message: record, routing, properties, body, queues")
    part.add_argument(
        "number", type=_number, nargs="?", metavar="ID", help="id of the message in the store"
    )
    part.add_argument("--queue", metavar="NAME", help="or the queue that it is in")
    part.add_argument("--vhost", metavar="VHOST", help="virtual host of that queue")
    part.add_argument(
        "--position", metavar="N", help="and its sequence there, after PRIORITY: if it has one"
    )
    part.add_argument(
        "--message-id",
        metavar="TEXT",
        help="or the property message-id that its publisher gave it, while a queue has it",
    )
    part.add_argument("--body", choices=message.FORMS, help="show the whole body in this form")
    _add_common(part, is_part=True)
    part = what.add_parser("transaction", help="a transaction of the log and its operations")
    part.add_argument(
        "number", type=_number, metavar="LSN", help="log sequence number of the transaction"
    )
    _add_common(part, is_part=True)


def _add_common(parser: argparse.ArgumentParser, *, is_part: bool = False) -> None:
    # Before or after WHAT: those before it apply, unless repeated after it.
    absent = argparse.SUPPRESS
    parser.add_argument(
        "--live",
        action="store_true",
        default=absent if is_part else False,
        help="read a snapshot while a broker runs on DIR",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        default=absent if is_part else False,
        help="print one JSON object; with --follow, one per line",
    )
    parser.add_argument(
        "--limit",
        type=_number,
        default=absent if is_part else None,
        metavar="N",
        help=f"rows of a list to show, 0 for all (default {_DEFAULT_LIMIT}; with --follow "
        f"{_FOLLOW_LIMIT} of the existing ones)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Show it. Returns the exit code."""
    tool = _follow if arguments.follow else _inspect
    return run_tool("inspect", lambda: tool(arguments), has_live=True, as_json=arguments.json)


def _follow(arguments: argparse.Namespace) -> None:
    if arguments.what:
        raise UsageError("--follow shows the log, and cannot be combined with WHAT")
    limit = _FOLLOW_LIMIT if arguments.limit is None else arguments.limit or None
    show = follow.show_json if arguments.json else follow.show_line
    follow.follow(arguments.data, show, limit)


def _inspect(arguments: argparse.Namespace) -> None:
    limit = _DEFAULT_LIMIT if arguments.limit is None else arguments.limit
    with progress_bar() as tell:
        image = RemainingImage.open(arguments.data, live=arguments.live, tell=tell)
    with image:
        if arguments.what == "vhost":
            facts = vhost.facts(image, arguments.name)
            write_json(facts) if arguments.json else vhost.show(facts, limit)
        elif arguments.what == "segment":
            facts = segment.facts(image, arguments.number, arguments.first, limit)
            write_json(facts) if arguments.json else segment.show(facts)
        elif arguments.what == "queue":
            facts = queue.facts(image, arguments.name, arguments.vhost, arguments.first, limit)
            write_json(facts) if arguments.json else queue.show(facts)
        elif arguments.what == "message":
            facts = message.facts(image, _message_id(image, arguments), arguments.body)
            write_json(facts) if arguments.json else message.show(facts)
        elif arguments.what == "transaction":
            facts = transaction.facts(image, arguments.number)
            write_json(facts) if arguments.json else transaction.show(facts)
        else:
            facts = overview.facts(image)
            write_json(facts) if arguments.json else page.show(facts, limit)


def _message_id(image: StoreImage, arguments: argparse.Namespace) -> int:
    by_position = arguments.queue is not None and arguments.position is not None
    by_name = arguments.message_id is not None
    if (arguments.number is not None) + by_position + by_name != 1:
        raise UsageError("message takes an ID, or --queue and --position, or --message-id")
    if by_name:
        first, *others = message.ids_of(image, arguments.message_id)
        if others:
            ids = ", ".join(map(str, (first, *others[: _SHOWN_IDS - 1])))
            raise UsageError(
                f"{1 + len(others)} messages have this message-id: ask for one by its ID, as {ids}"
            )
        return first
    if not by_position:
        return int(arguments.number)
    return message.id_at(image, arguments.queue, arguments.vhost, arguments.position)


def _number(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("it must not be negative")
    return number


_number.__name__ = "number"
