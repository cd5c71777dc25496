"""The user who is logged in."""

from __future__ import annotations

from amqpstore_server.management.answers import Answer
from amqpstore_server.management.call import Call
from amqpstore_server.management.needs import Needs
from amqpstore_server.management.routes import ApiRoute


async def whoami(call: Call) -> Answer:
    """Return the user's name and tags."""
    identity = call.identity
    return await call.json(
        {
            "name": identity.user,
            "tags": sorted(identity.own_tags),
            "is_internal_user": identity.is_internal,
        }
    )


async def auth(call: Call) -> Answer:
    """Return how the pages log in: with a password."""
    return await call.json({"oauth_enabled": False})


ROUTES = (
    ApiRoute("GET", "/api/whoami", whoami, "Who is logged in"),
    ApiRoute("GET", "/api/auth", auth, "How to log in", Needs.NOTHING),
)
