"""One thing goes wrong: how long clients wait at most, and who leads then."""

from __future__ import annotations

import pytest

from tests.simulated_group import drills
from tests.simulated_group.drills import Fault, drill
from tests.unit.cluster import mutants
from tests.unit.cluster.mutants import Mutant

SEEDS = range(3)

CASES: dict[Fault, float] = {
    drills.leader_killed: 5.0,
    drills.killed_and_started: 2.0,
    drills.killed_with_a_damaged_second: 5.0,
    drills.disk_hangs: 5.0,
    drills.loop_hangs: 5.0,
    drills.cut_off: 5.0,
    drills.sees_etcd_only: 8.0,
    drills.dies_soon_after_each_election: 8.0,
    drills.killed_while_etcd_is_slow: 10.0,
    drills.stops_in_order: 1.0,
    drills.stops_a_follower_in_order: 0.5,
    drills.loses_a_follower: 2.5,
    drills.with_a_slow_follower: 2.5,
    drills.newcomer_comes_in_an_outage: 2.5,
    drills.disk_of_a_follower_is_full: 2.5,
    drills.etcd_is_away: 0.5,
    drills.etcd_loses_leases: 0.5,
}
"""The number of seconds for which nothing may be confirmed."""


def is_kept(fault: Fault, seed: int) -> bool:
    """Tell whether a drill goes as it has to."""
    longest_s, group = drill(seed, fault)
    leads_damaged = any(one.is_damaged for one in group.leaders)
    return longest_s <= CASES[fault] and not group.invariants.violations and not leads_damaged


@pytest.mark.parametrize("fault", CASES, ids=lambda fault: fault.__name__)
def test_clients_go_on_in_time(fault: Fault) -> None:
    for seed in SEEDS:
        assert is_kept(fault, seed), (seed, drill(seed, fault)[0])


@pytest.mark.parametrize(
    ("mutant", "fault"),
    [
        (mutants.leads_whatever_its_health, drills.disk_hangs),
        (mutants.leads_whatever_its_health, drills.loop_hangs),
        (mutants.stands_in_turn_although_damaged, drills.killed_with_a_damaged_second),
        (mutants.serves_by_its_lease_only, drills.etcd_is_away),
        (mutants.keeps_silent_when_it_stops, drills.stops_in_order),
        (mutants.waits_for_a_dead_follower, drills.loses_a_follower),
    ],
)
def test_a_rule_that_is_broken_costs_time(
    mutant: Mutant, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert not all(is_kept(fault, seed) for seed in SEEDS)
