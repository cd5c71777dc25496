"""Explains where a message would go, and why.

It asks the router that publishes ask, so it says what would happen. Nothing is published, and
nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amqpstore_server.broker.errors import AccessRefusedError, NotFoundError
from amqpstore_server.broker.exchanges.base import Destination, Exchange
from amqpstore_server.broker.exchanges.delayed import DELAY_HEADER, delay_ms
from amqpstore_server.broker.exchanges.replay import REPLAY_EXCHANGE
from amqpstore_server.broker.messages.envelope import parse_envelope
from amqpstore_server.broker.queues.kinds import DelayQueue
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.routing.routing import DEFAULT_EXCHANGE, Router, RouteStep
from amqpstore_server.protocol.bounds import check_fields
from amqpstore_server.protocol.content import (
    BasicProperties,
    decode_properties,
    edit_properties,
    encode_properties,
)

MAX_MATCHES = 1000
MAX_QUEUES = 1000
"""How many matches and queues an explanation has. What is left out is counted."""

Explanation = dict[str, Any]
"""An explanation as JSON. `steps` are the exchanges on the way, each after the one that led to it:

- `exchange`, `type`; `from` is the number of the step that led here and `by` is "binding",
  "alternate" or, for the first one, "publish";
- `matches`, what leads on: `routing_key`, `to` ("queue" or "exchange") and `name`; `binding_key`
  and `arguments` of the binding, None if it is none; `why`; `is_repeated`, if another match led
  there before;
- `alternate`, the exchange that gets the message because nothing matches here; empty if none does.

`queues` get the message, each once; `refused` is the error that a publisher would get instead,
empty if there is none. A message that is not `is_routed` is returned if it is mandatory, else
dropped. `matches_left_out` and `queues_left_out` are how many there are beyond the limits.
"""


def explain(
    router: Router, exchange: str, routing_key: str, properties: BasicProperties
) -> Explanation:
    """Explain where a message would go.

    Raises: PreconditionFailedError (CC or BCC are malformed), ValueError (a property that cannot be
    encoded, or too many headers).
    """
    check_fields("headers", properties.headers or {})
    raw = encode_properties(properties)
    # As they would arrive: a number may be encoded as another type than it was given as.
    arrived = decode_properties(raw)
    envelope = parse_envelope(exchange, routing_key, raw, arrived)
    explanation: Explanation = {
        "vhost": router.vhost,
        "exchange": exchange,
        "routing_keys": list(envelope.address[1]),
        "refused": _why_refused(router, exchange),
        "steps": [],
        "queues": [],
        "is_routed": False,
        "matches_left_out": 0,
        "queues_left_out": 0,
    }
    if explanation["refused"]:
        return explanation
    route, steps = router.traced_route(envelope, arrived)
    _add_steps(explanation, steps, arrived)
    if exchange == DEFAULT_EXCHANGE:
        explanation["steps"] = [_default_step(envelope.address[1], route.queues)]
    explanation["queues"] = [_queue(queue) for queue in route.queues[:MAX_QUEUES]]
    explanation["queues_left_out"] = max(len(route.queues) - MAX_QUEUES, 0)
    explanation["is_routed"] = route.is_routed
    for queue, row in zip(route.queues[:MAX_QUEUES], explanation["queues"], strict=False):
        if isinstance(queue, DelayQueue) and queue.exchange is not None:
            waited = edit_properties(raw, headers={DELAY_HEADER: -delay_ms(arrived)})
            later = router.route_from(queue.exchange, envelope, decode_properties(waited))
            row["later"] = [one.name for one in later.queues[:MAX_QUEUES]]
    return explanation


def _why_refused(router: Router, exchange: str) -> str:
    if exchange == REPLAY_EXCHANGE:
        return (
            f"a publish to '{REPLAY_EXCHANGE}' is a request to replay a history: it is not routed"
        )
    try:
        router.check(exchange)
    except (NotFoundError, AccessRefusedError) as error:
        return str(error)
    return ""


def _add_steps(
    explanation: Explanation, steps: list[RouteStep], properties: BasicProperties
) -> None:
    # The first exchange that names another one is the one that led there: see
    # `Router._searching_from`.
    sources: dict[str, tuple[int, str]] = {}
    seen: set[Destination] = set()
    room = MAX_MATCHES
    for number, step in enumerate(steps):
        source, by = sources.get(step.exchange.name, (None, "publish"))
        matches: list[dict[str, Any]] = []
        for key, destination in _destinations(step):
            if isinstance(destination, Exchange):
                sources.setdefault(destination.name, (number, "binding"))
            if len(matches) >= room:
                explanation["matches_left_out"] += 1
                continue
            for match in _matches(step.exchange, key, destination, properties):
                matches.append({**match, "is_repeated": destination in seen})
                seen.add(destination)
        room -= len(matches)
        if step.alternate is not None:
            sources.setdefault(step.alternate.name, (number, "alternate"))
        explanation["steps"].append(
            {
                "exchange": step.exchange.name,
                "type": step.exchange.type,
                "from": source,
                "by": by,
                "matches": matches,
                "alternate": step.alternate.name if step.alternate else "",
            }
        )


def _destinations(step: RouteStep) -> Iterator[tuple[str, Queue | Exchange]]:
    for key, destinations in step.found:
        for destination in dict.fromkeys(destinations):
            if isinstance(destination, (Queue, Exchange)) and not destination.is_deleted:
                yield key, destination


def _matches(
    exchange: Exchange, key: str, destination: Queue | Exchange, properties: BasicProperties
) -> Iterator[dict[str, Any]]:
    to = "exchange" if isinstance(destination, Exchange) else "queue"
    where = {"routing_key": key, "to": to, "name": destination.name}
    if destination is exchange.own_queue:
        yield {**where, "binding_key": None, "arguments": None, "why": _kept(properties)}
    for binding in exchange.bindings_to(destination):
        if why := exchange.why(binding, key, properties):
            yield {
                **where,
                "binding_key": binding.routing_key,
                "arguments": dict(binding.arguments),
                "why": why,
            }


def _kept(properties: BasicProperties) -> str:
    if delay := delay_ms(properties):
        return f"it waits {delay} ms in this queue of the exchange before it is routed"
    return "the exchange keeps its last messages in this queue"


def _default_step(keys: tuple[str, ...], queues: list[Queue]) -> dict[str, Any]:
    names = {queue.name for queue in queues}
    return {
        "exchange": DEFAULT_EXCHANGE,
        "type": "direct",
        "from": None,
        "by": "publish",
        "matches": [
            {
                "routing_key": key,
                "to": "queue",
                "name": key,
                "binding_key": key,
                "arguments": None,
                "why": "the default exchange leads to the queue of that name",
                "is_repeated": False,
            }
            for key in list(dict.fromkeys(keys))[:MAX_MATCHES]
            if key in names
        ],
        "alternate": "",
    }


def _queue(queue: Queue) -> dict[str, Any]:
    settings = queue.settings
    return {
        "name": queue.name,
        "durable": queue.durable,
        "is_own": queue.is_internal,
        "overflow": settings.overflow if settings.is_limited else None,
        "dead_letter_exchange": settings.dead_letter_exchange,
        "dead_letter_routing_key": settings.dead_letter_routing_key,
    }
