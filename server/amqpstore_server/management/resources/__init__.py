"""The routes of the API, a module for each resource.

- `whoami`: who is logged in; `description`: the routes themselves, for OpenAPI.
- `store`: what is on disk.
- `vhosts`, `queues`: what is in the broker; `messages`: of a queue.
- `tracing`: where a message would go, and where one came from.
- `metrics`: for Prometheus, and health.
"""

from amqpstore_server.management.resources import (
    description,
    messages,
    metrics,
    queues,
    store,
    tracing,
    vhosts,
    whoami,
)
from amqpstore_server.management.routes import ApiRoute

_OWN: tuple[ApiRoute, ...] = (
    *queues.ROUTES,
    *messages.ROUTES,
    *tracing.ROUTES,
    *vhosts.ROUTES,
    *store.ROUTES,
    *whoami.ROUTES,
)

ROUTES = (*_OWN, *metrics.ROUTES, *description.routes(_OWN))
"""All of them."""
