"""The page of one message: what it is, where it came from, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amqpstore_server.management.errors import HttpError
from amqpstore_server.management.pages.address import PageAddress, Values
from amqpstore_server.management.pages.api import PageApi
from amqpstore_server.management.pages.routing import steps_of

_SHOWN_BYTES = 64 << 10
_WHAT = {
    "enqueued": "was put in the queue",
    "delivered": "was delivered",
    "left": "left the queue: it was acked, or moved on",
    "removed": "was removed: purged, or unreadable",
}
_LEFT = "left the queue"
"""If the reason is known, which follows."""

_DID = {
    "published": "Published it",
    "delivered": "Got it",
    "acked": "Acked it",
    "rejected": "Rejected it",
    "requeued": "Gave it back",
}


async def read(api: PageApi, asked: PageAddress) -> Values:
    """Read what the page shows; the message itself may be gone."""
    vhost, name, position = (asked.path[key] for key in ("vhost", "name", "position"))
    at = ("queues", vhost, name, "messages")
    found = await api.get(*at, start=position, limit=1, max_payload_bytes=_SHOWN_BYTES)
    message = next((one for one in found["messages"] if one["position"] == position), None)
    return {"vhost": vhost, "name": name, "position": position, "message": message}


async def read_trails(api: PageApi, asked: PageAddress) -> Values:
    """Read where the message came from, which the page asks for once it is shown."""
    vhost, name, position = (asked.path[key] for key in ("vhost", "name", "position"))
    problem = ""
    provenance: Mapping[str, Any] = {"trail": [], "clients": [], "notes": []}
    try:
        provenance = await api.get("queues", vhost, name, "messages", position, "provenance")
    except HttpError as error:
        problem = error.reason
    return {
        "trails": [_trail(trail, vhost) for trail in provenance["trail"]],
        "clients": [{**one, "what": _DID[one["what"]]} for one in provenance["clients"]],
        "notes": provenance["notes"],
        "problem": problem,
    }


def _trail(trail: Mapping[str, Any], vhost: str) -> Values:
    steps = [
        {**step, "what": _LEFT if step.get("reason") else _WHAT[step["what"]]}
        for step in trail["steps"]
    ]
    route = trail.get("route_now")
    deaths = [_death(death) for death in trail.get("deaths", ()) if isinstance(death, Mapping)]
    way = steps_of(route, vhost) if route else None
    return {**trail, "steps": steps, "deaths": deaths, "way": way}


def _death(death: Mapping[str, Any]) -> Values:
    """Return a row of x-death, in which a publisher may have written anything."""
    keys = death.get("routing-keys")
    shown = ", ".join(map(str, keys)) if isinstance(keys, list) else ""
    return {**death, "keys": shown}
