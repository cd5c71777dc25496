"""Changes of the leader: by an operator's wish, or by force."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from amqpstore_server.cluster.frames import ReplicaPosition
from amqpstore_server.cluster.group_changes import forced_history, forced_succession, switching
from amqpstore_server.cluster.keys import IN_SYNC, LEADER, STATE, View, alive_key
from amqpstore_tools.cluster.group import GroupKeys
from amqpstore_tools.cluster.naming import named
from amqpstore_tools.offline.exits import ToolError

_WISH_S = 10.0
"""How long the wish for another leader lasts."""
_SWITCH_S = 15.0
_FORCED_S = 30.0
_LEADING = ("opening", "leading")


class Switched(NamedTuple):
    """The member that leads now, since which term, and how long that took."""

    member: str
    term: int
    seconds: float


def leader_of(view: View) -> str:
    """Return the member whose key says that it leads, or nothing."""
    return str(view.leader.value["member"]) if view.leader else ""


def switch_over(group: GroupKeys, to: str) -> Switched:
    """Have another member of the list lead, the oldest one that runs by default.

    Returns when it leads. Raises: ToolError.
    """
    begun = time.monotonic()
    chosen = ""
    lease = group.grant(_WISH_S)

    def make(view: View, request: str) -> Any:
        nonlocal chosen
        chosen = _successor(group, view, to)
        return switching(view, chosen, lease, request)

    before = group.change(make)
    view = group.wait(lambda view: leader_of(view) not in ("", leader_of(before)), _SWITCH_S)
    if view is None:
        raise ToolError(
            f"member {named(before, leader_of(before))} has not given leadership to "
            f"{named(before, chosen)}: its log says why"
        )
    if leader_of(view) != chosen:
        raise ToolError(
            f"member {named(view, leader_of(view))} leads now, and not {named(view, chosen)}"
        )
    return Switched(chosen, view.term, time.monotonic() - begun)


def _successor(group: GroupKeys, view: View, to: str) -> str:
    leader = leader_of(view)
    if not leader:
        raise ToolError(f"nobody leads the group at {group.where}: see `amqpstore cluster status`")
    if to == leader:
        raise ToolError(f"member {named(view, to)} leads already")
    if to:
        if to not in view.in_sync:
            raise ToolError(
                f"member {named(view, to)} is not in sync: it may lack what was confirmed"
            )
        if not view.is_alive(to):
            raise ToolError(f"member {named(view, to)} does not run")
        return to
    # The list is in order: the member that has been in sync for longest comes first.
    others = [one for one in view.in_sync if one != leader and view.is_alive(one)]
    if not others:
        raise ToolError(f"no other member is in sync and runs: {named(view, leader)} goes on")
    return others[0]


def what_is_lost(group: GroupKeys, view: View, member: str) -> str:
    """Say what making a member the leader by force means, or, if it leads, that its history holds.
    Raises: ToolError, if it cannot be.
    """
    leader = leader_of(view)
    if leader == member:
        return _what_others_lose(view, member)
    if leader:
        raise ToolError(
            f"member {named(view, leader)} leads; have {named(view, member)} lead with `amqpstore "
            "cluster switchover`. If its history is to hold, and not the leader's, stop the leader "
            "first"
        )
    if member not in view.voters:
        raise ToolError(f"member {named(view, member)} is an observer, and never leads")
    if not view.is_alive(member):
        raise ToolError(f"member {named(view, member)} does not run: start it first")
    for other in view.members:
        if other != member and _alive(view, other).get("role") in _LEADING:
            raise ToolError(
                f"member {named(view, other)} says that it leads, although etcd has lost its key: "
                "it goes on as long as its followers are there, and regains the key by itself"
            )
    lines = [f"Nobody leads the group at {group.where}.", *_what_the_listed_have(view, member)]
    own = f"{named(view, member)} has {_position(view, member)}"
    if waits := _alive(view, member).get("waits"):
        lines.append(f"{own}, and says: {waits}.")
        lines.append(
            "Whatever was confirmed and is not in its log is lost for ever, also on the others, "
            "which take over its log when they come back and put what they have more into "
            "quarantine. Do this only if nobody who has more can ever be started again."
        )
    elif member in view.in_sync:
        lines.append(f"{own}; it is in sync: by force or not, nothing is lost with it.")
    else:
        lines.append(
            f"{own}, and is not in sync. Whatever was confirmed after that is lost for ever, also "
            "on the others, which take over its log when they come back. Do this only if no member "
            "that is in sync can ever be started again."
        )
    return "\n".join(lines)


def _what_the_listed_have(view: View, member: str) -> Iterator[str]:
    """Say what the members of the list have. Whoever waits may be older than the list says; of
    `member` that is said in any case.
    """
    for one in view.in_sync:
        if waits := _alive(view, one).get("waits"):
            if one != member:
                has = f"has {_position(view, one)}, and says: {waits}"
                yield f"In the list, and perhaps older: {named(view, one)}, {has}."
            continue
        state = f"runs, and has {_position(view, one)}" if view.is_alive(one) else "does not run"
        yield f"In sync, and so with all that was confirmed: {named(view, one)}, {state}."


def _what_others_lose(view: View, leader: str) -> str:
    waiting = [one for one in view.members if one != leader and _alive(view, one).get("waits")]
    if not waiting:
        raise ToolError(f"member {named(view, leader)} leads already, and nobody stays out")
    lines = [f"{named(view, leader)} leads, with {_position(view, leader)}."]
    lines += (
        f"{named(view, one)} has {_position(view, one)}, and says: {_alive(view, one)['waits']}."
        for one in waiting
    )
    lines.append(
        "If the leader's history holds, they follow it, and put what they have more into "
        "quarantine: what was confirmed in that is lost for the group. To have the history of one "
        "of them hold, stop the leader, and name that member."
    )
    return "\n".join(lines)


def force_leader(group: GroupKeys, view: View, member: str) -> Switched:
    """Make a member the only candidate, as of the keys that a person has seen. Returns when it
    leads. Raises: ToolError.
    """
    begun = time.monotonic()
    seen = _decided(view)
    leads = leader_of(view) == member

    # A person has decided by what was shown: if that has changed, it is shown again first.
    def make(view: View, request: str) -> Any:
        if _decided(view) != seen:
            raise ToolError(
                f"nothing was changed: somebody was elected meanwhile at {group.where}; see "
                "`amqpstore cluster status`"
            )
        return forced_history(view, request) if leads else forced_succession(view, member, request)

    group.change(make)
    led = group.wait(lambda view: leader_of(view) == member, _FORCED_S)
    if led is None:
        raise ToolError(
            f"member {named(view, member)} is the only candidate now, and does not lead yet: its "
            "log says why"
        )
    return Switched(member, led.term, time.monotonic() - begun)


def _decided(view: View) -> tuple[int, ...]:
    return tuple(view.changed(key) for key in (LEADER, STATE, IN_SYNC))


def _alive(view: View, member: str) -> Any:
    row = view.rows.get(alive_key(member))
    return row.value if row else {}


def _position(view: View, member: str) -> str:
    position = ReplicaPosition.of_lsn(int(_alive(view, member).get("position", 0)))
    return f"the log up to batch {position.number}, of term {position.term}"
