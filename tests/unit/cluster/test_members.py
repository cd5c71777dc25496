"""Tests of who may follow, who may be in the list, and what a person may decide."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from amqpstore_server.cluster import leading
from amqpstore_server.cluster.frames import Beat, Frame, Hello, ShippedBatch, Welcome
from amqpstore_server.cluster.group_changes import forced_succession
from amqpstore_server.cluster.keys import IN_SYNC, LEADER, EtcdTransaction
from amqpstore_server.cluster.member import Role
from amqpstore_server.cluster.progress import DropReason
from amqpstore_tools.cluster.joining import _removal
from amqpstore_tools.offline.exits import ToolError
from tests.simulated_group.disk import LogEntry
from tests.simulated_group.etcd import keep_none
from tests.simulated_group.history import Group
from tests.simulated_group.machine import SYNC_S, TIMING, SimulatedMachine


@pytest.fixture
def group() -> Group:
    """A, B and C, without a fault: A leads, as the oldest."""
    made = Group(0)
    made.etcd.loss = made.network.slow = 0.0
    made.run(8.0)
    assert made.leaders
    assert made.etcd.view().in_sync == ("A", "B", "C")
    return made


def last_follower(group: Group) -> SimulatedMachine:
    leader = group.leaders[0]
    return [one for one in group.machines if one is not leader][-1]


def reports(group: Group) -> str:
    return "\n".join(text for one in group.machines for text in one.reports)


def test_another_member_leads_within_five_seconds_after_a_leader_has_died(group: Group) -> None:
    """The time is virtual: how long a real group takes depends on its machines, too."""
    (died,) = group.leaders
    died.kill(with_power=False)
    group.run(5.0)
    assert group.leaders
    assert died not in group.leaders


def test_an_observer_follows_and_is_not_waited_for(group: Group) -> None:
    observer = last_follower(group)
    group.etcd.set_member(observer.name, sync=False)
    group.leaders[0].watched()
    group.run(5.0)
    assert observer.name not in group.etcd.view().in_sync
    before = group.etcd.view().changed(IN_SYNC)
    group.run(10.0)
    assert group.etcd.view().changed(IN_SYNC) == before
    assert observer.disk.last().number > len(group.invariants.confirms) - 5
    assert group.invariants.violations == []


def test_a_batch_that_takes_long_to_arrive_costs_no_follower_its_place(group: Group) -> None:
    """A follower stays as long as more of the batch comes; one that gets no more is dropped."""
    before = group.etcd.view().changed(IN_SYNC)
    confirmed = len(group.invariants.confirms)
    group.network.transfer_s = 3 * TIMING.ack_timeout_s
    group.run(30.0)
    assert group.etcd.view().changed(IN_SYNC) == before
    assert len(group.invariants.confirms) > confirmed
    cut = last_follower(group)
    cut.progressed = lambda link: None  # type: ignore[method-assign]
    group.run(10.0)
    assert cut.name not in group.etcd.view().in_sync
    assert group.invariants.violations == []


def test_a_catch_up_takes_as_long_as_it_takes(group: Group) -> None:
    """A catch-up goes in small batches, none of which takes long: each is a sign of life."""
    away = last_follower(group)
    away.kill(with_power=True)
    group.run(20.0)
    welcomes = []
    received = away.received

    def count(link: int, frame: Frame) -> None:
        welcomes.extend([link] if isinstance(frame, Welcome) else [])
        # As one that has no beats: they come late on a link that is busy with the catch-up.
        if not isinstance(frame, Beat):
            received(link, frame)

    away.received = count  # type: ignore[method-assign]
    group.network.transfer_s = 0.03
    lacking = len(group.leaders[0].disk.log) - len(away.disk.log)
    assert lacking * group.network.transfer_s > 2 * TIMING.promise_s
    away.restart()
    group.run(lacking * group.network.transfer_s + 1.0)
    away.received = received  # type: ignore[method-assign]
    group.run(6.0)
    assert len(welcomes) == 1
    assert away.name in group.etcd.view().in_sync
    assert group.invariants.violations == []


def test_a_leader_that_takes_long_to_answer_is_asked_once(group: Group) -> None:
    """The leader searches many segments for what both have: each Hello would make it start anew."""
    (leader,) = group.leaders
    away = last_follower(group)
    away.kill(with_power=True)
    group.run(6.0)
    received, hellos = leader.received, []

    def take_long(link: int, frame: Frame) -> None:
        if isinstance(frame, Hello):
            hellos.append(link)
            group.events.after(5.0, lambda: received(link, frame))
        else:
            received(link, frame)

    leader.received = take_long  # type: ignore[method-assign]
    away.restart()
    group.run(10.0)
    assert len(hellos) == 1
    assert away.name in group.etcd.view().in_sync


def test_a_slow_follower_leaves_the_list_and_comes_back(group: Group) -> None:
    """None of its acks is overdue, and nothing is confirmed before the follower has it."""
    slow = last_follower(group)
    slow.sync_s = 1.0
    group.run(3.0)
    assert slow.name not in group.etcd.view().in_sync
    assert f"{slow.name} has left the in-sync list: it is slow" in reports(group)
    (leader,) = group.leaders
    group.run(TIMING.alive_every_s)
    assert group.etcd.view().shown(leader.name)["left"] == {slow.name: DropReason.SLOW.value}
    before = len(group.invariants.confirms)
    group.run(10.0)
    assert len(group.invariants.confirms) > before + 50
    slow.sync_s = SYNC_S
    group.run(8.0)
    assert slow.name in group.etcd.view().in_sync
    group.run(TIMING.alive_every_s)
    assert "left" not in group.etcd.view().shown(leader.name)
    assert group.invariants.violations == []


def test_a_leader_whose_disk_is_full_lets_a_follower_lead_that_has_room(group: Group) -> None:
    """Otherwise its publishers would wait for ever though another member has room. Where all disks
    are full, the leader stays.
    """
    (full,) = group.leaders
    oldest = next(one for one in group.machines if one is not full)
    full.is_disk_low = oldest.is_disk_low = True
    group.run(TIMING.disk_low_s + 5.0)
    (leader,) = group.leaders
    assert leader not in (full, oldest)
    assert f"nearly full, and {leader.name} has room" in reports(group)
    leader.is_disk_low = True
    term = group.etcd.view().term
    group.run(3 * TIMING.disk_low_s)
    assert group.leaders == [leader]
    assert group.etcd.view().term == term
    assert group.etcd.view().shown(full.name)["disk_low"]
    assert set(group.etcd.view().in_sync) == {"A", "B", "C"}
    assert group.invariants.violations == []


def test_who_is_named_leads_although_another_one_is_older(group: Group) -> None:
    """The resignation names it, and is carried out before the lease of the old key ends."""
    (before,) = group.leaders
    named = group.etcd.in_sync[-1]
    leader = before.member.leader if before.member is not None else None
    assert leader is not None
    leader.hand_over(named, before.now)
    group.run(3.0)
    assert [one.name for one in group.leaders] == [named]
    assert group.invariants.violations == []


def test_consumers_do_not_put_off_a_change_of_leaders(group: Group) -> None:
    """Acks of consumers are sealed while earlier ones are under way, so there is always one that is
    not committed.
    """
    (before,) = group.leaders
    named = group.etcd.in_sync[-1]
    leader = before.member.leader if before.member is not None else None
    assert leader is not None

    def ack() -> None:
        if before.member is None or not before.serves:
            return
        content = b"acks|" + before.disk.definitions[-1]
        batch = before.member.seal(b"", content, before.now)
        if batch is not None:
            before._pending[batch.seq] = LogEntry(batch.position, batch.content)
            before._append(batch)
            before._obey()
            group.events.after(2 * SYNC_S, ack)

    ack()
    group.events.run_until(group.events.now + 1.0)
    leader.hand_over(named, before.now)
    began = group.events.now
    while group.leaders in ([], [before]) and group.events.now < began + 10.0:
        group.events.run_until(group.events.now + 0.05)
    assert group.events.now < began + 1.5
    assert [one.name for one in group.leaders] == [named]
    group.run(3.0)
    assert group.invariants.violations == []


def test_who_is_as_slow_as_the_others_stays(group: Group) -> None:
    before = group.etcd.view().changed(IN_SYNC)
    for one in group.machines:
        one.sync_s = 0.4
    group.run(20.0)
    assert group.etcd.view().changed(IN_SYNC) == before


def test_who_has_died_leaves_the_list_although_nothing_is_published(group: Group) -> None:
    """A list counts live members: otherwise another one that is needed may be removed."""
    dead = last_follower(group)
    group.events.run_until(group.events.now + 2.0)  # nothing is under way
    dead.kill(with_power=True)
    group.events.run_until(group.events.now + 8.0)
    assert dead.name not in group.etcd.view().in_sync


def test_a_leader_knows_how_many_of_the_list_it_reaches(group: Group) -> None:
    """The list never shrinks below the minimum, so it does not say that nothing is confirmed: an
    alert goes by who is in reach. Nothing has to be published for that.
    """
    (machine,) = group.leaders
    leader = machine.member.leader if machine.member is not None else None
    assert leader is not None
    assert leader.in_reach == 3
    group.events.run_until(group.events.now + 2.0)  # nothing is under way
    for one in group.machines:
        if one is not machine:
            one.kill(with_power=True)
    group.events.run_until(group.events.now + 2 * TIMING.promise_s)
    assert len(leader.members) >= leader.min_in_sync == 2
    assert leader.in_reach == 1


def test_a_healthy_member_is_not_removed_while_another_one_is_dead(group: Group) -> None:
    """The verb itself removes members with nothing published: only live ones are listed by then."""
    dead = last_follower(group)
    (healthy,) = (one for one in group.machines if one not in (dead, group.leaders[0]))
    keys: Any = SimpleNamespace(where="etcd")
    _removal(keys, group.etcd.view(), healthy.name, "while all live")
    group.events.run_until(group.events.now + 2.0)  # nothing is under way
    dead.kill(with_power=True)
    group.events.run_until(group.events.now + 8.0)
    with pytest.raises(ToolError, match="fewer than min_in_sync, 2, replicas would be in sync"):
        _removal(keys, group.etcd.view(), healthy.name, "while one is dead")
    group.etcd.operate(_removal(keys, group.etcd.view(), dead.name, "the dead one"))
    before = len(group.invariants.confirms)
    group.run(5.0)
    assert len(group.invariants.confirms) > before


def test_a_key_of_a_dead_member_is_no_reason_to_give_up(group: Group) -> None:
    """B dies while C is away: A goes on serving consumers until one of them is back."""
    (leader,) = group.leaders
    second, third = (one for one in group.machines if one is not leader)
    third.kill(with_power=True)
    while third.name in group.etcd.view().in_sync:
        assert group.events.now < 20.0
        group.run(0.5)
    group.run(1.0)
    second.kill(with_power=True)
    term, died_at = group.etcd.view().term, group.events.now
    while group.events.now < died_at + 12.0:
        group.run(0.5)
        assert group.leaders == [leader]
    third.restart()
    before = len(group.invariants.confirms)
    group.run(8.0)
    assert len(group.invariants.confirms) > before
    assert group.etcd.view().term == term
    assert group.invariants.violations == []


def test_who_connects_again_and_again_and_acks_nothing_leaves_the_list(group: Group) -> None:
    """The follower's disk is full: it gets a batch, cannot write it, and connects again."""
    full = last_follower(group)
    received = full.received

    def refuse(link: int, frame: Frame) -> None:
        if isinstance(frame, ShippedBatch):
            group.network.hang_up(link)
        else:
            received(link, frame)

    full.received = refuse  # type: ignore[method-assign]
    before = group.etcd.view().term
    group.run(5.0)
    assert full.name not in group.etcd.view().in_sync
    group.run(10.0)
    assert group.etcd.view().term == before
    assert group.invariants.violations == []
    full.received = received  # type: ignore[method-assign]
    group.run(5.0)
    assert full.name in group.etcd.view().in_sync


def give_up(one: SimulatedMachine) -> None:
    one._alone(one._starts, lambda member: member.give_up("its port is taken", one.now))


def test_who_cannot_serve_clients_lets_another_one_lead_at_once(group: Group) -> None:
    unable = group.leaders[0]
    give_up(unable)
    group.run(2.0)
    assert group.leaders
    assert unable not in group.leaders
    group.run(5.0)
    assert unable.name in group.etcd.view().in_sync
    assert group.invariants.violations == []


def test_who_cannot_serve_clients_and_is_alone_tries_again_after_a_while() -> None:
    group = Group(0, size=1, min_in_sync=1)
    group.run(8.0)
    (unable,) = group.leaders
    before = group.etcd.view().term
    give_up(unable)
    group.run(TIMING.unable_s - 2.0)
    assert not group.leaders
    assert group.etcd.view().term == before
    group.run(8.0)
    assert group.leaders == [unable]
    assert group.invariants.violations == []


def test_who_cannot_open_its_store_lets_another_one_lead(group: Group) -> None:
    """The disk of the new leader hangs during the recovery: it once renewed its lease for ever."""
    first, second, third = group.machines
    assert group.leaders == [first]
    second.is_recovery_stuck = True
    first.kill(with_power=True)
    while third not in group.leaders:
        assert group.events.now < 8.0 + TIMING.opening_s + 8.0
        group.run(0.5)
    assert group.invariants.violations == []


def test_a_member_of_another_store_is_refused(group: Group) -> None:
    other = last_follower(group)
    other.kill(with_power=True)
    other.store_id = "another"
    other.restart()
    group.run(5.0)
    assert (
        f"this member is refused: this group's store is store, and {other.name} has another: let "
        "it join with an empty data directory"
    ) in other.reports
    group.run(5.0)
    assert other.name not in group.etcd.view().in_sync


def test_who_is_no_member_of_the_group_is_refused(group: Group) -> None:
    stranger = last_follower(group)
    stranger.kill(with_power=True)
    stranger.name = "X"
    group.network.ends["X"] = stranger
    stranger.start()
    group.run(5.0)
    assert "X is not a member of this group: let it join first" in reports(group)


@pytest.mark.parametrize("left", [3, 2])
def test_a_disk_that_lost_what_it_acked_leaves_the_list_however_few_are_left(
    group: Group, left: int
) -> None:
    liar = last_follower(group)
    others = [one for one in group.machines if one is not liar and one not in group.leaders]
    if left == 2:
        others[0].kill(with_power=True)
        group.run(5.0)
    assert len(group.etcd.view().in_sync) == left
    liar.kill(with_power=True)
    liar.disk.lose_last(10)
    before = len(group.invariants.confirms)
    liar.restart()
    group.run(0.1)
    while liar.name in group.etcd.view().in_sync:
        assert group.events.now < 60.0
        group.run(0.1)
    assert f"{liar.name} has acked batch" in reports(group)
    group.run(10.0)
    # It has caught up, and may be elected again.
    assert liar.name in group.etcd.view().in_sync
    assert len(group.invariants.confirms) > before
    assert group.invariants.violations == []


def test_who_is_dropped_again_and_again_waits_before_it_enters(group: Group) -> None:
    lame = last_follower(group)
    waited = []
    for _ in range(4):
        lame.is_disk_stuck = True
        while lame.name in group.etcd.view().in_sync:
            group.run(0.5)
        lame.is_disk_stuck = False
        since = group.events.now
        while lame.name not in group.etcd.view().in_sync:
            assert group.events.now < since + 60.0
            group.run(0.5)
        waited.append(group.events.now - since)
    assert max(waited[:2]) < 8.0
    assert 9.0 < waited[2] < 18.0
    assert 19.0 < waited[3] < 30.0


def test_who_was_dropped_by_a_request_that_came_late_enters_again(group: Group) -> None:
    """The request's answer was lost, a read found nothing changed, and no watch told the leader of
    the change that came after that.
    """
    lame = last_follower(group)

    def late(transaction: EtcdTransaction) -> float:
        return 4.0 if any(one.key == IN_SYNC for one in transaction.puts) else 0.0

    group.etcd.hold = late
    lame.is_disk_stuck = True
    group.run(2.6)
    lame.is_disk_stuck = False
    group.run(1.5)
    assert lame.name in group.etcd.view().in_sync
    group.etcd.hold = keep_none
    group.etcd.changed = lambda _: None
    while lame.name in group.etcd.view().in_sync:
        assert group.events.now < 30.0
        group.run(0.1)
    group.run(8.0)
    assert lame.name in group.etcd.view().in_sync


def test_another_etcd_decides_nothing(group: Group) -> None:
    """An etcd that was made anew has none of the keys: the leader goes on by promises."""
    group.etcd.forget(cluster=7)
    before = len(group.invariants.confirms)
    group.run(20.0)
    assert len(group.invariants.confirms) > before + 300
    assert "etcd cluster 7 answers, and this member belongs to c1: it was made anew" in reports(
        group
    )


def test_a_person_may_make_a_member_the_leader_that_is_not_in_the_list(group: Group) -> None:
    """Data that only the others had is lost: when they come back, a copy replaces theirs."""
    forced = last_follower(group)
    forced.kill(with_power=True)
    group.run(10.0)
    assert forced.name not in group.etcd.view().in_sync
    lost = len(group.invariants.confirms)
    gone = [one for one in group.machines if one is not forced]
    for machine in gone:
        machine.kill(with_power=True)
    forced.restart()
    group.run(10.0)
    assert not group.leaders
    group.etcd.operate(forced_succession(group.etcd.view(), forced.name, "by a person"))
    group.events.run_until(group.events.now + 3.0)
    assert forced.member is not None
    assert forced.member.role is Role.LEADING
    assert group.etcd.view().in_sync == (forced.name,)
    assert len(forced.disk.log) < lost
    for machine in gone:
        machine.restart()
    group.events.run_until(group.events.now + 15.0)
    for machine in gone:
        assert machine.disk.log == forced.disk.log
        # Their checkpoints covered more than is left: nothing behind a checkpoint is taken back.
        assert machine.copies == 1
    assert len(group.etcd.view().in_sync) == len(group.machines)


def test_a_disk_that_lost_what_it_acked_is_noticed(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above, of a leader that does not look: the member stays in the list, if it lost
    nothing that a checkpoint has.
    """
    monkeypatch.setattr(leading.Leader, "_expel", lambda *_: None)
    liar = last_follower(group)
    liar.kill(with_power=True)
    liar.disk.lose_last(10)
    liar.disk.covered = liar.disk.compacted = 0
    liar.restart()
    group.run(3.0)
    assert liar.name in group.etcd.view().in_sync


def test_a_leader_without_its_key_gives_up_when_a_person_makes_another_the_only_candidate(
    group: Group,
) -> None:
    """The leader may not regain the key of a leadership that a person has ended."""
    leader, chosen = group.leaders[0], last_follower(group)
    group.etcd.hold = lambda transaction: 3.0 if transaction.puts else 0.0
    group.etcd.lose_lease_of(LEADER)
    view = group.etcd.view()
    assert view.leader is None
    assert group.etcd.operate(forced_succession(view, chosen.name, "by a person"))
    group.etcd.hold = keep_none
    group.run(15.0)
    assert group.leaders == [chosen]
    assert leader.member is not None
    assert leader.member.role is Role.FOLLOWING
    assert group.etcd.view().in_sync[0] == chosen.name
    assert not group.etcd.operate(forced_succession(view, leader.name, "late"))
