"""Virtual hosts: list, add, describe, delete."""

from __future__ import annotations

import msgspec

from amqpstore_server.administration.definitions import VirtualHostDefinition
from amqpstore_server.broker.monitoring.departures import dead_lettered, labelled, reasons_of_all
from amqpstore_server.broker.rules.settings import CLASSIC, DEFAULT_QUEUE_TYPE, PROTECTED
from amqpstore_server.broker.vhost import VirtualHost
from amqpstore_server.management.answers import Answer, created, no_content
from amqpstore_server.management.call import Call
from amqpstore_server.management.errors import bad_request
from amqpstore_server.management.listing import Columns
from amqpstore_server.management.needs import Needs
from amqpstore_server.management.routes import LIST_QUERY, ApiRoute

_QUERY = (*LIST_QUERY, "msg_rates_age", "msg_rates_incr", "lengths_age", "lengths_incr")


class VhostBody(msgspec.Struct):
    """The description of a virtual host, and whether its messages are traced. RabbitMQ spells
    `default_queue_type` in two ways.
    """

    description: str | None = None
    tags: str | list[str] | None = None
    tracing: bool | None = None
    default_queue_type: str | None = None
    defaultqueuetype: str | None = None
    protected_from_deletion: bool | None = None


def vhost_columns(call: Call) -> Columns[VirtualHost]:
    """Return the columns of virtual hosts."""
    statistics, ranges, node = call.context.statistics, call.ranges, call.context.node
    return Columns(
        {
            "name": lambda vhost: vhost.name,
            "description": lambda vhost: vhost.metadata.get("description", ""),
            "tags": lambda vhost: vhost.metadata.get("tags", []),
            "default_queue_type": lambda vhost: vhost.metadata.get(DEFAULT_QUEUE_TYPE, CLASSIC),
            PROTECTED: lambda vhost: bool(vhost.metadata.get(PROTECTED)),
            "metadata": lambda vhost: {"description": "", "tags": [], **vhost.metadata},
            "tracing": lambda vhost: vhost.firehose.is_on,
            "messages_left": lambda vhost: labelled(
                reasons_of_all(vhost.departures, vhost.counters)
            ),
            "messages_dead_lettered": lambda vhost: labelled(dead_lettered(vhost.departures)),
            "cluster_state": lambda _: {node: "running"},
        },
        lambda vhost: statistics.vhost(vhost, ranges),
    )


async def list_vhosts(call: Call) -> Answer:
    """Return the virtual hosts that the user may see."""
    vhosts = [call.context.broker.vhosts[name] for name in call.identity.visible_vhosts()]
    return await call.listed(vhosts, vhost_columns(call), ("name",))


async def get_vhost(call: Call) -> Answer:
    """Return a virtual host."""
    return await call.row(call.vhost, vhost_columns(call))


async def put_vhost(call: Call) -> Answer:
    """Add a virtual host, with all permissions for whoever adds it, or describe one."""
    body = await call.body(VhostBody)
    name = call.path["vhost"]
    administration = call.context.administration
    present = call.context.broker.vhosts.get(name)
    before = present.metadata if present else {}
    # What the body does not say stays as it is.
    try:
        asked = VirtualHostDefinition(
            name=name,
            description=body.description or before.get("description", ""),
            listed_tags=before.get("tags", []) if body.tags is None else body.tags,
            default_queue_type=(
                body.default_queue_type or body.defaultqueuetype or before.get(DEFAULT_QUEUE_TYPE)
            ),
            protected_from_deletion=bool(
                before.get(PROTECTED)
                if body.protected_from_deletion is None
                else body.protected_from_deletion
            ),
        )
        metadata = asked.all_metadata
    except ValueError as error:
        raise bad_request(str(error)) from None
    if present is None:
        owner = call.identity.user if call.identity.is_internal else ""
        await call.carry_out(administration.add_vhost(call.by, asked, owner))
    elif metadata != before:
        await call.carry_out(administration.describe_vhost(call.by, name, metadata))
    if body.tracing is not None:
        await call.carry_out(administration.set_tracing(call.by, name, on=body.tracing))
    return created() if present is None else no_content()


async def delete_vhost(call: Call) -> Answer:
    """Delete a virtual host with everything in it."""
    await call.carry_out(call.context.administration.delete_vhost(call.by, call.path["vhost"]))
    return no_content()


async def protect_vhost(call: Call) -> Answer:
    """Protect a virtual host from deletion."""
    return await _protect(call, on=True)


async def unprotect_vhost(call: Call) -> Answer:
    """Let a virtual host be deleted again."""
    return await _protect(call, on=False)


async def _protect(call: Call, *, on: bool) -> Answer:
    administration = call.context.administration
    await call.carry_out(administration.protect_vhost(call.by, call.path["vhost"], on=on))
    return no_content()


async def start_vhost(call: Call) -> Answer:
    """Accept what restarts a failed virtual host: here none can fail alone."""
    call.context.administration.changes.check_vhost(call.path["vhost"])
    return call.without_effect("a virtual host cannot fail alone, and this one is running")


_ONE = "/api/vhosts/{vhost}"

ROUTES = (
    ApiRoute("GET", "/api/vhosts", list_vhosts, "The virtual hosts", query=_QUERY),
    ApiRoute("GET", _ONE, get_vhost, "A virtual host", Needs.VHOST),
    ApiRoute(
        "PUT",
        _ONE,
        put_vhost,
        "Add a virtual host",
        Needs.ADMINISTRATOR,
        VhostBody,
        statuses=(201, 204),
    ),
    ApiRoute(
        "POST",
        f"{_ONE}/deletion/protection",
        protect_vhost,
        "Protect a virtual host from deletion",
        Needs.ADMINISTRATOR,
        statuses=(204,),
    ),
    ApiRoute(
        "DELETE",
        f"{_ONE}/deletion/protection",
        unprotect_vhost,
        "Let a virtual host be deleted again",
        Needs.ADMINISTRATOR,
        statuses=(204,),
    ),
    ApiRoute(
        "DELETE", _ONE, delete_vhost, "Delete a virtual host", Needs.ADMINISTRATOR, statuses=(204,)
    ),
    ApiRoute(
        "POST",
        _ONE + "/start/{node}",
        start_vhost,
        "Accepted without effect, which is noted",
        Needs.ADMINISTRATOR,
        statuses=(204,),
    ),
)
