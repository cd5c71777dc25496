"""A store becomes a group of one member."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Any

from amqpstore.replica import Membership
from amqpstore_server.cluster.frames import ReplicaPosition
from amqpstore_server.cluster.group_changes import SECRET_BYTES, founding
from amqpstore_server.cluster.keys import View, alive_key
from amqpstore_server.cluster.notes import objection
from amqpstore_server.replication.member_file import notes_of
from amqpstore_server.replication.settings import ClusterSettings
from amqpstore_tools.cluster.directory import (
    MemberStore,
    forget_membership,
    make_member,
    member_store,
    membership_of,
    set_group,
    store_id_of,
)
from amqpstore_tools.cluster.group import GroupKeys
from amqpstore_tools.offline.exits import ToolError


def member_value(settings: ClusterSettings, *, is_observer: bool = False) -> dict[str, Any]:
    """Return what a member's key says of it."""
    return {
        "replicate": settings.advertise,
        "amqp": settings.amqp,
        "sync": not is_observer,
        "added": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def found(group: GroupKeys, directory: str) -> Membership:
    """Make a store a group of one member; what was interrupted is finished. The store is created if
    there is none, and nothing of one that exists is changed but for the file MEMBER.

    Raises: ToolError, StoreError, OSError.
    """
    view = group.view()
    own = membership_of(directory)
    if view.store_id:
        raise ToolError(_exists(group, view, own, directory))
    if own is not None and own.cluster not in (0, view.cluster):
        raise ToolError(
            f"{directory} is that of member {own.member} of a group in the etcd cluster "
            f"{own.cluster:x}, and the etcd cluster {view.cluster:x} answers at {group.where}: "
            "correct cluster_etcd; if that etcd is lost for good, use --from-leader"
        )
    if own is not None and _has_run(own, directory):
        raise ToolError(
            f"{directory} is that of member {own.member} of a group already, and the etcd that "
            f"answers at {group.where} does not have it: correct cluster_etcd, cluster_name and "
            "cluster_group. If that etcd has lost the keys, use --from-leader on the member that "
            "has most; on any other, wipe the directory and use `amqpstore cluster join`"
        )
    member = own or make_member(directory, view.cluster, secrets.token_hex(16))
    if not member.group:
        member = set_group(directory, member, view.cluster, secrets.token_hex(16))
    try:
        _put_keys(group, member, member_store(directory))
    except ToolError:
        if own is None and not _may_be_founded(group, member.member):
            forget_membership(directory)
        raise
    return member


def _has_run(own: Membership, directory: str) -> bool:
    """Tell whether a member has ever been started: then its group was founded."""
    return bool(own.generation or own.term or member_store(directory).term)


def _exists(group: GroupKeys, view: View, own: Membership | None, directory: str) -> str:
    if own is not None and own.member in view.members:
        return f"{directory} is that of member {own.member} of the group at {group.where} already"
    return (
        f"there is a group at {group.where} already, with the store {view.store_id}: join it with "
        "`amqpstore cluster join`, or choose another cluster_name or cluster_group"
    )


def _put_keys(
    group: GroupKeys, member: Membership, store: MemberStore, *, may_replace: bool = False
) -> None:
    """Found a group. Args: may_replace, keys that are there already, if there is no leader."""
    secret = secrets.token_bytes(SECRET_BYTES)
    value = member_value(group.settings)
    term = max(store.term, member.term)

    def make(view: View, request: str) -> Any:
        if may_replace and view.leader is not None:
            raise ToolError(
                f"somebody leads the group at {group.where}: stop all members before its keys are "
                "written anew"
            )
        # Members that were stopped a moment ago, or that a supervisor starts again and again, show
        # that they run; that is not a group's.
        found = sorted(key for key in view.rows if not key.startswith(alive_key("")))
        if found and not may_replace:
            raise ToolError(f"there are keys at {group.where} already: {', '.join(found)}")
        return founding(
            *(store.store_id, member.member, value, term, secret, member.group, request),
            view if may_replace else None,
        )

    group.change(make)


def _may_be_founded(group: GroupKeys, member: str) -> bool:
    """Tell whether the keys name this member, as far as anybody can know."""
    try:
        view = group.view()
    except ToolError:
        return True
    return not view.rows or member in view.members


def described_store(directory: str) -> str:
    """Say what is in a member's store, for a person who has to decide whether it is enough.

    Raises: ToolError, StoreError.
    """
    own = membership_of(directory)
    if own is None:
        raise ToolError(f"{directory} is not that of a member: `amqpstore cluster init` founds one")
    store = member_store(directory)
    last = ReplicaPosition.of_lsn(store.last_lsn)
    return (
        f"{directory} is that of member {own.member}. Its log ends with batch {last.number}, of "
        f"term {last.term}; the highest term it knows is {store.term}."
    )


def found_again(group: GroupKeys, directory: str) -> Membership:
    """Write the keys anew, in an etcd that has lost them, from the store of a member that is
    stopped: it is a group of one then, and the others join it again.

    Raises: ToolError, StoreError, OSError.
    """
    own = membership_of(directory)
    if own is None:
        raise ToolError(f"{directory} is not that of a member: `amqpstore cluster init` founds one")
    view = group.view()
    reason = objection(notes_of(own), view)
    if view.store_id and view.store_id != store_id_of(directory):
        raise ToolError(_exists(group, view, own, directory))
    if own.member in view.members and own.cluster == view.cluster and not reason:
        raise ToolError(_exists(group, view, own, directory))
    if view.store_id and own.member not in view.members and own.group != view.group_id:
        raise ToolError(_exists(group, view, own, directory))
    if own.member in view.members and not reason:
        # Keys that were moved to another etcd, or written by a command that was interrupted.
        return set_group(directory, own, view.cluster, view.group_id)
    made = own._replace(group=secrets.token_hex(16))
    _put_keys(group, made, member_store(directory), may_replace=bool(view.store_id))
    # Last: with another group in it, this directory is that of a member there.
    return set_group(directory, own, view.cluster, made.group)
