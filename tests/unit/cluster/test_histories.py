"""Random histories of a group in virtual time, with faults of machines, disks, network and etcd."""

from __future__ import annotations

import pytest

from amqpstore_tools.simulation.cluster.history import GroupOutcome, run


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
