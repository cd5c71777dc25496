"""`amqpstore exchanges`: where a message would go, and why."""

from __future__ import annotations

import argparse
from typing import Any

from amqpstore_tools.administration.options import (
    add_action,
    add_actions,
    add_vhost,
    ask,
    object_in,
    run_action,
)
from amqpstore_tools.offline.json_output import write_json
from amqpstore_tools.offline.terminal import console, heading, say, shown, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `exchanges`."""
    actions = add_actions(parser)
    action = add_action(
        actions,
        "explain",
        "explain where a message would go, and why; nothing is published",
        _explain,
    )
    action.add_argument(
        "exchange", metavar="EXCHANGE", help="its name, '' for the default exchange"
    )
    action.add_argument("routing_key", metavar="ROUTING_KEY")
    action.add_argument(
        "--headers",
        metavar="HEADERS",
        default="{}",
        help="the headers of the message, as a JSON object",
    )
    action.add_argument(
        "--properties",
        metavar="PROPERTIES",
        default="{}",
        help="its other properties, as a JSON object: message_id, for example",
    )
    add_vhost(action)


def run(arguments: argparse.Namespace) -> int:
    """Run the action. Returns the exit code."""
    return run_action(arguments)


def _explain(arguments: argparse.Namespace) -> None:
    properties = object_in("PROPERTIES", arguments.properties)
    if headers := object_in("HEADERS", arguments.headers):
        properties["headers"] = headers
    found = ask(
        arguments,
        vhost=arguments.vhost,
        exchange=arguments.exchange,
        routing_key=arguments.routing_key,
        properties=properties,
    )
    write_json(found) if arguments.json else _show(found)


def _show(found: dict[str, Any]) -> None:
    if found["refused"]:
        say(f"refused: {found['refused']}")
        return
    for step in found["steps"]:
        _show_step(step, found["steps"])
    if found["matches_left_out"]:
        say(f"... and {found['matches_left_out']} more matches")
    if not found["queues"]:
        say("it goes nowhere: it is returned if it is mandatory, and dropped otherwise")
        return
    out = console()
    out.print(heading(f"Queues: {len(found['queues']) + found['queues_left_out']}"))
    rows = table("queue", "durable", "dead letters go to", wrap="queue")
    for queue in found["queues"]:
        rows.add_row(shown(queue["name"]), str(queue["durable"]).lower(), _dead_letters(queue))
    out.print(rows)


def _show_step(step: dict[str, Any], steps: list[dict[str, Any]]) -> None:
    out = console()
    name = shown(step["exchange"]) or "(the default exchange)"
    way = ""
    if step["by"] == "binding":
        way = f", bound to {shown(steps[step['from']]['exchange'])}"
    elif step["by"] == "alternate":
        way = f", the alternate exchange of {shown(steps[step['from']]['exchange'])}"
    out.print(heading(f"Exchange {name} ({shown(step['type'])}){way}"))
    if not step["matches"]:
        out.print("  nothing matches")
        return
    rows = table("routing key", "binding key", "to", "why", wrap="to why")
    for match in step["matches"]:
        key = "-" if match["binding_key"] is None else shown(match["binding_key"])
        to = f"{match['to']} {shown(match['name'])}"
        to += " (again)" if match["is_repeated"] else ""
        rows.add_row(shown(match["routing_key"]), key, to, shown(match["why"]))
    out.print(rows)


def _dead_letters(queue: dict[str, Any]) -> str:
    exchange = queue["dead_letter_exchange"]
    if exchange is None:
        return "nowhere"
    where = shown(exchange) or "(the default exchange)"
    key = queue["dead_letter_routing_key"]
    return where if key is None else f"{where} with routing key {shown(key)}"
