"""The description of the API for OpenAPI, made of the routes when it is first asked for."""

from __future__ import annotations

from collections.abc import Sequence

from amqpstore_server.management.answers import Answer
from amqpstore_server.management.call import Call
from amqpstore_server.management.needs import Needs
from amqpstore_server.management.openapi import description
from amqpstore_server.management.routes import ApiRoute

PATH = "/api/openapi.json"


def routes(others: Sequence[ApiRoute]) -> tuple[ApiRoute, ...]:
    """Return the route that describes the others, and itself."""

    async def openapi(call: Call) -> Answer:
        """Return the description."""
        return await call.json(description((*others, own), call.context.product.version))

    own = ApiRoute("GET", PATH, openapi, "This description", Needs.NOTHING)
    return (own,)
