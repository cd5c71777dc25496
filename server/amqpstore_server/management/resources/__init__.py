"""The routes of the API, a module for each resource.

- `whoami`: who is logged in; `description`: the routes themselves, for OpenAPI.
- `store`: what is on disk; `reports`: what starts and drills have found.
- `overview`: the whole broker, and the node it is; `health`: health checks.
- `exchanges`, `queues`, `bindings`: topology; `publishing`: messages in and out.
- `connections`: connections, with their channels and consumers.
- `vhosts`, `users`: virtual hosts; users and permissions; `limits`: those of both.
- `messages`: of a queue; `metrics`: for Prometheus, and health.
- `tracing`: where a message would go, and where one came from.
- `policies`, `parameters`: settings; `definitions`: everything that is declared.
"""

from amqpstore_server.management.resources import (
    bindings,
    connections,
    definitions,
    description,
    exchanges,
    health,
    limits,
    messages,
    metrics,
    overview,
    parameters,
    policies,
    publishing,
    queues,
    reports,
    store,
    tracing,
    users,
    vhosts,
    whoami,
)
from amqpstore_server.management.routes import ApiRoute

_OWN: tuple[ApiRoute, ...] = (
    *bindings.ROUTES,
    *connections.ROUTES,
    *definitions.ROUTES,
    *exchanges.ROUTES,
    *health.ROUTES,
    *limits.ROUTES,
    *overview.ROUTES,
    *parameters.ROUTES,
    *policies.ROUTES,
    *publishing.ROUTES,
    *queues.ROUTES,
    *messages.ROUTES,
    *tracing.ROUTES,
    *users.ROUTES,
    *vhosts.ROUTES,
    *store.ROUTES,
    *reports.ROUTES,
    *whoami.ROUTES,
)

ROUTES = (*_OWN, *metrics.ROUTES, *description.routes(_OWN))
"""All of them."""
