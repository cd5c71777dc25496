"""The status of a group, for people and scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from amqpstore_server.cluster.frames import ReplicaPosition
from amqpstore_server.cluster.keys import View, alive_key, outsider_key
from amqpstore_server.replication.settings import ClusterSettings
from amqpstore_tools.cluster.leadership import leader_of
from amqpstore_tools.cluster.naming import named
from amqpstore_tools.offline.terminal import console, say, shown, size, table

_DASH = "-"


class MemberStatus(NamedTuple):
    """One member as the keys show it. `role` is "away" if it has not shown itself for 10 s; `place`
    in the list counts from 1, the oldest, and is 0 for a member that is not in sync. `copied_bytes`
    of `copy_bytes` of the leader's store have come, if it receives a copy of it. `waits` says why
    it stays out, or does not lead, if it does not dare to. `left` says why the leader has let it
    leave the list, if it is not back.
    """

    member: str
    role: str
    place: int
    is_observer: bool
    replicate: str
    amqp: str
    term: int
    batch: int
    is_damaged: bool
    is_disk_low: bool
    copied_bytes: int
    copy_bytes: int
    waits: str
    left: str

    @property
    def copied(self) -> str:
        """The part of a copy that has come, for people; empty if it receives none."""
        if not self.copy_bytes:
            return ""
        return f"{100 * self.copied_bytes // self.copy_bytes} % of {size(self.copy_bytes)}"


def members_of(view: View) -> list[MemberStatus]:
    """Return all members: those of the list first, in its order, then the others by address."""
    found = [_member(view, name, value) for name, value in view.members.items()]
    return sorted(found, key=lambda one: (not one.place, one.place, one.replicate, one.member))


def _member(view: View, name: str, value: Mapping[str, Any]) -> MemberStatus:
    row = view.rows.get(alive_key(name))
    alive = row.value if row else {}
    position = ReplicaPosition.of_lsn(int(alive.get("position", 0)))
    copied = alive.get("copied", {})
    role = str(alive.get("role", "away"))
    if name == leader_of(view):
        role = "leading"
    elif role == "leading" and leader_of(view):
        role = "deposed"  # and has not noticed yet, or is gone
    return MemberStatus(
        member=name,
        role=role,
        place=view.in_sync.index(name) + 1 if name in view.in_sync else 0,
        is_observer=not value["sync"],
        replicate=str(value.get("replicate", "")),
        amqp=str(value.get("amqp", "")),
        term=position.term,
        batch=position.number,
        is_damaged=bool(alive.get("damaged", False)),
        is_disk_low=bool(alive.get("disk_low", False)),
        copied_bytes=int(copied.get("bytes", 0)),
        copy_bytes=int(copied.get("of", 0)),
        waits=str(alive.get("waits", "")),
        left=str(view.shown(leader_of(view)).get("left", {}).get(name, "")),
    )


def _outsiders(view: View, member: str) -> Iterator[str]:
    """Say what processes show that have a member's MEMBER and are not, or no longer, it."""
    prefix = outsider_key(member, "")
    for key, row in view.rows.items():
        if key.startswith(prefix):
            incarnation = key.removeprefix(prefix)
            at = row.value.get("replicate", "")
            yield f"{incarnation} at {at}, waits: {row.value.get('waits', '')}"


def problems(view: View) -> Iterator[str]:
    """Say what an operator has to look after; nothing if all is well."""
    members = members_of(view)
    listed = [one for one in members if one.place]
    if not leader_of(view):
        yield _without_a_leader(view, listed)
    if len(listed) < view.min_in_sync:
        yield (
            f"{len(listed)} in sync, and min_in_sync is {view.min_in_sync}: publishers are blocked"
        )
    if view.min_in_sync == 1 and len(view.voters) > 2:
        yield (
            f"min_in_sync is 1 of {len(view.voters)} replicas: a leader that is alone confirms "
            "from its own disk; run `amqpstore cluster set min_in_sync 2` once two are in sync"
        )
    for member in members:
        if member.role == "away":
            yield f"{named(view, member.member)} is away"
        elif member.copied:
            name = named(view, member.member)
            yield f"{name} receives a copy of the store, {member.copied} so far"
        elif not member.place and not member.is_observer:
            why = f". It has left the list: {member.left}" if member.left else ""
            yield f"{named(view, member.member)} is not in sync yet: until then it cannot lead{why}"
        if member.waits:
            yield f"{named(view, member.member)} waits: {member.waits}"
        for twin in _outsiders(view, member.member):
            yield f"a second process of {named(view, member.member)}, {twin}"
        if member.is_disk_low:
            leads = member.member == leader_of(view)
            what = "publishers are blocked until there is room, or another member leads"
            yield (
                f"the disk of {named(view, member.member)} is nearly full: "
                f"{what if leads else 'make room there'}"
            )
        if member.is_damaged:
            yield f"{named(view, member.member)} has found damage: run `amqpstore check` there"


def _without_a_leader(view: View, listed: Sequence[MemberStatus]) -> str:
    """Say what is to be done where etcd names no leader: members that wait do not stand."""
    # The key of a leader that has just died says no more than that.
    leads = [one for one in listed if one.role == "leading" and one.waits]
    if leads:
        who = named(view, leads[0].member)
        return (
            f"etcd names no leader, and {who} says that it leads: it goes on as long as its "
            "followers are there"
        )
    absent = " or ".join(named(view, one.member) for one in listed if one.role == "away")
    todo = f"start {absent}" if absent else "all of the list wait"
    if any(one.role != "away" and not one.waits for one in listed):
        todo = "an election is under way"
    return f"nobody leads, so no client is served: {todo}"


def _remark(one: MemberStatus) -> str:
    if one.waits:
        return "waits"
    if one.is_disk_low:
        return "disk full"
    return "damaged" if one.is_damaged else "copying" if one.copied else ""


def facts(settings: ClusterSettings, view: View) -> dict[str, Any]:
    """Return everything for a script."""
    return {
        "cluster": settings.cluster,
        "group": settings.group,
        "store": view.store_id,
        "group_id": view.group_id,
        "etcd": {
            "endpoints": list(settings.etcd.endpoints),
            "cluster": f"{view.cluster:x}",
            "revision": view.revision,
        },
        "term": view.term,
        "leader": leader_of(view) or None,
        "min_in_sync": view.min_in_sync,
        "protocol": view.protocol,
        "in_sync": list(view.in_sync),
        "members": [one._asdict() for one in members_of(view)],
        "problems": list(problems(view)),
    }


def show(settings: ClusterSettings, view: View) -> None:
    """Show a group to people."""
    leader = leader_of(view)
    who = f"led by {named(view, leader)}" if leader else "led by nobody"
    say(f"{settings.cluster}, group {settings.group}: term {view.term}, {who}")
    say(
        f"{len(view.in_sync)} of {len(view.voters)} replicas in sync; a confirm needs at least "
        f"{view.min_in_sync}"
    )
    rows = table(
        *("member", "role", "sync", "replication", "clients", "batch", ""),
        right="batch",
        wrap="replication clients",
    )
    for member in members_of(view):
        place = "observer" if member.is_observer else f"{member.place}." if member.place else "no"
        rows.add_row(
            member.member,
            shown(member.role),
            place,
            shown(member.replicate),
            shown(member.amqp),
            f"{member.batch:,}" if member.role != "away" else _DASH,
            _remark(member),
            style="bold" if member.role == "leading" else "red" if member.role == "away" else "",
        )
    console().print(rows)
    for problem in problems(view):
        say(f"! {problem}")
