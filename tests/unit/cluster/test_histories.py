"""Random histories of a group in virtual time, with faults of machines, disks, network and etcd.

The mutants are leaders, candidates and followers that break one rule each: the histories are worth
nothing if they do not notice.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amqpstore_server.cluster import electing, keys, leading
from amqpstore_server.cluster.effects import Committed
from amqpstore_server.cluster.frames import ShippedBatch
from amqpstore_server.cluster.keys import EtcdTransaction, View
from amqpstore_server.cluster.leading import Leader
from amqpstore_server.cluster.member import GroupMember
from amqpstore_tools.simulation.cluster.history import GroupOutcome, run
from amqpstore_tools.simulation.cluster.machine import SimulatedMachine

Mutant = Callable[[pytest.MonkeyPatch], None]


def history(seed: int) -> GroupOutcome:
    """Run a history of three machines or five, with a minimum of two replicas or one."""
    return run(seed, size=3 if seed % 3 else 5, min_in_sync=2 if seed % 4 else 1)


@pytest.mark.rounds(40)
def test_nothing_confirmed_is_lost(seed: int) -> None:
    assert history(seed).violations == ()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.rounds(8)
def test_nothing_confirmed_is_lost_in_many_histories(seed: int) -> None:
    for number in range(500):
        outcome = history(seed + number)
        assert outcome.violations == (), outcome.seed


def test_a_leader_that_is_granted_no_lease_asks_again() -> None:
    """Without its key, nobody who is not in the list finds it."""
    assert history(1441932277).violations == ()


def test_a_history_is_its_seed() -> None:
    assert history(7) == history(7)


def acks_before_its_sync(patch: pytest.MonkeyPatch) -> None:
    append = SimulatedMachine.append

    def and_ack(self: SimulatedMachine, batch: ShippedBatch) -> None:
        append(self, batch)
        if self.member is not None and self.member.leader is None:
            self.member.appended(batch)

    patch.setattr(SimulatedMachine, "append", and_ack)


def confirms_without_its_own_sync(patch: pytest.MonkeyPatch) -> None:
    seal = Leader.seal

    def and_count(self: Leader, content: object, now: float) -> ShippedBatch:
        batch = seal(self, content, now)
        self._local = batch.seq
        return batch

    patch.setattr(Leader, "seal", and_count)


def confirms_with_one_other(patch: pytest.MonkeyPatch) -> None:
    def commit(self: Leader) -> None:
        acked = [
            self._followers[one].acked if one in self._followers else 0 for one in self.waits_for
        ]
        durable = sorted([self._local, *acked], reverse=True)[:2][-1]
        if durable > self.committed:
            self.committed = durable
            self._effects.append(Committed(durable))

    patch.setattr(Leader, "_commit", commit)


def changes_the_list_without_a_fence(patch: pytest.MonkeyPatch) -> None:
    def unfenced(*arguments: object) -> EtcdTransaction:
        return list_change(*arguments)._replace(compares=())  # type: ignore[arg-type]

    list_change = keys.list_change
    patch.setattr(leading, "list_change", unfenced)


def stands_without_being_in_the_list(patch: pytest.MonkeyPatch) -> None:
    def may_stand(self: GroupMember, view: View, now: float) -> bool:
        return (
            view.leader is None
            and self._vacant_since is not None
            and now >= self.following.promised_until
        )

    patch.setattr(GroupMember, "_may_stand", may_stand)


def counts_promises_for_longer(patch: pytest.MonkeyPatch) -> None:
    promise = Leader.promise

    def longer(self: Leader, link: int, frame: object) -> None:
        promise(self, link, frame)  # type: ignore[arg-type]
        if (follower := self._follower(link)) is not None:
            follower.promised_until += 2.0

    patch.setattr(Leader, "promise", longer)


def is_elected_whatever_has_changed(patch: pytest.MonkeyPatch) -> None:
    def unguarded(*arguments: object) -> EtcdTransaction:
        return election(*arguments)._replace(compares=())  # type: ignore[arg-type]

    election = keys.election
    patch.setattr(electing, "election", unguarded)


@pytest.mark.parametrize(
    "mutant",
    [
        acks_before_its_sync,
        confirms_without_its_own_sync,
        confirms_with_one_other,
        changes_the_list_without_a_fence,
        stands_without_being_in_the_list,
        counts_promises_for_longer,
        is_elected_whatever_has_changed,
    ],
    ids=lambda mutant: mutant.__name__,
)
def test_a_broken_rule_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert any(history(seed).violations for seed in range(150))
