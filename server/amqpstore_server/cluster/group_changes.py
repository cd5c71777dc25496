"""Operations on a group: operators' transactions on its keys, like those of members.

Each change of the group or its members compares the revision of the key `group`, and puts it: so
such changes happen one after another, each by somebody who has seen what the one before it did.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amqpstore_server.cluster.frames import FOUNDED_PROTOCOL, ReplicaPosition
from amqpstore_server.cluster.keys import (
    FLOOR,
    FORCED,
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
    generation_key,
    generation_put,
    member_key,
)

SECRET_BYTES = 32


def founding(
    store_id: str,
    member: str,
    value: Mapping[str, Any],
    term: int,
    secret: bytes,
    group_id: str,
    request: str,
    former: View | None = None,
) -> EtcdTransaction:
    """Return the transaction that makes a store a group of one member, if there is no such group.

    Args: value, of the member's key; term, the highest one that the store knows; group_id, by which
    members know the group again; former, the keys of an older state of it without a leader, which
    are deleted.
    """
    group = {
        "store_id": store_id,
        "id": group_id,
        "protocol": FOUNDED_PROTOCOL,
        "min_in_sync": 1,
        "request": request,
    }
    puts = (
        Put(GROUP, group),
        Put(SECRET, {"secret": secret.hex()}),
        Put(STATE, {"term": term, "leader": member, "request": request}),
        Put(IN_SYNC, {"members": [member], "term": term, "request": request}),
        Put(member_key(member), value),
    )
    put = {one.key for one in puts}
    return EtcdTransaction(
        tuple(
            # With `former`, each must still be as it was read: two operators who found the same
            # group at once cannot both succeed.
            Compare(key, former.changed(key) if former is not None and key != LEADER else 0)
            for key in (GROUP, STATE, LEADER, IN_SYNC, SECRET)
        ),
        puts,
        tuple(key for key in former.rows if key not in put) if former is not None else (),
        request,
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

    If it is in the in-sync list, the leader drops it from there: no other member may change the
    list.
    """
    return _on_group(
        view,
        {},
        request,
        [
            Compare(IN_SYNC, view.changed(IN_SYNC)),
            Compare(LEADER, view.changed(LEADER)),
        ],
        deletes=(member_key(member), alive_key(member), generation_key(member)),
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
        # Every change puts this key, so two operators who have read the same state cannot both
        # succeed.
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
        # A wish that the leader cannot fulfil now must not come true hours later.
        (Put(HANDOVER, value, lease),),
        request=request,
    )


def forced_succession(view: View, member: str, request: str) -> EtcdTransaction:
    """Return the transaction that makes one member the only candidate, while there is no leader: a
    person says that its history holds, and that what only others had is lost.

    It begins a term without a leader: a leader that has only lost its lease cannot regain its key
    then, nor change the list, and has no followers. No member has seen a higher one, so all of them
    believe in this decision, whatever they know of before.
    """
    term = 1 + max(view.term, *(_seen_term(view, one) for one in view.members))
    floor = ReplicaPosition.of_lsn(view.shown_position(member))
    generation = view.generation(member)
    return EtcdTransaction(
        (
            Compare(LEADER, 0),
            Compare(STATE, view.changed(STATE)),
            Compare(IN_SYNC, view.changed(IN_SYNC)),
            Compare(member_key(member), view.changed(member_key(member))),
            Compare(generation_key(member), view.changed(generation_key(member))),
        ),
        (
            Put(STATE, {"term": term, "leader": member, "request": request}),
            Put(IN_SYNC, {"members": [member], "term": term, "request": request}),
            # The floor may go down here, by the decision of a person.
            Put(FLOOR, {"term": floor.term, "number": floor.number, "request": request}),
            _forced(term, member, request),
            *(
                [generation_put(member, generation._replace(is_proven=True), request)]
                if generation is not None
                else []
            ),
        ),
        request=request,
    )


def forced_history(view: View, request: str) -> EtcdTransaction:
    """Return the transaction with which a person says that the history of the leader holds: who
    stays out because he has more discards that.
    """
    leader = str(view.leader.value["member"]) if view.leader is not None else ""
    key, generation = generation_key(leader), view.generation(leader)
    proof = (
        [generation_put(leader, generation._replace(is_proven=True), request)] if generation else []
    )
    return EtcdTransaction(
        tuple(Compare(one, view.changed(one)) for one in (LEADER, STATE, key)),
        (_forced(view.term, leader, request), *proof),
        request=request,
    )


def _forced(term: int, member: str, request: str) -> Put:
    return Put(FORCED, {"term": term, "member": member, "request": request})


def _seen_term(view: View, member: str) -> int:
    seen = view.shown(member).get("seen")
    term = seen.get("term") if isinstance(seen, Mapping) else None
    return term if isinstance(term, int) else 0


def disbanding(view: View, request: str) -> EtcdTransaction:
    """Return the transaction that deletes all keys of a group without a leader."""
    return EtcdTransaction(
        # Under a leader its members would go on confirming in a group that no longer exists.
        (Compare(GROUP, view.changed(GROUP)), Compare(LEADER, 0)),
        deletes=tuple(view.rows),
        request=request,
    )
