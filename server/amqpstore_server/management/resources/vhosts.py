"""Virtual hosts."""

from __future__ import annotations

from amqpstore_server.broker.vhost import VirtualHost
from amqpstore_server.management.answers import Answer
from amqpstore_server.management.call import Call
from amqpstore_server.management.listing import Columns
from amqpstore_server.management.routes import LIST_QUERY, ApiRoute, Needs

VHOST_ROW: Columns[VirtualHost] = Columns(
    {
        "name": lambda vhost: vhost.name,
        "description": lambda _: "",
        "tags": lambda _: [],
        "metadata": lambda _: {"description": "", "tags": []},
        "tracing": lambda vhost: vhost.firehose.is_on,
        "cluster_state": lambda _: {},
    }
)


async def list_vhosts(call: Call) -> Answer:
    """Return the virtual hosts that the user may see."""
    vhosts = [call.context.broker.vhosts[name] for name in call.identity.visible_vhosts()]
    return await call.listed(vhosts, VHOST_ROW, ("name",))


async def get_vhost(call: Call) -> Answer:
    """Return a virtual host."""
    return await call.row(call.vhost, VHOST_ROW)


ROUTES = (
    ApiRoute("GET", "/api/vhosts", list_vhosts, "The virtual hosts", query=LIST_QUERY),
    ApiRoute("GET", "/api/vhosts/{vhost}", get_vhost, "A virtual host", Needs.VHOST),
)
