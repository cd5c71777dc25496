"""Members that break a rule each: the histories are worth nothing if they do not notice.

Each mutant patches one method. Where two rules cover each other, so that a member that breaks only
one of them does no harm, the pair is broken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from amqpstore_server.cluster import electing, in_sync, keys, tenure
from amqpstore_server.cluster.electing import Candidacy, Electing
from amqpstore_server.cluster.following import Following, Stream
from amqpstore_server.cluster.frames import HeldBatch, Hello, Promise, Welcome
from amqpstore_server.cluster.in_sync import InSyncList
from amqpstore_server.cluster.keys import EtcdTransaction, View
from amqpstore_server.cluster.leading import Leader
from amqpstore_server.cluster.member import GroupMember
from amqpstore_server.cluster.progress import FollowerProgress
from amqpstore_server.cluster.timing import Health
from tests.simulated_group.disk import ReplicaDisk
from tests.simulated_group.nemesis import Story

Mutant = Callable[[pytest.MonkeyPatch], None]


def without(*keys_compared: str) -> Callable[[Callable[..., EtcdTransaction]], Any]:
    """Return what takes compares of these keys out of a transaction."""

    def mutate(make: Callable[..., EtcdTransaction]) -> Callable[..., EtcdTransaction]:
        def unguarded(*arguments: Any) -> EtcdTransaction:
            made = make(*arguments)
            kept = tuple(one for one in made.compares if one.key not in keys_compared)
            return made._replace(compares=kept)

        return unguarded

    return mutate


# Acks and confirms.


def counts_acks_of_another_connection(patch: pytest.MonkeyPatch) -> None:
    hello = Leader.hello

    def and_remember(self: Leader, link: int, said: Hello, now: float) -> None:
        known = self._followers.get(said.member, FollowerProgress())
        acked = known.acked
        hello(self, link, said, now)
        known.acked = 0 if known.has_lost else acked

    patch.setattr(Leader, "hello", and_remember)


def acks_before_its_sync(patch: pytest.MonkeyPatch) -> None:
    batch = Following.batch

    def and_ack(self: Following, link: int, shipped: Any) -> None:
        batch(self, link, shipped)
        self.synced(shipped.term, shipped.seq)

    patch.setattr(Following, "batch", and_ack)


def confirms_without_its_own_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leader, "_durable", lambda self: self._seq)


def confirms_with_all_but_one(patch: pytest.MonkeyPatch) -> None:
    waits_for: Any = InSyncList.waits_for

    def fewer(self: InSyncList) -> frozenset[str]:
        return frozenset(sorted(waits_for.fget(self))[1:])

    patch.setattr(InSyncList, "waits_for", property(fewer))


def settles_before_commit(patch: pytest.MonkeyPatch) -> None:
    """A follower lets its checkpoints cover what it has."""
    batch = Following.batch

    def and_settle(self: Following, link: int, shipped: Any) -> None:
        batch(self, link, shipped)
        self._commit(shipped.position.number)

    patch.setattr(Following, "batch", and_settle)


def ships_a_definition_behind_its_first_batch(patch: pytest.MonkeyPatch) -> None:
    define, seal = Leader.define, Leader.seal

    def late(self: Leader, number: int, content: bytes, now: float) -> Any:
        before = len(self._effects)
        made = define(self, number, content, now)
        self.__dict__.setdefault("late", []).extend(self._effects[before:])
        del self._effects[before:]
        return made

    def and_then(self: Leader, layout: bytes, content: bytes, now: float) -> Any:
        made = seal(self, layout, content, now)
        self._effects += self.__dict__.pop("late", [])
        return made

    patch.setattr(Leader, "define", late)
    patch.setattr(Leader, "seal", and_then)
    patch.setattr(Following, "_is_next", lambda self, seq: True)


# The list.


def shrinks_before_the_answer(patch: pytest.MonkeyPatch) -> None:
    drop = InSyncList.drop

    def and_forget(self: InSyncList, name: str, fence: int) -> None:
        drop(self, name, fence)
        self.members = tuple(one for one in self.members if one != name)

    patch.setattr(InSyncList, "drop", and_forget)


def grows_before_it_waits(patch: pytest.MonkeyPatch) -> None:
    def members_only(self: InSyncList) -> frozenset[str]:
        return frozenset(self.members) - {self._member}

    patch.setattr(InSyncList, "waits_for", property(members_only))


def forgets_an_offer(patch: pytest.MonkeyPatch) -> None:
    give_up = InSyncList.give_up

    def at_once(self: InSyncList, name: str, fence: int) -> None:
        self._offered.pop(name, None)
        give_up(self, name, fence)

    patch.setattr(InSyncList, "give_up", at_once)


def offers_before_it_has_caught_up(patch: pytest.MonkeyPatch) -> None:
    newcomers = InSyncList.newcomers
    patch.setattr(InSyncList, "newcomers", lambda self: [(name, 0) for name, _ in newcomers(self)])
    patch.setattr(Leader, "_may_enter", lambda self, name, follower, now: follower.is_streaming)


def changes_the_list_with_its_fence_only(patch: pytest.MonkeyPatch) -> None:
    """A late request of its own puts an older list back."""
    patch.setattr(in_sync, "list_change", without(keys.IN_SYNC)(keys.list_change))


def changes_the_list_without_a_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(in_sync, "list_change", without(keys.IN_SYNC, keys.LEADER)(keys.list_change))


def repeats_a_transaction_blindly(patch: pytest.MonkeyPatch) -> None:
    """The outcome of a request is not read but assumed, as if it were repeated until it is done."""
    attempted = InSyncList.attempted

    def again(self: InSyncList, request: str, outcome: Any, revision: int) -> bool | None:
        change = self._change
        if change is not None and request == change.request and outcome != "done":
            self._adopt(change.members, self._revision)
        return attempted(self, request, outcome, revision)

    patch.setattr(InSyncList, "attempted", again)


# Elections.


def stands_without_being_in_the_list(patch: pytest.MonkeyPatch) -> None:
    def may_stand(self: GroupMember, view: View, now: float) -> bool:
        return (
            view.leader is None
            and self._vacant_since is not None
            and now >= self.following.promised_until
        )

    patch.setattr(GroupMember, "_may_stand", may_stand)


def elected_by_an_old_list(patch: pytest.MonkeyPatch) -> None:
    # The floor has moved since, in most cases: comparing that would do as well.
    patch.setattr(electing, "election", without(keys.IN_SYNC, keys.FLOOR)(keys.election))


def elected_whatever_has_changed(patch: pytest.MonkeyPatch) -> None:
    every = (keys.LEADER, keys.STATE, keys.IN_SYNC, keys.FLOOR)
    patch.setattr(electing, "election", without(*every)(keys.election))


def takes_its_key_back_in_the_same_term(patch: pytest.MonkeyPatch) -> None:
    stand = Electing.stand

    def in_the_same(self: Electing, view: View, term: int, now: float) -> None:
        stand(self, view, view.term if view.leader is not None else term, now)

    patch.setattr(Electing, "stand", in_the_same)


def resigns_without_a_fence(patch: pytest.MonkeyPatch) -> None:
    """A resignation deletes the key that another process of the same member has taken back."""
    patch.setattr(tenure, "resignation", without(keys.LEADER)(keys.resignation))


# Terms.


def keeps_no_term(patch: pytest.MonkeyPatch) -> None:
    """A process that was started again takes frames of any term."""
    init = GroupMember.__init__

    def forgetful(self: GroupMember, identity: Any, term: int, *others: Any) -> None:
        init(self, identity, 0, *others)

    patch.setattr(GroupMember, "__init__", forgetful)


def takes_lower_terms(patch: pytest.MonkeyPatch) -> None:
    connected, welcome = Following.connected, Following.welcome

    def forgetting(act: Any) -> Any:
        def in_no_term(self: Following, *arguments: Any) -> None:
            term, self.term = self.term, 0
            act(self, *arguments)
            self.term = term

        return in_no_term

    patch.setattr(Following, "connected", forgetting(connected))
    patch.setattr(Following, "welcome", forgetting(welcome))


def discards_without_asking_etcd(patch: pytest.MonkeyPatch) -> None:
    welcome = Following.welcome

    def unread(self: Following, link: int, frame: Welcome) -> None:
        welcome(self, link, frame)
        if self.state is Stream.VERIFYING:
            leader = {"member": frame.member, "incarnation": frame.incarnation, "term": frame.term}
            row = keys.EtcdRow(leader, 0)
            self.viewed(View(0, 0, {keys.LEADER: row}))

    patch.setattr(Following, "welcome", unread)


def discards_what_is_confirmed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Following, "_missing", lambda *_: "")


def compares_batches_by_position_only(patch: pytest.MonkeyPatch) -> None:
    def has(self: ReplicaDisk, held: HeldBatch) -> bool:
        number = held.position.number
        return 0 < number <= len(self.log) and self.log[number - 1].position == held.position

    patch.setattr(ReplicaDisk, "has", has)


# Promises and health.


def counts_promises_for_longer(patch: pytest.MonkeyPatch) -> None:
    promise = Leader.promise

    def longer(self: Leader, link: int, frame: Promise, now: float) -> None:
        promise(self, link, frame, now)
        if (follower := self._follower(link)) is not None:
            follower.promised_until += 2.0

    patch.setattr(Leader, "promise", longer)


def promises_while_it_stands(patch: pytest.MonkeyPatch) -> None:
    """A member goes on following, and answering beats, while its election is under way.

    That alone makes no two leaders: promises count from when the beat was sent, and the request of
    a candidacy dies with its lease. But the list is not whole again.
    """
    tick, hang_up = GroupMember._tick_follower, Following.hang_up

    def stay(self: Following) -> None:
        if self.state is not Stream.STREAMING:
            hang_up(self)

    def both(self: GroupMember, now: float, health: Health) -> None:
        with patch.context() as during:
            during.setattr(Following, "hang_up", stay)
            tick(self, now, health)
        if self.electing.state is not Candidacy.NONE:
            self.following.tick(self._view, now)

    lead = GroupMember._lead

    def alone(self: GroupMember, *arguments: Any) -> None:
        hang_up(self.following)
        lead(self, *arguments)

    patch.setattr(GroupMember, "_tick_follower", both)
    patch.setattr(GroupMember, "_lead", alone)


def leads_whatever_its_health(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Health, "is_fit", lambda *_: True)


def stands_in_turn_although_damaged(patch: pytest.MonkeyPatch) -> None:
    turn_s = GroupMember._turn_s

    def as_if_well(self: GroupMember, view: View) -> float:
        identity = self.identity
        self.identity = identity._replace(is_damaged=False)
        turn = turn_s(self, view)
        self.identity = identity
        return turn

    patch.setattr(GroupMember, "_turn_s", as_if_well)


def serves_by_its_lease_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leader, "serves_until", lambda self: self.lease_until)


def keeps_silent_when_it_stops(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Following, "resigned", lambda *_: None)


def waits_for_a_dead_follower(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leader, "_reason_to_drop", lambda *_: False)


def pair(*mutants: Mutant) -> Mutant:
    """Return a mutant that breaks rules which cover each other."""

    def both(patch: pytest.MonkeyPatch) -> None:
        for mutant in mutants:
            mutant(patch)

    both.__name__ = "_and_".join(one.__name__ for one in mutants)
    return both


MUTANTS: tuple[tuple[Mutant, Story | None], ...] = (
    (acks_before_its_sync, None),
    (confirms_without_its_own_sync, None),
    (confirms_with_all_but_one, None),
    (settles_before_commit, None),
    (ships_a_definition_behind_its_first_batch, None),
    (grows_before_it_waits, None),
    (offers_before_it_has_caught_up, None),
    (counts_promises_for_longer, Story.CUT_OFF),
    (shrinks_before_the_answer, Story.LATE_CHANGES),
    (forgets_an_offer, Story.LATE_CHANGES),
    (changes_the_list_with_its_fence_only, Story.LATE_CHANGES),
    (changes_the_list_without_a_fence, Story.LATE_CHANGES),
    (repeats_a_transaction_blindly, Story.LATE_CHANGES),
    (stands_without_being_in_the_list, Story.OLD_LIST),
    (elected_by_an_old_list, Story.OLD_LIST),
    (elected_whatever_has_changed, Story.LATE_ELECTION),
    (promises_while_it_stands, Story.LATE_ELECTION),
    (
        pair(takes_its_key_back_in_the_same_term, compares_batches_by_position_only),
        Story.LOST_TAIL,
    ),
    (resigns_without_a_fence, Story.LATE_RESIGNATION),
    (counts_acks_of_another_connection, Story.LOST_LINKS),
    (
        pair(keeps_no_term, discards_without_asking_etcd, discards_what_is_confirmed),
        Story.TWO_LEADERS,
    ),
    (
        pair(takes_lower_terms, discards_without_asking_etcd, discards_what_is_confirmed),
        Story.TWO_LEADERS,
    ),
)
"""Each with the story that finds it within a few seeds; None: histories of any faults do."""
