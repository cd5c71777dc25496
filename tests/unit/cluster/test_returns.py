"""A member that comes back older than it was does not lead, and takes nothing from others."""

from __future__ import annotations

import pytest

from amqpstore_server.cluster.effects import Dial, Effect, FindReceived, Persist, Send
from amqpstore_server.cluster.following import Following
from amqpstore_server.cluster.frames import START, Claim, Hello, Join, ReplicaPosition, Welcome
from amqpstore_server.cluster.group_changes import forced_history
from amqpstore_server.cluster.keys import LEADER, EtcdRow, MemberIdentity, View
from amqpstore_server.cluster.leading import Leader
from amqpstore_server.cluster.member import GroupMember
from amqpstore_server.cluster.registering import NEXT, Registered, Registering
from amqpstore_server.cluster.timing import Timing
from tests.simulated_group import returns
from tests.simulated_group.disk import ReplicaDisk
from tests.simulated_group.history import Group
from tests.simulated_group.machine import SimulatedMachine
from tests.simulated_group.returns import Return, told
from tests.unit.cluster.mutants import Mutant, discards_what_is_confirmed

CLAIM = Claim(3, ReplicaPosition(1, 9))
SEEDS = range(2, 5)

STORIES: dict[Return, bool] = {
    returns.followers_from_a_backup: True,
    returns.follower_with_a_lost_end: True,
    returns.leader_with_a_lost_end: True,
    returns.twins: True,
    returns.etcd_from_a_backup: False,
    returns.etcd_made_anew: False,
    returns.member_of_an_older_version_leads: True,
}
"""Returns, and whether clients are served in the end: without a person, no member is elected by an
etcd that is not the group's.
"""


REASONS = ("stays out", "waits for somebody", "is not used")


def group_after(story: Return, seed: int) -> Group:
    return told(seed, story, 1 + seed % 2)


def look(story: Return, seed: int) -> None:
    group = group_after(story, seed)
    assert group.invariants.violations == [], seed
    said = [text for one in group.machines for text in one.reports]
    assert any(one in text for text in said for one in REASONS), seed
    if not has_all_that_was_confirmed(group):
        assert not group.leaders, seed
    elif STORIES[story]:
        assert group.leaders, seed
        assert len(group.etcd.in_sync) > 1, seed


def has_all_that_was_confirmed(group: Group) -> bool:
    """Tell whether a running member has it all; one that confirmed alone may have died for good."""
    floor = group.etcd.view().floor
    return any(one.member is not None and one.disk.last() >= floor for one in group.machines)


each_story = pytest.mark.parametrize("story", STORIES, ids=lambda one: one.__name__)


@each_story
def test_nothing_confirmed_is_lost(story: Return) -> None:
    for seed in SEEDS:
        look(story, seed)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.rounds(1)
@each_story
def test_nothing_confirmed_is_lost_in_many_histories(story: Return, seed: int) -> None:
    for number in range(30):
        look(story, seed + number)


def test_nobody_leads_where_only_a_twin_that_is_gone_has_what_was_confirmed() -> None:
    """The twin was elected instead of its original, and confirmed alone, with min_in_sync 1."""
    seed = 305551080
    assert not has_all_that_was_confirmed(group_after(returns.twins, seed))
    look(returns.twins, seed)


def test_the_leader_s_history_holds_if_a_person_says_so() -> None:
    """Members that have more stay out until then; the leader's reports and etcd say so."""
    group = told(4, lambda group: None)
    leader, *others = returns.older_leader(group, is_idle=True)
    assert group.leaders == [leader]
    assert group.invariants.violations == []
    view = group.etcd.view()
    for other in others:
        assert "stays out and keeps what it has" in view.shown(other.name)["waits"]
        assert any(f"{other.name} stays out" in text for text in leader.reports)
    assert leader.member is not None
    assert leader.member.waiting >= 2
    lengths = [one.disk.last().number for one in others]
    assert min(lengths) > leader.disk.last().number
    assert group.etcd.operate(forced_history(view, "a person"))
    group.invariants.discards = lambda *_: None  # type: ignore[method-assign]
    group.invariants.opened = lambda *_: None  # type: ignore[method-assign]
    group.run(20.0)
    assert sorted(group.etcd.in_sync) == ["A", "B", "C"]
    assert {one.disk.last() for one in others} == {leader.disk.last()}
    waiting = [group.etcd.view().shown(one).get("waits") for one in "ABC"]
    assert waiting == [None, None, None]


@pytest.mark.parametrize(
    ("announced", "expected", "takes_tags"),
    [({}, [], False), ({"protocol": 2}, [CLAIM], False), ({"protocol": 3}, [CLAIM], True)],
)
def test_a_claim_and_tags_are_sent_only_to_a_leader_that_takes_them(
    announced: dict[str, int], expected: list[Claim], *, takes_tags: bool
) -> None:
    """Members of two versions follow each other while they are upgraded."""
    effects: list[Effect] = []
    identity = MemberIdentity("b", "b1", "store", 1)
    following = Following(identity, 0, ReplicaDisk(), Timing(), effects)
    following.claim = CLAIM
    leader = {"member": "a", "incarnation": "a1", "term": 1, "replicate": "a", "request": "1"}
    rows = {LEADER: EtcdRow({**leader, **announced}, 5)}
    following.tick(View(1, 5, rows), 0.0)
    following.connected(7)
    sent = [one.frame for one in effects if isinstance(one, Send)]
    assert sent[:-1] == expected
    assert isinstance(sent[-1], Hello)
    assert [one.takes_tags for one in effects if isinstance(one, Dial)] == [takes_tags]


def test_a_log_that_lost_what_a_checkpoint_has_is_replaced_by_a_copy() -> None:
    """The leader has all of its log, so nothing else of it is in doubt."""
    effects: list[Effect] = []
    disk = ReplicaDisk()
    disk.covered = 3
    following = Following(MemberIdentity("b", "b1", "store", 1), 1, disk, Timing(), effects)
    leader = {"member": "a", "incarnation": "a1", "term": 1, "replicate": "a", "request": "1"}
    view = View(1, 5, {LEADER: EtcdRow(leader, 5)})
    following.tick(view, 0.0)
    following.connected(7)
    following.welcome(7, Welcome("a", "a1", 1, 1, Join.STREAM, START))
    following.viewed(view)
    assert Persist(1) in effects
    following.persisted(1, 0.0)
    assert effects[-1] == FindReceived(1)


# Each rule, broken.


def stands_whatever_it_lacks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupMember, "_lacks", lambda *_: "")


def counts_no_generations(patch: pytest.MonkeyPatch) -> None:
    """Any process with a member's MEMBER is that member."""

    def viewed(self: Registering, _view: View, _last: object) -> None:
        if self.state is Registered.NO:
            self._go(Registered.YES)
        self.is_proven = True

    assert Registered.YES in NEXT[Registered.NO]
    patch.setattr(Registering, "viewed", viewed)
    refusal = Leader._refusal
    patch.setattr(Leader, "_refusal", lambda self, hello, _: refusal(self, hello, None))


def takes_an_older_copy_for_the_member(patch: pytest.MonkeyPatch) -> None:
    """A start is counted, and compared with nothing."""
    register = Registering._register

    def proven(self: Registering, *arguments: object) -> None:
        register(self, *arguments)  # type: ignore[arg-type]
        if self._wanted is not None:
            self._wanted = self._wanted._replace(is_proven=True)

    patch.setattr(Registering, "_register", proven)


def uses_any_etcd(patch: pytest.MonkeyPatch) -> None:
    viewed = SimulatedMachine._viewed
    patch.setattr(GroupMember, "_objection", lambda *_: "")
    patch.setattr(
        SimulatedMachine, "_viewed", lambda self, member, view, _: viewed(self, member, view, 0)
    )


MUTANTS: tuple[tuple[tuple[Mutant, ...], Return], ...] = (
    ((discards_what_is_confirmed,), returns.member_of_an_older_version_leads),
    ((stands_whatever_it_lacks,), returns.followers_from_a_backup),
    ((counts_no_generations,), returns.twins),
    ((takes_an_older_copy_for_the_member,), returns.twins),
    (
        (stands_whatever_it_lacks, takes_an_older_copy_for_the_member),
        returns.follower_with_a_lost_end,
    ),
    ((uses_any_etcd,), returns.etcd_from_a_backup),
    ((uses_any_etcd,), returns.etcd_made_anew),
)


@pytest.mark.parametrize(
    ("mutants", "story"), MUTANTS, ids=lambda one: getattr(one, "__name__", "")
)
def test_a_broken_rule_is_noticed(
    mutants: tuple[Mutant, ...], story: Return, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mutant in mutants:
        mutant(monkeypatch)
    assert any(group_after(story, seed).invariants.violations for seed in range(40))
