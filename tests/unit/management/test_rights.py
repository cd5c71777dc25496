"""Tests of the tag that each route asks for: a route that asks for less fails here."""

from collections import defaultdict

from amqpstore_server.management.needs import Needs
from amqpstore_server.management.resources import ROUTES

NOTHING = {
    "GET /api/auth",
    "GET /api/openapi.json",
    "GET /health/live",
    "GET /health/ready",
    "GET /health/alarms",
    "GET /health/damage",
    "GET /health/leader",
}
MANAGEMENT = {
    # What they show is only what the user may see, or nothing that is secret.
    *(f"GET /api/{name}" for name in ("bindings", "channels", "connections", "consumers")),
    *(f"GET /api/{name}" for name in ("exchanges", "queues", "queues/detailed", "vhosts")),
    *(f"GET /api/{name}" for name in ("overview", "cluster-name", "extensions", "whoami")),
    "GET /api/vhost-limits",
    "GET /api/channels/{channel}",
    "GET /api/connections/{connection}",
    "GET /api/connections/{connection}/channels",
    "GET /api/connections/username/{user}",
    # All users may close their own.
    "DELETE /api/connections/{connection}",
    "DELETE /api/connections/username/{user}",
}
POLICYMAKER = ("parameters", "global-parameters", "policies", "operator-policies")
MONITORING = (
    "nodes",
    "auth",
    "feature-flags",
    "deprecated-features",
    "store",
    "latencies",
    "shovels",
    "federation-links",
)
OF_ADMINISTRATORS = (
    "/permissions",
    "/topic-permissions",
    "/api/definitions/{vhost}",
    "/api/operator-policies/",
    "/api/vhost-limits/",
    "/api/vhosts/",
)


def names_of(*needs: Needs) -> set[str]:
    return {f"{route.method} {route.path}" for route in ROUTES if route.needs in needs}


def test_what_takes_no_permission_in_a_virtual_host_is_known() -> None:
    assert names_of(Needs.NOTHING) == NOTHING
    checks = {name for name in names_of(Needs.MANAGEMENT) if name.startswith("GET /api/health")}
    assert names_of(Needs.MANAGEMENT) - checks == MANAGEMENT
    for name in names_of(Needs.MONITORING) - {"GET /metrics"}:
        assert name.startswith("GET /metrics/") or name.split("/")[2] in MONITORING, name
        assert name.startswith("GET "), name
    for name in names_of(Needs.POLICYMAKER):
        assert name.split("/")[2] in POLICYMAKER, name
        assert not (name[:4] in ("PUT ", "DELE") and "operator-policies" in name), name


def test_what_is_in_a_virtual_host_takes_permissions_there() -> None:
    by_needs = defaultdict(set)
    for route in ROUTES:
        if "{vhost}" in route.path:
            by_needs[route.needs].add(f"{route.method} {route.path}")
    assert set(by_needs) == {Needs.VHOST, Needs.POLICYMAKER, Needs.ADMINISTRATOR}
    # Users, rights, limits and virtual hosts themselves are for administrators.
    for name in by_needs[Needs.VHOST] | by_needs[Needs.POLICYMAKER]:
        looks = name.startswith("GET ")
        assert not any(part in name for part in OF_ADMINISTRATORS[:3]), name
        assert looks or not any(part in name for part in OF_ADMINISTRATORS[3:]), name
