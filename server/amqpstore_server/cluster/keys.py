"""The keys of a group in etcd, and the transactions that change them.

Every change of who leads, or of who counts, is one transaction of compares and puts. Two compares
guard each: the leadership it belongs to (the `mod_revision` of the key `leader`, the *fence*), and
the revision of what it replaces. The second also kills one's own requests that arrive late: etcd
may carry out a request whose answer was lost long after it was given up, and after its process is
gone.

The fence is not the `create_revision`: that stays the same when a process takes back the key that
the process before it left, whose resignation may still be under way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from amqpstore_server.cluster.frames import PROTOCOL, START, ReplicaPosition

GROUP = "group"
STATE = "state"
LEADER = "leader"
IN_SYNC = "in_sync"
HANDOVER = "handover"
SECRET = "secret"  # noqa: S105 (the name of a key)
FLOOR = "floor"
"""Up to where everything is confirmed, as of a second ago: who has less does not stand."""
FORCED = "forced"
"""The last decision of a person on which history holds."""
_MEMBERS = "members/"
_ALIVE = "alive/"
_DECIDED = (GROUP, STATE, IN_SYNC, FORCED)


def member_key(member: str) -> str:
    """Return the key that makes a member one of the group."""
    return f"{_MEMBERS}{member}"


def alive_key(member: str) -> str:
    """Return the key with which a member shows that it runs, for people and for elections."""
    return f"{_ALIVE}{member}"


def outsider_key(member: str, incarnation: str) -> str:
    """Return the key with which a process shows itself that is not, or no longer, the one of its
    member.
    """
    return f"{_ALIVE}{member}/{incarnation}"


def generation_key(member: str) -> str:
    """Return the key that names the last process of a member."""
    return f"generations/{member}"


class Generation(NamedTuple):
    """The last process of a member: which start it was, and its incarnation.

    `is_proven`: whether its data directory is the one that the process before it had, or has caught
    up with a leader since. An older copy is neither, and does not stand for election.
    """

    number: int
    incarnation: str
    is_proven: bool


class EtcdRow(NamedTuple):
    """A key's value in etcd, and the revision at which it was last changed."""

    value: Mapping[str, Any]
    changed: int


class View(NamedTuple):
    """All keys of a group, as one linearizable read returned them."""

    cluster: int
    """The id of the etcd cluster that answered: one that was made anew or restored has another
    number.
    """
    revision: int
    rows: Mapping[str, EtcdRow]

    def changed(self, key: str) -> int:
        """Return the revision of the last change of a key; 0 if it is absent."""
        row = self.rows.get(key)
        return row.changed if row else 0

    @property
    def leader(self) -> EtcdRow | None:
        return self.rows.get(LEADER)

    @property
    def term(self) -> int:
        """The term of the last election; 0 before the first one."""
        row = self.rows.get(STATE)
        # The term is in a key without a lease: the next one has to be higher also when there is no
        # leader.
        return int(row.value["term"]) if row else 0

    @property
    def last_leader(self) -> str:
        row = self.rows.get(STATE)
        return str(row.value["leader"]) if row else ""

    @property
    def in_sync(self) -> tuple[str, ...]:
        row = self.rows.get(IN_SYNC)
        return tuple(row.value["members"]) if row else ()

    @property
    def min_in_sync(self) -> int:
        row = self.rows.get(GROUP)
        return int(row.value["min_in_sync"]) if row else 1

    @property
    def protocol(self) -> int:
        """The least version of the frames that all members speak."""
        row = self.rows.get(GROUP)
        return int(row.value["protocol"]) if row else 0

    @property
    def store_id(self) -> str:
        """The id of the group's store, as in its marker; empty before the group is founded."""
        row = self.rows.get(GROUP)
        return str(row.value.get("store_id", "")) if row else ""

    @property
    def group_id(self) -> str:
        """The id that tells this group from any other, and from one that was founded in its place;
        empty in a group that an older version has founded.
        """
        row = self.rows.get(GROUP)
        return str(row.value.get("id", "")) if row else ""

    @property
    def floor(self) -> ReplicaPosition:
        """Up to here everything was confirmed; `START` if no leader has said so yet."""
        row = self.rows.get(FLOOR)
        return ReplicaPosition(int(row.value["term"]), int(row.value["number"])) if row else START

    @property
    def forced_term(self) -> int:
        """The term whose history holds by the decision of a person; 0 if there was none."""
        row = self.rows.get(FORCED)
        return int(row.value["term"]) if row else 0

    @property
    def decided_at(self) -> int:
        """The revision of the last change of who leads and who counts."""
        return max(self.changed(key) for key in _DECIDED)

    def generation(self, member: str) -> Generation | None:
        """Return the last process of a member; None if it never had one that counts them."""
        row = self.rows.get(generation_key(member))
        if row is None:
            return None
        value = row.value
        return Generation(int(value["number"]), str(value["incarnation"]), bool(value["proven"]))

    def shown(self, member: str) -> Mapping[str, Any]:
        """Return what a member shows of itself; nothing if it does not run."""
        row = self.rows.get(alive_key(member))
        return row.value if row else {}

    def shown_position(self, member: str) -> int:
        """Return the LSN with which a member says that its log ends; 0 if it does not."""
        position = self.shown(member).get("position")
        return position if isinstance(position, int) else 0

    def has_room(self, member: str) -> bool:
        """Whether a member says that its disk is not nearly full: older versions say nothing."""
        return self.shown(member).get("disk_low") is False

    @property
    def secret(self) -> bytes:
        """The secret that members prove to each other that they know; empty before the group is
        founded.
        """
        row = self.rows.get(SECRET)
        return bytes.fromhex(row.value["secret"]) if row else b""

    @property
    def members(self) -> dict[str, Mapping[str, Any]]:
        """The facts that are known about each member: where it is, and whether it may be in the
        list.
        """
        return {
            key.removeprefix(_MEMBERS): row.value
            for key, row in self.rows.items()
            if key.startswith(_MEMBERS)
        }

    @property
    def voters(self) -> frozenset[str]:
        """The members that may be in the list: all but observers."""
        return frozenset(name for name in self.members if self.is_voter(name))

    def is_voter(self, member: str) -> bool:
        """Whether a member may be in the list: observers may not."""
        row = self.rows.get(member_key(member))
        return row is not None and bool(row.value["sync"])

    @property
    def handover(self) -> str:
        """The member that an operator, or the leader of this term, wants to lead next."""
        row = self.rows.get(HANDOVER)
        return str(row.value["to"]) if row and row.value["term"] == self.term else ""

    def has_member(self, member: str) -> bool:
        return member_key(member) in self.rows

    def is_alive(self, member: str) -> bool:
        return alive_key(member) in self.rows

    def is_adrift(self, member: str) -> bool:
        """Whether a member runs without following a leader, by its own word."""
        row = self.rows.get(alive_key(member))
        return row is not None and not row.value.get("follows", False)


class MemberIdentity(NamedTuple):
    """The identity of a member. `incarnation` is another one in each process; the others are kept
    beside the store and never copied.
    """

    member: str
    incarnation: str
    store_id: str
    cluster: int
    """The etcd cluster that it belongs to. It has nothing to do with any other."""
    replicate: str = ""
    """The address at which other members reach it: host:port."""
    amqp: str = ""
    is_damaged: bool = False
    """Whether its last recovery found damage: it stands for election last."""


class Compare(NamedTuple):
    """A condition: the key was last changed at this revision; 0 means that it is absent."""

    key: str
    revision: int


class Put(NamedTuple):
    """A key's new value; `lease` is a number, or 0 for a key that stays."""

    key: str
    value: Mapping[str, Any]
    lease: int = 0


class EtcdTransaction(NamedTuple):
    """Puts and deletes that happen together, if all compares hold.

    `request` is in each value it puts, so that a later read tells whether it happened.
    """

    compares: tuple[Compare, ...]
    puts: tuple[Put, ...] = ()
    deletes: tuple[str, ...] = ()
    request: str = ""


def election(
    view: View, identity: MemberIdentity, term: int, lease: int, request: str
) -> EtcdTransaction:
    """Return the transaction with which a member of the in-sync list becomes the leader.

    It also takes back the member's own key, which an incarnation left that is gone: whoever holds
    the lock of the directory knows that.
    """
    own = view.leader is not None and view.leader.value["member"] == identity.member
    members = _succession(view, identity.member)
    value = {
        "member": identity.member,
        "incarnation": identity.incarnation,
        "term": term,
        # A key is taken back once only: a member that dies soon after each start would otherwise
        # do so without limit, beside healthy followers.
        "retaken": own,
        "replicate": identity.replicate,
        "amqp": identity.amqp,
        "protocol": PROTOCOL,
        "request": request,
    }
    return EtcdTransaction(
        (
            Compare(LEADER, view.changed(LEADER) if own else 0),
            Compare(STATE, view.changed(STATE)),
            # The list is compared in the transaction that decides: an older copy of it may still
            # name a member that the leader has gone on without.
            Compare(IN_SYNC, view.changed(IN_SYNC)),
            # What the candidate was measured by: the floor, and that it is its member's process.
            Compare(FLOOR, view.changed(FLOOR)),
            Compare(generation_key(identity.member), view.changed(generation_key(identity.member))),
        ),
        (
            Put(LEADER, value, lease),
            Put(STATE, {"term": term, "leader": identity.member, "request": request}),
            Put(IN_SYNC, {"members": list(members), "term": term, "request": request}),
        ),
        request=request,
    )


def _succession(view: View, member: str) -> tuple[str, ...]:
    """Return the list under a new leader: without the former one, unless too few would be left.

    Below `min_in_sync` nothing is committed, so dropping the former leader would gain nothing, and
    cost a candidate that has all of it.
    """
    others = [one for one in view.in_sync if one != member]
    without = [one for one in others if one != view.last_leader]
    return (member, *(without if len(without) + 1 >= view.min_in_sync else others))


class FloorChange(NamedTuple):
    """A change of the position up to which everything is confirmed, with the revision of the key
    that says so in etcd until now: without comparing that, a request that is carried out late would
    lower it again.
    """

    position: ReplicaPosition
    revision: int


def list_change(
    fence: int,
    list_revision: int,
    members: tuple[str, ...],
    term: int,
    request: str,
    floor: FloorChange | None = None,
) -> EtcdTransaction:
    """Return the transaction with which the leader grows or shrinks the in-sync list, and says how
    far everything is confirmed.
    """
    compares, puts = _floor_change(floor, request) if floor is not None else ((), ())
    change = Put(IN_SYNC, {"members": list(members), "term": term, "request": request})
    return EtcdTransaction(
        (Compare(LEADER, fence), Compare(IN_SYNC, list_revision), *compares),
        (change, *puts),
        request=request,
    )


def floor_change(fence: int, floor: FloorChange, request: str) -> EtcdTransaction:
    """Return the transaction with which the leader says how far everything is confirmed."""
    compares, puts = _floor_change(floor, request)
    return EtcdTransaction((Compare(LEADER, fence), *compares), puts, request=request)


def _floor_change(floor: FloorChange, request: str) -> tuple[tuple[Compare, ...], tuple[Put, ...]]:
    (term, number), revision = floor
    put = Put(FLOOR, {"term": term, "number": number, "request": request})
    # Without its revision an older floor that arrives late would say that less is confirmed, and
    # let an older copy stand.
    return (Compare(FLOOR, revision),), (put,)


def naming(fence: int, view: View, group_id: str, request: str) -> EtcdTransaction:
    """Return the transaction with which a leader gives an id to a group that has none: an older
    version has founded it.
    """
    return EtcdTransaction(
        (Compare(LEADER, fence), Compare(GROUP, view.changed(GROUP))),
        (Put(GROUP, {**view.rows[GROUP].value, "id": group_id, "request": request}),),
        request=request,
    )


def registration(view: View, member: str, generation: Generation, request: str) -> EtcdTransaction:
    """Return the transaction with which a process becomes the one of its member."""
    key = generation_key(member)
    return EtcdTransaction(
        (Compare(key, view.changed(key)), Compare(GROUP, view.changed(GROUP))),
        (generation_put(member, generation, request),),
        request=request,
    )


def proof(fence: int, view: View, member: str, request: str) -> EtcdTransaction | None:
    """Return the transaction with which a leader says that a member has caught up, whatever copy of
    its directory it began with; None if that is not in doubt.
    """
    found = view.generation(member)
    # A row that is right already is not written again: each change wakes all members.
    if found is None or found.is_proven:
        return None
    return EtcdTransaction(
        (
            Compare(LEADER, fence),
            Compare(generation_key(member), view.changed(generation_key(member))),
        ),
        (generation_put(member, found._replace(is_proven=True), request),),
        request=request,
    )


def generation_put(member: str, generation: Generation, request: str) -> Put:
    """Return what names the last process of a member."""
    number, incarnation, is_proven = generation
    value = {"number": number, "incarnation": incarnation, "proven": is_proven, "request": request}
    return Put(generation_key(member), value)


def regain(
    state_revision: int, value: Mapping[str, Any], lease: int, request: str
) -> EtcdTransaction:
    """Return the transaction that renews a leadership whose lease was lost, if no member was
    elected since.
    """
    return EtcdTransaction(
        # The state's revision is that of this leader's election: if anybody was elected since, or
        # a person has forced a succession, it has changed.
        (Compare(LEADER, 0), Compare(STATE, state_revision)),
        (Put(LEADER, {**value, "request": request}, lease),),
        request=request,
    )


def resignation(fence: int, term: int, successor: str, request: str) -> EtcdTransaction:
    """Return the transaction with which a leader gives up, and names who is to stand first."""
    handover = {"to": successor, "term": term, "request": request}
    return EtcdTransaction(
        (Compare(LEADER, fence),),
        (Put(HANDOVER, handover),) if successor else (),
        # The key is deleted and not left to its lease: the successor stands at once.
        (LEADER,),
        request,
    )
