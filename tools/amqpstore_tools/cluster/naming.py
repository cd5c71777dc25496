"""Names of members on a command line: by id, by its beginning, or by address."""

from __future__ import annotations

from amqpstore_server.cluster.keys import View
from amqpstore_tools.offline.exits import NotFoundError, UsageError


def member_named(view: View, text: str) -> str:
    """Return the id of a member. Raises: NotFoundError, UsageError."""
    if not text:
        raise UsageError("name a member: its id, the beginning of that, or its address")
    found = [
        name
        for name, value in view.members.items()
        if text == value.get("replicate") or name.startswith(text)
    ]
    if not found:
        known = ", ".join(sorted(view.members)) or "nobody"
        raise NotFoundError(f"{text} is not a member of the group; its members are {known}")
    if len(found) > 1:
        raise UsageError(f"{text} may be {' or '.join(sorted(found))}: name more of it")
    return found[0]


def named(view: View, member: str) -> str:
    """Return a member's id with its address, for people."""
    address = view.members.get(member, {}).get("replicate", "")
    return f"{member} ({address})" if address else member
