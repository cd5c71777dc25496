"""`amqpstore messages`: browse the messages of a queue, move, copy, delete and replay them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from amqpstore_tools.administration.options import (
    add_action,
    add_actions,
    add_vhost,
    ask,
    object_in,
    run_action,
    show_rows,
    tell,
)
from amqpstore_tools.offline.exits import UsageError
from amqpstore_tools.offline.json_output import write_json
from amqpstore_tools.offline.terminal import counted, say

_SHOWN = 60
"""Characters of a body in a table."""

_FILTER = """a JSON object, such as '{"headers": {"tenant": "acme"}, "body": {"contains": "x"}}'"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `messages`."""
    actions = add_actions(parser)
    action = _add(
        actions, "browse", "show messages of a queue, which stay in it as they are", _browse
    )
    action.add_argument("--start", metavar="POSITION", help="from this position on")
    action.add_argument("--offset", metavar="N", type=int, default=0, help="after N ready messages")
    _add_filter(action)
    action.add_argument(
        "--limit", metavar="N", type=int, default=100, help="N messages (default: %(default)s)"
    )
    action.add_argument(
        "--max-payload",
        metavar="BYTES",
        type=int,
        default=4096,
        help="cut bodies after so many bytes (default: %(default)s)",
    )
    action = _add(actions, "move", "move messages to another queue", _move)
    action.add_argument("target", metavar="TARGET")
    _add_selection(action)
    action = _add(actions, "copy", "put copies of messages in another queue, or the same", _copy)
    action.add_argument("target", metavar="TARGET")
    _add_selection(action)
    _add_selection(_add(actions, "delete", "delete messages; they become no dead letters", _delete))
    action = _add(actions, "replay", "send dead letters back to where they died", _replay)
    _add_selection(action)
    action.add_argument(
        "--to",
        choices=("queue", "exchange"),
        default="queue",
        help="to their queue, or through the exchange they had come from (default: %(default)s)",
    )
    action.add_argument(
        "--max-replays",
        metavar="N",
        type=int,
        default=10,
        help="leave those that were replayed N times (default: %(default)s)",
    )
    action.add_argument(
        "--trust-publishers",
        action="store_true",
        help="also those whose x-death was published with them: it decides where they go",
    )
    summary = "undo the last purge of a queue, while that can be undone"
    _add(actions, "undo-purge", summary, _undo_purge)


def run(arguments: argparse.Namespace) -> int:
    """Run the action. Returns the exit code."""
    return run_action(arguments)


def _add(
    actions: Any, name: str, summary: str, act: Callable[[argparse.Namespace], None]
) -> argparse.ArgumentParser:
    parser = add_action(actions, name, summary, act)
    parser.add_argument("queue", metavar="QUEUE")
    add_vhost(parser)
    return parser


def _add_filter(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--filter", metavar="FILTER", help=_FILTER)


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--position",
        metavar="POSITION",
        action="append",
        help="of a message, as `browse` shows it; may be repeated",
    )
    _add_filter(parser)
    parser.add_argument("--all", action="store_true", help="all ready messages")
    parser.add_argument("--limit", metavar="N", type=int, help="the first N of them")


def _filter(arguments: argparse.Namespace) -> dict[str, Any]:
    return {} if arguments.filter is None else {"filter": object_in("FILTER", arguments.filter)}


def _selected(arguments: argparse.Namespace, **more: Any) -> dict[str, Any]:
    """Return the selection that the arguments name. Raises: UsageError."""
    if not (arguments.position or arguments.filter or arguments.all):
        raise UsageError("which messages? Give --position, --filter or --all")
    selection: dict[str, Any] = {"limit": arguments.limit, **_filter(arguments), **more}
    if arguments.position:
        selection["positions"] = arguments.position
    return {"filter": {}, **selection}


def _asked(arguments: argparse.Namespace, **more: Any) -> Any:
    """Ask for an action on the messages of a queue."""
    return ask(arguments, vhost=arguments.vhost, queue=arguments.queue, **more)


def _browse(arguments: argparse.Namespace) -> None:
    wanted = {
        "start": arguments.start,
        "offset": arguments.offset,
        "limit": arguments.limit,
        "max_payload_bytes": arguments.max_payload,
        **_filter(arguments),
    }
    page = _asked(arguments, page=wanted)
    if arguments.json:
        write_json(page)
        return
    rows = [
        {
            "position": row["position"],
            "state": row["state"] + (", redelivered" if row["redelivered"] else ""),
            "routing key": row.get("routing_key", ""),
            "bytes": row.get("payload_bytes", 0),
            "body": row.get("error") or _body(row),
        }
        for row in page["messages"]
    ]
    show_rows(arguments, "messages", rows, "position", "state", "routing key", "bytes", "body")
    say(f"{page['ready']:,} ready, {page['unacked']:,} unacked")
    if page["next"] is not None:
        say(f"to go on: --start {page['next']}")


def _body(row: dict[str, Any]) -> str:
    if row["payload_encoding"] == "base64":
        return "(not text)"
    text = row["payload"][:_SHOWN]
    return text if len(text) == len(row["payload"]) and not row["truncated"] else f"{text}..."


def _move(arguments: argparse.Namespace) -> None:
    answer = _asked(arguments, target=arguments.target, which=_selected(arguments))
    _told(arguments, "moved", answer)


def _copy(arguments: argparse.Namespace) -> None:
    answer = _asked(arguments, target=arguments.target, which=_selected(arguments))
    _told(arguments, "copied", answer)


def _delete(arguments: argparse.Namespace) -> None:
    _told(arguments, "deleted", _asked(arguments, which=_selected(arguments)))


def _replay(arguments: argparse.Namespace) -> None:
    how = {"to": arguments.to, "max_replays": arguments.max_replays}
    which = _selected(arguments, **how, trusts_publishers=arguments.trust_publishers)
    _told(arguments, "replayed", _asked(arguments, which=which))


def _undo_purge(arguments: argparse.Namespace) -> None:
    answer = _asked(arguments)
    if arguments.json:
        write_json(answer)
        return
    tell(arguments, f"{counted(answer['restored'], 'message')} restored")
    if more := len(answer["purges"]):
        say(f"{counted(more, 'purge')} before that can be undone, too")


def _told(arguments: argparse.Namespace, done: str, answer: dict[str, Any]) -> None:
    """Print what was done, and what was not."""
    if arguments.json:
        write_json(answer)
        return
    tell(arguments, f"{counted(answer[done], 'message')} {done}")
    for reason, count in answer["left"].items():
        say(f"{counted(count, 'message')} left: {reason}")
    if answer["stopped"]:
        say(f"the rest was left: {answer['stopped']}")
