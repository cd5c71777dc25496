"""`amqpstore as-of`: shows what a queue held at a time."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import Any

from amqpstore.system.files import naming
from amqpstore_tools.archive.layout import QueueName
from amqpstore_tools.offline import terminal
from amqpstore_tools.offline.exits import add_json, run_tool
from amqpstore_tools.offline.json_output import write_json
from amqpstore_tools.offline.terminal import counted, when
from amqpstore_tools.offline.times import time_ms
from amqpstore_tools.spark.engine import add_master
from amqpstore_tools.spark.requirements import require_spark
from amqpstore_tools.transfer.lines import EndLine, ExportLine, LineWriter, QueueKey, QueueLine

_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the archive, the queue and the time."""
    parser.description = (
        "Show the messages that a queue held at a point in time, in order: those "
        "published by then, without those acked, expired or purged by then."
    )
    parser.add_argument("out", metavar="OUT", help="an archive")
    parser.add_argument("--queue", required=True, metavar="Q", help="name of the queue")
    parser.add_argument(
        "--at",
        dest="at_ms",
        type=time_ms,
        required=True,
        metavar="T",
        help="the point in time: ISO 8601 (UTC without a zone), or ms since 1970",
    )
    parser.add_argument(
        "--vhost",
        default="/",
        metavar="NAME",
        help="virtual host of the queue (default: %(default)s)",
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=_SHOWN,
        metavar="N",
        help="how many messages to show (default: %(default)s)",
    )
    parser.add_argument(
        "--export",
        metavar="FILE",
        help="write all messages to FILE, in the format of amqpstore export",
    )
    add_master(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Ask. Returns the exit code."""
    return run_tool("as-of", lambda: _ask(arguments), as_json=arguments.json)


def _ask(arguments: argparse.Namespace) -> None:
    require_spark()
    # Imported here, so that the other verbs start without Spark.
    from amqpstore_tools.archive import reading
    from amqpstore_tools.spark.cluster import cluster

    name = QueueName(arguments.vhost, arguments.queue)
    at_ms = arguments.at_ms
    archived = reading.find(arguments.out, name, least_ms=None, most_ms=at_ms)
    with cluster(arguments.master, "as-of") as spark:
        frame = reading.held_at(spark.spark, archived.paths, at_ms).cache()
        total = frame.count()
        if arguments.export:
            _write(arguments.export, reading.lines(frame, name), name)
        rows = frame.limit(max(arguments.limit, 0)).collect()
    result = {
        "queue": arguments.queue,
        "vhost": arguments.vhost,
        "at_ms": at_ms,
        "messages": total,
        "archived_from_ms": archived.from_ms,
        "archived_to_ms": archived.to_ms,
        "missing_lsns": archived.missing,
        "file": arguments.export,
        "first": [_plain(row) for row in rows],
    }
    write_json(result) if arguments.json else _print(result)


def _write(path: str, lines: Any, name: QueueName) -> None:
    with naming(path), open(path, "wb") as file:
        writer = LineWriter(file, "msgpack" if path.endswith(".msgpack") else "jsonl")
        writer.write(ExportLine("", datetime.now(UTC).isoformat(timespec="seconds")))
        writer.write(QueueLine(QueueKey(name.vhost, name.queue), None))
        messages = unreadable = 0
        for line in lines:
            if line is None:
                unreadable += 1
            else:
                messages += 1
                writer.write(line)
        writer.write(EndLine(messages, unreadable))


def _plain(row: Any) -> dict[str, Any]:
    return {
        "position": row["position"],
        "level": row["level"],
        "published_ms": row["time_ms"],
        "was_held": row["event"] == "held",
        "exchange": row["exchange"],
        "routing_key": row["routing_key"],
        "body_bytes": None if row["body"] is None else len(row["body"]),
        "delivery_count": row["delivery_count"],
    }


def _print(result: dict[str, Any]) -> None:
    console = terminal.console()
    at_ms = result["at_ms"]
    name = terminal.shown(f"{result['vhost']}/{result['queue']}".replace("//", "/"))
    console.print(f"{name} held {counted(result['messages'], 'message')} at {when(at_ms)}")
    if not result["archived_from_ms"] <= at_ms <= result["archived_to_ms"]:
        span = f"{when(result['archived_from_ms'])} to {when(result['archived_to_ms'])}"
        console.print(f"  the archive is of {span}: it has no events outside that span")
    if missing := result["missing_lsns"]:
        console.print(f"  {missing:,} batches of the log are not in it: some may be missing")
    if result["first"]:
        table = terminal.table(
            *("position", "published", "exchange", "routing key", "bytes", "delivered"),
            right="position bytes delivered",
        )
        for message in result["first"]:
            table.add_row(
                f"{message['position']:,}",
                f"before {when(message['published_ms'])}"
                if message["was_held"]
                else when(message["published_ms"]),
                terminal.shown(message["exchange"] or "", 40),
                terminal.shown(message["routing_key"] or "", 60),
                "damaged" if message["body_bytes"] is None else f"{message['body_bytes']:,}",
                f"{message['delivery_count']:,}",
            )
        console.print(table)
        if rest := result["messages"] - len(result["first"]):
            console.print(
                f"... {rest:,} more: see --limit, or write all of them with --export FILE"
            )
    if result["file"]:
        console.print(f"written to {terminal.shown(result['file'])}")
