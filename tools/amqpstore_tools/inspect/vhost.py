"""One virtual host: its exchanges, bindings, policies and queues."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from amqpstore_tools.inspect.overview import exchange_facts, queue_facts
from amqpstore_tools.inspect.page import first, more, show_queues
from amqpstore_tools.inspect.usage import PublishTimes
from amqpstore_tools.offline.contents import plain
from amqpstore_tools.offline.exits import NotFoundError
from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.offline.terminal import console, counted, heading, shown, table

Facts = dict[str, Any]


def facts(image: StoreImage, name: str) -> Facts:
    """Return the facts of a virtual host. Raises: NotFoundError, OSError."""
    vhosts = image.rows("vhosts")
    if name not in vhosts:
        there = ", ".join(shown(one) for one in sorted(vhosts)) or "none that can be read"
        raise NotFoundError(f"there is no virtual host {shown(name)}; there is: {there}")
    bindings = _of(image, "bindings", name)
    exchanges = [one for one in exchange_facts(image) if one.get("vhost") == name]
    queues = [one for one in image.queues if one.vhost == name and not one.is_hidden]
    return {
        "directory": image.directory,
        "vhost": name,
        "definition": plain(vhosts[name]),
        "exchanges": exchanges,
        "bindings": sorted(bindings, key=_order),
        "policies": _of(image, "policies", name),
        "taken_ms": image.taken_ms,
        "queues": queue_facts(queues, PublishTimes(image.segments)),
    }


def _of(image: StoreImage, name: str, vhost: str) -> list[Facts]:
    """Return the rows of a table that belong to a virtual host."""
    rows = [plain(row) for row in image.rows(name).values() if isinstance(row, Mapping)]
    return [row for row in rows if row.get("vhost") == vhost]


def _order(binding: Facts) -> tuple[str, str, str, str]:
    names = ("exchange", "to", "name", "routing_key")
    exchange, to, name, key = (str(binding.get(one)) for one in names)
    return exchange, to, name, key


def show(facts: Facts, most: int) -> None:
    """Print the facts. Args: most, rows of a table, 0 is all."""
    from rich.text import Text

    out = console()
    out.print(Text(f"Virtual host {shown(facts['vhost'])}", "bold"))
    out.print(
        f"  {counted(len(facts['exchanges']), 'exchange')} of its own, "
        f"{counted(len(facts['bindings']), 'binding')}, {counted(len(facts['policies']), 'policy')}"
    )
    if facts["exchanges"]:
        out.print(heading("Exchanges"))
        rows = table("exchange", "type", "durable", "arguments", wrap="exchange arguments")
        for row in first(facts["exchanges"], most):
            rows.add_row(
                shown(row.get("name")),
                shown(row.get("type"), 24),
                "yes" if row.get("durable") else "no",
                _said(row.get("arguments")),
            )
        out.print(rows)
        more(facts["exchanges"], most)
    if facts["bindings"]:
        out.print(heading("Bindings (each queue is bound to the default exchange, too)"))
        names = ("exchange", "routing key", "to", "arguments")
        rows = table(*names, wrap=" ".join(names))
        for row in first(facts["bindings"], most):
            rows.add_row(
                shown(row.get("exchange")),
                shown(row.get("routing_key")),
                f"{shown(row.get('to'))} {shown(row.get('name'))}",
                _said(row.get("arguments")),
            )
        out.print(rows)
        more(facts["bindings"], most)
    for policy in first(facts["policies"], most):
        out.print(f"  policy {shown(policy.get('name'))}: {_said(policy)}")
    show_queues(facts["queues"], facts["taken_ms"], most)


def _said(value: Any) -> str:
    return shown(json.dumps(value, ensure_ascii=False)) if value else ""
