"""Queues."""

from __future__ import annotations

from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.vhost import VirtualHost
from amqpstore_server.management.answers import Answer
from amqpstore_server.management.call import Call
from amqpstore_server.management.listing import Columns
from amqpstore_server.management.routes import LIST_QUERY, ApiRoute, Needs
from amqpstore_server.management.tables import shown_table

Found = tuple[VirtualHost, Queue]

QUEUE_ROW: Columns[Found] = Columns(
    {
        "name": lambda found: found[1].name,
        "vhost": lambda found: found[0].name,
        "durable": lambda found: found[1].durable,
        "auto_delete": lambda found: found[1].auto_delete,
        "exclusive": lambda found: found[1].owner is not None,
        "arguments": lambda found: shown_table(found[1].arguments),
        "messages_ready": lambda found: found[1].ready_count,
        "consumers": lambda found: len(found[1].consumers),
    }
)


def queues_of(*vhosts: VirtualHost) -> list[Found]:
    """Return the queues of virtual hosts, without the broker's own."""
    return [
        (vhost, queue)
        for vhost in vhosts
        for queue in vhost.queues.values()
        if not queue.is_internal
    ]


async def list_queues(call: Call) -> Answer:
    """Return the queues that the user may see."""
    vhosts = [call.context.broker.vhosts[name] for name in call.identity.visible_vhosts()]
    return await call.listed(queues_of(*vhosts), QUEUE_ROW)


async def list_queues_of_vhost(call: Call) -> Answer:
    """Return the queues of a virtual host."""
    return await call.listed(queues_of(call.vhost), QUEUE_ROW)


ROUTES = (
    ApiRoute("GET", "/api/queues", list_queues, "The queues", query=LIST_QUERY),
    ApiRoute(
        "GET",
        "/api/queues/{vhost}",
        list_queues_of_vhost,
        "The queues of a virtual host",
        Needs.VHOST,
        query=LIST_QUERY,
    ),
)
