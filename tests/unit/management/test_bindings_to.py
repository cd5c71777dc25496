"""Bindings to one destination are found without a walk through those to all others."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from amqpstore_server.broker.exchanges.base import Binding, Destination
from amqpstore_server.broker.exchanges.direct import DirectExchange
from amqpstore_server.management.resources import bindings


@dataclass(eq=False)
class BoundQueue:
    """A queue, of which only a binding is of interest."""

    name: str
    durable: bool = True


class UnwalkedExchange(DirectExchange):
    """An exchange whose bindings may not all be listed."""

    def __init__(self, name: str) -> None:
        super().__init__(
            name,
            durable=True,
            auto_delete=False,
            internal=False,
            arguments={},
            random=lambda: 0.0,
        )

    @property
    def bindings(self) -> list[Binding]:
        raise AssertionError("all bindings were listed")


@pytest.mark.trio
@pytest.mark.parametrize("kind", ["queue", "exchange"])
async def test_only_the_bindings_to_the_destination_are_looked_at(kind: str) -> None:
    source, target = UnwalkedExchange("source"), UnwalkedExchange("target")
    other, queue = BoundQueue("other"), BoundQueue("target")
    vhost: Any = SimpleNamespace(
        name="/",
        exchanges={"source": source, "target": target},
        queues={"other": other, "target": queue},
    )
    destination: Destination = queue if kind == "queue" else target
    for key in ("one", "two"):
        source.bind(Binding(other, key, {}))
        source.bind(Binding(destination, key, {"a": 1}))
    rows = [row for row in await bindings._to(vhost, kind, "target") if row["source"]]
    assert [(row["source"], row["routing_key"]) for row in rows] == [
        ("source", "one"),
        ("source", "two"),
    ]
    assert bindings._arguments(vhost, rows[0]) == {"a": 1}
