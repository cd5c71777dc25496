"""Metrics for Prometheus, and health: for scrapers and load balancers, not part of the API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import wraps
from itertools import chain

from amqpstore_server.management.answers import Answer, Pieces
from amqpstore_server.management.call import Call
from amqpstore_server.management.errors import HttpError
from amqpstore_server.management.needs import Needs
from amqpstore_server.management.routes import ApiRoute
from amqpstore_server.management.steps import InSteps
from amqpstore_server.metrics import health, objects, rabbitmq, store, whole
from amqpstore_server.metrics.exposition import MetricsFormat


async def get_metrics(call: Call) -> Answer:
    """Return the metrics of the broker as a whole."""
    source, written = call.context.metrics, _format(call)
    return await _answer(written, map(written.family, whole.families(source)))


async def get_per_object(call: Call) -> Answer:
    """Return the metrics of each queue, exchange, connection and channel, and all others but the
    sums of these.
    """
    source, written = call.context.metrics, _format(call)
    others = map(written.family, whole.without_sums(source))
    return await _answer(written, chain(others, objects.per_object(source, written)))


async def get_detailed(call: Call) -> Answer:
    """Return the metrics of the families that are asked for, of some virtual hosts or of all, and
    which families there are not.
    """
    query, written = call.request.query_params, _format(call)
    vhosts, names = query.getlist("vhost") or None, query.getlist("family")
    source = call.context.metrics
    of_node = rabbitmq.of_node(source, names, objects.DETAILED)
    unknown = store.unknown_families(set(names) - rabbitmq.NODE_FAMILIES - objects.GROUPS.keys())
    of_objects = objects.detailed(source, names, vhosts, written)
    return await _answer(written, chain(map(written.family, chain(of_node, unknown)), of_objects))


def _format(call: Call) -> MetricsFormat:
    return MetricsFormat(call.request.headers.get("accept", ""))


async def _answer(written: MetricsFormat, texts: Iterable[bytes]) -> Answer:
    steps = InSteps()
    pieces = []
    for piece in texts:
        pieces.append(piece)
        await steps.pause()
    return Pieces([*pieces, written.end], 200, {}, written.content_type)


async def get_live(call: Call) -> Answer:
    """Answer, as the broker lives."""
    return await call.json({"status": "ok"})


async def get_ready(call: Call) -> Answer:
    """Return whether clients should be sent to the broker, 503 if not, and what else is wrong."""
    context = call.context
    found = health.troubles(context.metrics, is_stopping=context.stopping.is_set())
    return await _told(
        call,
        found,
        alarms=health.alarms(context.metrics),
        unreadable_messages=health.unreadable_messages(context.metrics),
    )


async def get_alarms(call: Call) -> Answer:
    """Return whether publishers are blocked: 503 if so."""
    alarms = health.alarms(call.context.metrics)
    found = [f"publishers are blocked: {call.context.alarms.reason}"] if alarms else []
    return await _told(call, found, alarms=alarms)


async def get_damage(call: Call) -> Answer:
    """Return whether all messages can be read, and all queues served: 503 if not."""
    source = call.context.metrics
    unreadable, set_aside = health.unreadable_messages(source), health.queues_set_aside(source)
    found = []
    if unreadable:
        found.append(f"{unreadable} messages cannot be read")
    if set_aside:
        found.append(f"{set_aside} queues cannot be served")
    return await _told(call, found, unreadable_messages=unreadable, queues_set_aside=set_aside)


async def _told(call: Call, troubles: list[str], **more: object) -> Answer:
    if troubles:
        return await call.json({"status": "failed", "reason": "; ".join(troubles), **more}, 503)
    return await call.json({"status": "ok", **more})


async def get_leader(call: Call) -> Answer:
    """Return whether this broker leads: 503 when it stops. A single node always leads, and a
    follower passes requests on to the leader, which answers 503 for it.
    """
    if call.is_passed_on:
        return await call.json({"status": "failed", "reason": _follows(call)}, 503)
    if call.context.stopping.is_set():
        return await call.json({"status": "failed", "reason": "the broker stops"}, 503)
    return await call.json({"status": "ok"})


def _follows(call: Call) -> str:
    return f"this member follows: {call.context.node} leads"


def _own(handler: Callable[[Call], Awaitable[Answer]]) -> Callable[[Call], Awaitable[Answer]]:
    """Refuse what follows through another member: those are not its metrics."""

    @wraps(handler)
    async def answer(call: Call) -> Answer:
        if call.is_passed_on:
            raise HttpError(503, "service_unavailable", _follows(call))
        return await handler(call)

    return answer


def _routes(needs: Needs) -> tuple[ApiRoute, ...]:
    text = "text/plain"
    return (
        ApiRoute("GET", "/metrics", _own(get_metrics), "Metrics", needs, media_type=text),
        ApiRoute(
            "GET",
            "/metrics/per-object",
            _own(get_per_object),
            "Metrics of each queue, exchange, connection and channel",
            needs,
            media_type=text,
        ),
        ApiRoute(
            "GET",
            "/metrics/detailed",
            _own(get_detailed),
            "Metrics of some families and virtual hosts",
            needs,
            query=("family", "vhost"),
            media_type=text,
        ),
        ApiRoute("GET", "/health/live", get_live, "Whether it lives", Needs.NOTHING),
        *(
            ApiRoute("GET", f"/health/{name}", handler, summary, Needs.NOTHING, refusals=(503,))
            for name, handler, summary in (
                ("ready", get_ready, "Whether clients should be sent to it"),
                ("alarms", get_alarms, "Whether publishers are blocked"),
                ("damage", get_damage, "Whether all messages can be read"),
                ("leader", get_leader, "Whether it leads"),
            )
        ),
    )


ROUTES = _routes(Needs.MONITORING)
"""The routes of the management API's addresses."""

OPEN_ROUTES = _routes(Needs.NOTHING)
"""The routes of the addresses in `metrics_listen`, which ask for no login."""
