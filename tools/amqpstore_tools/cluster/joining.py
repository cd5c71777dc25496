"""Members come and go, one at a time."""

from __future__ import annotations

from typing import Any, NamedTuple

from amqpstore.replica import Membership
from amqpstore_server.cluster.group_changes import disbanding, joining, removal, setting
from amqpstore_server.cluster.keys import View
from amqpstore_tools.cluster.directory import (
    check_stopped,
    forget_membership,
    make_follower,
    membership_of,
    set_group,
    store_id_of,
)
from amqpstore_tools.cluster.founding import member_value
from amqpstore_tools.cluster.group import GroupKeys
from amqpstore_tools.cluster.naming import named
from amqpstore_tools.offline.exits import ToolError, UsageError

_MANY = 3
"""The number of replicas from which on a leader that is alone should not confirm."""
_DROPPED_S = 15.0


class Joined(NamedTuple):
    """A member that has joined, and the group's `min_in_sync` since then.

    `same_address` names a member that has the same address: probably the one whose disk this
    machine had before.
    """

    member: str
    min_in_sync: int
    same_address: str


def join(group: GroupKeys, directory: str, *, is_observer: bool) -> Joined:
    """Make an empty directory that of a new member, and add it to the group; what was interrupted
    is finished. The directory of a member that the group does not know, since its keys were lost,
    is added as it is.

    Raises: ToolError, StoreError, OSError.
    """
    view = group.founded()
    own = _own_directory(group, view, directory)
    value = member_value(group.settings, is_observer=is_observer)
    least = view.min_in_sync

    def make(view: View, request: str) -> Any:
        nonlocal least
        voters = len(view.voters) + (not is_observer)
        is_many = voters == _MANY and len(view.in_sync) > 1 and not is_observer
        least = max(view.min_in_sync, 2) if is_many else view.min_in_sync
        return joining(view, own.member, value, least, request)

    before = group.change(make)
    if (own.cluster, own.group) != (before.cluster, before.group_id):
        set_group(directory, own, before.cluster, before.group_id)
    same = [
        name
        for name, one in before.members.items()
        if one.get("replicate") == value["replicate"] and name != own.member
    ]
    return Joined(own.member, least, same[0] if same else "")


def _own_directory(group: GroupKeys, view: View, directory: str) -> Membership:
    own = membership_of(directory)
    if own is None:
        return make_follower(directory, view.store_id, view.cluster, view.group_id)
    if own.member in view.members:
        raise ToolError(
            f"{directory} is that of member {own.member} of the group at {group.where} already"
        )
    if store_id_of(directory) != view.store_id:
        raise ToolError(
            f"{directory} has the store {store_id_of(directory)}, and the group at {group.where} "
            f"the store {view.store_id}: name an empty directory with --data"
        )
    check_stopped(directory)
    return own


def set_min_in_sync(group: GroupKeys, number: int) -> View:
    """Have nothing confirmed with fewer replicas in sync, the leader included.

    Returns the keys before that. Raises: UsageError, ToolError.
    """
    group.founded()

    def make(view: View, request: str) -> Any:
        voters = len(view.voters)
        if not 1 <= number <= voters:
            raise UsageError(
                f"min_in_sync = {number}, but it must be from 1 to {voters}, the number of replicas"
            )
        return setting(view, {"min_in_sync": number}, request)

    return group.change(make)


def remove(group: GroupKeys, member: str) -> None:
    """Remove a member that does not lead, and return when it is out of the list.

    Raises: ToolError.
    """
    group.change(lambda view, request: _removal(group, view, member, request))
    if group.wait(lambda view: member not in view.in_sync, _DROPPED_S) is None:
        raise ToolError(
            f"member {member} is removed, and the leader still has it in the list at "
            f"{group.where}: look at the leader's log"
        )


def _removal(group: GroupKeys, view: View, member: str, request: str) -> Any:
    if member not in view.members:
        raise ToolError(f"{member} is not a member of the group at {group.where}")
    leader = view.leader.value["member"] if view.leader else ""
    if leader == member:
        raise ToolError(
            f"member {named(view, member)} leads: have another one lead first, with `amqpstore "
            "cluster switchover`"
        )
    if member in view.in_sync and not leader:
        raise ToolError(
            f"nobody leads, and member {named(view, member)} is in the list of those who may: only "
            "a leader can change that; start the members, or see `amqpstore cluster force-leader`"
        )
    if member in view.in_sync and len(view.in_sync) <= view.min_in_sync:
        raise ToolError(
            f"without member {named(view, member)} fewer than min_in_sync, {view.min_in_sync}, "
            "replicas would be in sync, and nothing would be confirmed: have another one join, or "
            f"run `amqpstore cluster set min_in_sync {view.min_in_sync - 1}`"
        )
    return removal(view, member, request)


def leave(group: GroupKeys, directory: str) -> str:
    """Make the directory of a stopped member that of a single node, which keeps its store. The last
    member's group ends with it. Returns the member's id.

    Raises: ToolError, StoreError, OSError.
    """
    own = membership_of(directory)
    if own is None:
        raise ToolError(f"{directory} is not that of a member of a group")
    check_stopped(directory)
    view = group.view()
    if own.cluster not in (0, view.cluster):
        raise ToolError(
            f"{directory} is that of member {own.member} of a group in the etcd cluster "
            f"{own.cluster:x}, and the etcd cluster {view.cluster:x} answers at {group.where}: "
            "correct cluster_etcd"
        )
    if own.member in view.members:
        if len(view.members) == 1:
            group.change(lambda view, request: _disbanding(view, own.member, request))
        else:
            remove(group, own.member)
    forget_membership(directory)
    return own.member


def _disbanding(view: View, member: str, request: str) -> Any:
    if view.leader is not None:
        raise ToolError(
            f"member {member} was stopped a moment ago and still has the leader's key: run this "
            "again in a few seconds"
        )
    return disbanding(view, request)
