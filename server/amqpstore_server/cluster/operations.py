"""What operators do with a group: transactions on its keys, like those of members.

Each change of the group or its members compares the revision of the key `group`, and puts it: so
such changes happen one after another, each by somebody who has seen what the one before it did.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amqpstore_server.cluster.frames import PROTOCOL
from amqpstore_server.cluster.keys import (
    GROUP,
    HANDOVER,
    IN_SYNC,
    LEADER,
    SECRET,
    STATE,
    Compare,
    EtcdTransaction,
    Put,
    View,
    alive_key,
    member_key,
)

SECRET_BYTES = 32


def founding(
    store_id: str,
    member: str,
    value: Mapping[str, Any],
    term: int,
    secret: bytes,
    request: str,
) -> EtcdTransaction:
    """Return the transaction that makes a store a group of one member, if there is no such group.

    Args: value, of the member's key; term, the highest one that the store knows.
    """
    group = {"store_id": store_id, "protocol": PROTOCOL, "min_in_sync": 1, "request": request}
    return EtcdTransaction(
        tuple(Compare(key, 0) for key in (GROUP, STATE, LEADER, IN_SYNC, SECRET)),
        (
            Put(GROUP, group),
            Put(SECRET, {"secret": secret.hex()}),
            Put(STATE, {"term": term, "leader": member, "request": request}),
            Put(IN_SYNC, {"members": [member], "term": term, "request": request}),
            Put(member_key(member), value),
        ),
        request=request,
    )


def joining(
    view: View, member: str, value: Mapping[str, Any], min_in_sync: int, request: str
) -> EtcdTransaction:
    """Return the transaction that adds a member: it leads only once it has caught up."""
    return _on_group(
        view,
        {"min_in_sync": min_in_sync},
        request,
        [Compare(member_key(member), 0)],
        [(member_key(member), value)],
    )


def removal(view: View, member: str, request: str) -> EtcdTransaction:
    """Return the transaction that removes a member which does not lead.

    If it is in the in-sync list, the leader drops it from there: nobody else may change the list.
    """
    return _on_group(
        view,
        {},
        request,
        [
            Compare(IN_SYNC, view.changed(IN_SYNC)),
            Compare(LEADER, view.changed(LEADER)),
        ],
        deletes=(member_key(member), alive_key(member)),
    )


def setting(view: View, values: Mapping[str, int], request: str) -> EtcdTransaction:
    """Return the transaction that changes settings of the group."""
    return _on_group(view, values, request)


def _on_group(
    view: View,
    values: Mapping[str, int],
    request: str,
    compares: list[Compare] | None = None,
    puts: list[tuple[str, Mapping[str, Any]]] | None = None,
    deletes: tuple[str, ...] = (),
) -> EtcdTransaction:
    group = {**view.rows[GROUP].value, **values, "request": request}
    return EtcdTransaction(
        (Compare(GROUP, view.changed(GROUP)), *(compares or ())),
        (Put(GROUP, group), *(Put(key, value) for key, value in puts or ())),
        deletes,
        request,
    )


def switching(view: View, to: str, lease: int, request: str) -> EtcdTransaction:
    """Return the transaction that asks the leader of this term to let a member of the list lead.

    Args: lease, with which the wish goes if it is not fulfilled.
    """
    value = {"to": to, "term": view.term, "request": request}
    return EtcdTransaction(
        (
            Compare(LEADER, view.changed(LEADER)),
            Compare(IN_SYNC, view.changed(IN_SYNC)),
        ),
        (Put(HANDOVER, value, lease),),
        request=request,
    )


def forced_succession(view: View, member: str, request: str) -> EtcdTransaction:
    """Return the transaction that makes one member the only candidate, while nobody leads: a person
    says that all others of the list are gone for good, and with them what only they had.

    It begins a term that nobody leads: a leader that has only lost its lease cannot regain its key
    then, nor change the list, and nobody follows it.
    """
    term = view.term + 1
    return EtcdTransaction(
        (
            Compare(LEADER, 0),
            Compare(STATE, view.changed(STATE)),
            Compare(IN_SYNC, view.changed(IN_SYNC)),
            Compare(member_key(member), view.changed(member_key(member))),
        ),
        (
            Put(STATE, {"term": term, "leader": member, "request": request}),
            Put(IN_SYNC, {"members": [member], "term": term, "request": request}),
        ),
        request=request,
    )


def disbanding(view: View, request: str) -> EtcdTransaction:
    """Return the transaction that deletes all keys of a group that nobody leads."""
    return EtcdTransaction(
        (Compare(GROUP, view.changed(GROUP)), Compare(LEADER, 0)),
        deletes=tuple(view.rows),
        request=request,
    )
