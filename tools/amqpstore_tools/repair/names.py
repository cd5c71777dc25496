"""Names for queues whose definitions are lost, in the form of the broker's definitions."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

DEFAULT_VHOST = "/"
LOST_AND_FOUND = "amq.lost-and-found"
RECOVERED = "amq.recovered.{id}"


def definition_of(vhost: str, name: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the definition of a durable queue."""
    return {"vhost": vhost, "name": name, "auto_delete": False, "arguments": arguments or {}}


def mend_definitions(
    definitions: dict[int, Any], hidden: Collection[int], vhosts: dict[str, Any]
) -> set[int]:
    """Name queues that have no name, so that a broker can use them.

    A nameless queue is named after its id, a priority level without its queue becomes that queue,
    and every virtual host that a queue names is created.
    Args: hidden, queues of prepared transactions, which have no name. Returns the ids of queues
    whose definition was made up.
    """
    mended = set()
    vhost = DEFAULT_VHOST if DEFAULT_VHOST in vhosts or not vhosts else min(vhosts)
    for queue_id, row in definitions.items():
        if queue_id not in hidden and not _says_its_name(row):
            definitions[queue_id] = definition_of(vhost, RECOVERED.format(id=queue_id))
            mended.add(queue_id)
    owned = {queue_id: row for queue_id, row in definitions.items() if queue_id not in hidden}
    named = {(row.get("vhost"), row.get("name")) for row in owned.values() if "level" not in row}
    for queue_id, row in sorted(owned.items()):
        key = row.get("vhost"), row.get("name")
        if "level" in row and key not in named:
            arguments = {"x-max-priority": row["level"]}
            definitions[queue_id] = definition_of(row["vhost"], row["name"], arguments)
            named.add(key)
            mended.add(queue_id)
    for row in owned.values():
        if "vhost" in row:
            vhosts.setdefault(row["vhost"], {})
    return mended


def _says_its_name(row: Any) -> bool:
    """Tell whether a definition can be its owner's: that of a broker, or of a library."""
    return (
        isinstance(row, dict)
        and bool(row)
        and all(isinstance(row.get(key, ""), str) for key in ("vhost", "name"))
        and isinstance(row.get("level", 1), int)
        and ("level" not in row or {"vhost", "name"} <= row.keys())
    )
