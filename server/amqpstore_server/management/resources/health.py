"""Health checks: 200 if all is well, and 503 with a reason if not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import trio

from amqpstore import Message
from amqpstore_server.broker.channels.channel import Channel
from amqpstore_server.broker.channels.confirms import Flags
from amqpstore_server.broker.channels.outlet import ClosedOutlet
from amqpstore_server.broker.messages.envelope import parse_envelope
from amqpstore_server.broker.rules.settings import QUORUM, is_quorum
from amqpstore_server.management.answers import Answer
from amqpstore_server.management.call import Call
from amqpstore_server.management.errors import HttpError, bad_request
from amqpstore_server.management.listing import pattern_of
from amqpstore_server.management.needs import Needs
from amqpstore_server.management.node import protocol_names
from amqpstore_server.management.routes import ApiRoute
from amqpstore_server.management.topology import carry_out, topology_of
from amqpstore_server.metrics import health
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.content import BasicProperties, encode_properties

_ALIVENESS_QUEUE = "aliveness-test"
_ALIVENESS_S = 10.0
_DAYS = {"days": 1, "weeks": 7, "months": 30, "years": 365}
_ALIASES = {"amqp091": "amqp", "amqp0.9.1": "amqp", "amqp/ssl": "amqps", "tls": "amqps"}
_MAX_DAYS = 100_000


async def _answer(call: Call, failure: str = "", **more: Any) -> Answer:
    if not failure:
        return await call.json({"status": "ok", **more})
    return await call.json({"status": "failed", "reason": failure, **more}, 503)


async def alarms(call: Call) -> Answer:
    """Tell whether publishers are blocked."""
    context = call.context
    short = health.alarms(context.metrics)
    if not short:
        return await _answer(call)
    found = [{"node": context.node, "resource": name} for name in short]
    return await _answer(call, "There are alarms in effect in the cluster", alarms=found)


async def certificates(call: Call) -> Answer:
    """Tell whether no certificate expires within some time."""
    days = _DAYS.get(call.path["unit"])
    if days is None:
        raise bad_request("Time unit not recognised. Supported units: days, weeks, months, years.")
    within = call.path["within"]
    if not (within.isascii() and within.isdigit() and len(within) < 7):
        raise bad_request("Invalid expiration period")
    until = datetime.now(UTC) + timedelta(days=min(days * int(within), _MAX_DAYS))
    known = call.context.certificates
    expiring = [
        {"node": call.context.node, "cert_path": path, "not_after": expires.isoformat()}
        for path, expires in (known.expiries() if known else [])
        if expires <= until
    ]
    if not expiring:
        return await _answer(call)
    return await _answer(call, "Certificates expiring", expired=expiring)


async def port(call: Call) -> Answer:
    """Tell whether the node listens on a port."""
    text = call.path["port"]
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        raise bad_request("Invalid port")
    ports = sorted({one.port for one in call.context.listeners})
    if int(text) in ports:
        return await _answer(call, port=int(text))
    return await _answer(call, "No active listener", missing=int(text), ports=ports)


async def protocol(call: Call) -> Answer:
    """Tell whether the node listens for a protocol."""
    asked = call.path["protocol"].lower()
    name = _ALIASES.get(asked, asked)
    names = protocol_names(call.context)
    if name in names:
        return await _answer(call, protocol=name)
    return await _answer(call, "No active listener", missing=asked, protocols=names)


async def virtual_hosts(call: Call) -> Answer:
    """Tell whether all queues of all virtual hosts are served."""
    found = sorted({vhost for vhost, _ in call.context.broker.set_aside})
    if not found:
        return await _answer(call)
    reason = "Some virtual hosts have queues that are set aside: see the log"
    return await _answer(call, reason, **{"virtual-hosts": found})


async def quorum(call: Call) -> Answer:
    """Tell whether a group of replicas could do without this node, its leader."""
    figures = call.context.metrics.replication()
    if figures is None:
        return await _answer(call, reason="single node cluster")
    others, needed = figures.in_sync - 1, figures.min_in_sync
    if others >= needed:
        return await _answer(call)
    reason = f"without this node {others} replicas are in sync, and at least {needed} have to be"
    return await _answer(call, reason)


async def quorum_queues(call: Call) -> Answer:
    """Tell whether somebody leads all quorum queues of a virtual host, or of all of them: who leads
    the group leads each, but for those that are set aside.
    """
    pattern = pattern_of(call.path.get("pattern", ".*"))
    vhosts = [call.vhost] if "vhost" in call.path else call.context.broker.vhosts.values()
    found = [
        {"name": queue.name, "virtual_host": vhost.name, "type": QUORUM}
        for vhost in vhosts
        if call.identity.may_see(vhost.name)
        for queue in vhost.queues.values()
        if queue.is_set_aside and is_quorum(queue.arguments) and pattern.matches(queue.name)
    ]
    if not found:
        return await _answer(call)
    return await _answer(call, "Detected quorum queues without an elected leader", queues=found)


async def metadata_store(call: Call) -> Answer:
    """Tell that the definitions are read: before that the API does not listen."""
    return await _answer(call)


async def metadata(call: Call) -> Answer:
    """Tell whether there is at least a virtual host."""
    if call.context.broker.vhosts:
        return await _answer(call)
    return await _answer(call, "there are no virtual hosts")


async def in_service(call: Call) -> Answer:
    """Tell whether the node serves clients and does not stop, as `/health/ready` does."""
    context = call.context
    found = health.troubles(context.metrics, is_stopping=context.stopping.is_set())
    return await _answer(call, "; ".join(found))


async def connections(call: Call) -> Answer:
    """Tell whether further connections are accepted."""
    limit = call.context.config().max_connections
    count = sum(1 for _ in call.context.connections())
    if limit and count >= limit:
        return await _answer(call, "node connection limit is reached", connections=count)
    return await _answer(call, connections=count, limit=limit or "infinity")


async def aliveness(call: Call) -> Answer:
    """Declare a queue, publish a message to it, and get it back."""
    vhost = call.vhost
    if call.context.alarms.is_raised:
        return await _answer(call, f"publishers are blocked: {call.context.alarms.reason}")
    if call.request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise HttpError(403, "forbidden", "this request was sent by a page of another site")
    await carry_out(call, methods.QueueDeclare(queue=_ALIVENESS_QUEUE))
    queue = topology_of(call).queue(_ALIVENESS_QUEUE, "read")
    call.identity.access(vhost.name).check("write", "exchange", "")
    properties = BasicProperties()
    envelope = parse_envelope("", _ALIVENESS_QUEUE, encode_properties(properties), properties)
    channel = Channel(vhost, object(), ClosedOutlet())
    try:
        channel.publish(envelope, [Message(envelope, b"test_message")], Flags())
        with trio.move_on_after(_ALIVENESS_S):
            while (fetched := channel.get(queue, no_ack=True)) is None:
                call.context.wake()
                await trio.sleep(0.01)
    finally:
        channel.close()
        call.context.wake()
    if fetched is None:
        return await _answer(call, "the message did not arrive")
    return await _answer(call)


_CHECKS = "/api/health/checks/"
_CRITICAL = "node-is-{}-critical"
_LEADERS = "quorum-queues-without-elected-leaders"
_METADATA = "metadata-store/initialized"


def _check(
    path: str,
    handler: Callable[[Call], Awaitable[Answer]],
    summary: str,
    needs: Needs = Needs.MANAGEMENT,
) -> ApiRoute:
    return ApiRoute("GET", path, handler, summary, needs, refusals=(503,))


ROUTES = (
    _check(_CHECKS + "alarms", alarms, "Whether publishers are blocked"),
    _check(_CHECKS + "local-alarms", alarms, "Whether publishers are blocked"),
    _check(
        _CHECKS + "certificate-expiration/{within}/{unit}",
        certificates,
        "Whether no certificate expires soon",
    ),
    _check(_CHECKS + "port-listener/{port}", port, "Whether a port is listened on"),
    _check(_CHECKS + "protocol-listener/{protocol}", protocol, "Whether one can connect"),
    _check(_CHECKS + "virtual-hosts", virtual_hosts, "Whether all queues are served"),
    *(
        _check(_CHECKS + _CRITICAL.format(kind), quorum, "Whether replicas can do without it")
        for kind in ("quorum", "mirror-sync")
    ),
    *(
        _check(
            f"{_CHECKS}{_LEADERS}/{where}{pattern}", quorum_queues, "Whether they are led", needs
        )
        for where, needs in (("all-vhosts", Needs.MANAGEMENT), ("vhost/{vhost}", Needs.VHOST))
        for pattern in ("", "/pattern/{pattern}")
    ),
    _check(_CHECKS + _METADATA, metadata_store, "Whether the definitions are read"),
    _check(f"{_CHECKS}{_METADATA}/with-data", metadata, "Whether there is a virtual host"),
    _check(_CHECKS + "is-in-service", in_service, "Whether clients are served"),
    _check(_CHECKS + "ready-to-serve-clients", in_service, "Whether clients are served"),
    _check(_CHECKS + "below-node-connection-limit", connections, "Whether there is room"),
    _check("/api/healthchecks/node", alarms, "Whether the node answers, without alarms"),
    _check("/api/healthchecks/node/{node}", alarms, "Whether the node answers, without alarms"),
    _check(
        "/api/aliveness-test/{vhost}",
        aliveness,
        "Whether a message can be published and got",
        Needs.VHOST,
    ),
)
