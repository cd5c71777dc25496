"""The routes of the API, a module for each resource.

- `whoami`: who is logged in; `description`: the routes themselves, for OpenAPI.
- `vhosts`, `queues`: what is in the broker.
"""

from amqpstore_server.management.resources import description, queues, vhosts, whoami
from amqpstore_server.management.routes import ApiRoute

_OWN: tuple[ApiRoute, ...] = (
    *queues.ROUTES,
    *vhosts.ROUTES,
    *whoami.ROUTES,
)

ROUTES = (*_OWN, *description.routes(_OWN))
"""All of them."""
