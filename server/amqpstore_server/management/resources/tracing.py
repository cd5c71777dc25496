"""Routes of messages, ahead and back: where one would go, and where one came from. See
`broker.explaining`, `message_trail`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from amqpstore_server.administration.messages import Messages
from amqpstore_server.administration.provenance import of_message, of_position
from amqpstore_server.broker.routing.routing import DEFAULT_EXCHANGE
from amqpstore_server.management.answers import Answer
from amqpstore_server.management.call import Call
from amqpstore_server.management.errors import bad_request
from amqpstore_server.management.needs import Needs
from amqpstore_server.management.routes import ApiRoute

_DEFAULT = "amq.default"
"""How the default exchange is called in paths."""


class Explained(msgspec.Struct, kw_only=True):
    """The message that is asked about; `headers` may be among the `properties` or beside them."""

    routing_key: str = ""
    headers: dict[str, Any] | None = None
    properties: dict[str, Any] = {}


async def explain_route(call: Call) -> Answer:
    """Explain where a message would go."""
    asked = await call.body(Explained)
    vhost, name = call.path["vhost"], call.path["exchange"]
    exchange = DEFAULT_EXCHANGE if name == _DEFAULT else name
    properties = dict(asked.properties)
    if asked.headers is not None:
        properties["headers"] = asked.headers
    administration = call.context.administration
    return await call.json(administration.explain(vhost, exchange, asked.routing_key, properties))


async def show_provenance(call: Call) -> Answer:
    """Return where a message of a queue came from; the user must be allowed to read the queue."""
    vhost, name = call.path["vhost"], call.path["name"]
    access = call.identity.access(vhost)
    queue = Messages(call.context.broker, access, call.by).queue(vhost, name)
    access.check("read", "queue", name)
    work = of_position(call.context.administration, queue, call.path["position"])
    return await call.json(await call.carry_out(work))


async def show_provenance_of_id(call: Call) -> Answer:
    """Return where the message of an id came from, in whichever virtual host it was."""
    text = call.path["id"]
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise bad_request(f"'{text[:40]}' is not the id of a message")
    work = of_message(call.context.administration, int(text))
    return await call.json(await call.carry_out(work))


ROUTES = (
    ApiRoute(
        "POST",
        "/api/exchanges/{vhost}/{exchange}/explain",
        explain_route,
        "Where a message would go, and why",
        Needs.VHOST,
        body=Explained,
    ),
    ApiRoute(
        "GET",
        "/api/queues/{vhost}/{name}/messages/{position}/provenance",
        show_provenance,
        "Where a message came from, and what became of it",
        Needs.VHOST,
    ),
    ApiRoute(
        "GET",
        "/api/messages/{id}/provenance",
        show_provenance_of_id,
        "The same, of a message by its id in the store",
        Needs.ADMINISTRATOR,
    ),
)
