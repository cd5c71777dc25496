"""Each invariant of each drill is seen to fail on a store that breaks a promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from amqpstore_tools.drill.client import MOVES, QUEUES, TRANSACTED
from amqpstore_tools.drill.damaged import DamagedStore
from amqpstore_tools.drill.run import DrillRun, DrillSettings
from amqpstore_tools.drill.scenarios import (
    SCENARIOS,
    cluster,
    disk,
    failing_calls,
    full_disk,
    kill,
    power_cut,
    simulated,
)
from tests.unit.drill import mutants
from tests.unit.drill.mutants import Mutant, says, serves, whenever_opened
from tests.unit.drill.stand_ins import STAND_INS, Drainer

_DAMAGE: dict[str, Mutant] = {
    "I1": mutants.on_damaged_copies(mutants.loses_a_queue),
    "I2": mutants.on_damaged_copies(mutants.invents_a_queue),
    "I5": mutants.on_damaged_copies(mutants.invents_a_message),
    "I6": says(mutants.in_reverse),
    "I9": mutants.on_damaged_copies(mutants.does_not_open),
    "I10": says(mutants.nothing_of_damage),
    "I11": mutants.on_damaged_copies(mutants.removes_unknown_files),
    "I12": says(mutants.more_than_there_are),
    "I14": mutants.repairs_without_a_queue,
}
_SIMULATED: dict[str, Mutant] = {
    "I1": whenever_opened(mutants.loses_a_message),
    "I2": whenever_opened(mutants.invents_a_message),
    "I3": whenever_opened(mutants.splits_a_publish),
    "I5": mutants.forgets_acks,
    "I6": whenever_opened(mutants.swaps_messages),
    "I8": mutants.keeps_an_index_file,
    "I9": whenever_opened(mutants.does_not_open, but_first=2),
    "I10": whenever_opened(mutants.reports_damage),
    "I11": whenever_opened(mutants.removes_unknown_files),
    "I12": whenever_opened(mutants.miscounts),
    "I14": mutants.repairs_without_a_queue,
}
_LEFT: dict[str, Mutant] = {
    "I1": whenever_opened(mutants.loses_a_message, but_first=1),
    "I2": whenever_opened(mutants.invents_a_message, but_first=1),
    "I3": whenever_opened(mutants.splits_a_publish, but_first=1),
    "I6": whenever_opened(mutants.swaps_messages, but_first=1),
    "I9": whenever_opened(mutants.does_not_open, but_first=1),
    "I10": whenever_opened(mutants.reports_damage, but_first=1),
    "I12": whenever_opened(mutants.miscounts, but_first=1),
    "I14": mutants.repairs_without_a_queue,
}

MUTANTS: dict[str, dict[str, Mutant]] = {
    "power-cut": {
        **_SIMULATED,
        "I1": mutants.syncs_segments_never,
        "I9": mutants.syncs_directories_never,
        "I4": mutants.commits_in_steps,
        "I7": mutants.commits_in_steps,
    },
    "kill": {
        **_LEFT,
        "I4": whenever_opened(mutants.loses_from(QUEUES[0], TRANSACTED), but_first=1),
        "I5": whenever_opened(mutants.undoes_a_move, but_first=1),
        "I7": whenever_opened(mutants.loses_from(MOVES[1]), but_first=1),
        "I8": mutants.keeps_an_index_file,
        "I11": whenever_opened(mutants.removes_unknown_files, but_first=1),
    },
    "bit-flips": _DAMAGE,
    "missing-files": {**_DAMAGE, "I5": mutants.without_an_index(_DAMAGE["I5"])},
    "torn-catalog": {**_DAMAGE, "I10": mutants.on_damaged_copies(mutants.loses_a_message)},
    "full-disk": _SIMULATED,
    "failing-sync": _SIMULATED,
    "clock-jumps": {
        **{one: _SIMULATED[one] for one in ("I1", "I2", "I6", "I9", "I10", "I12", "I14")},
        "I5": mutants.expires_late,
        "I13": mutants.works_by_the_wall_clock,
    },
    "disk": {**_LEFT, "I5": mutants.forgets_acks, "I15": mutants.measures_no_syncs},
    "cluster": {
        "I1": serves(mutants.one_too_few),
        "I2": serves(mutants.one_of_nobody),
        "I5": serves(mutants.what_was_taken_before()),
        "I9": serves(mutants.nothing),
        "I14": mutants.repairs_without_a_queue,
    },
}
"""Mutants that make an invariant fail, by drill and invariant."""


def _small(drill: str, invariant: str, patch: pytest.MonkeyPatch) -> None:
    """Leave out what another invariant is checked by, and make the histories short."""
    patch.setattr(power_cut, "_IMAGES_AN_OPERATION", 1 if invariant == "I14" else 3)
    patch.setattr(power_cut, "_MANUAL_OPERATIONS", 20)
    patch.setattr(power_cut, "_MANUAL_OPERATION", 0)
    for module in (power_cut, failing_calls, full_disk):
        patch.setattr(module, "_STEPS", 30)
    if invariant != "I14":
        patch.setattr(DamagedStore, "_follow_manual", lambda _self, _hit: None)
        for module in (kill, disk, simulated, cluster):
            patch.setattr(module, "after_crash", lambda _left, _work: iter(()))
    if drill in STAND_INS:
        STAND_INS[drill](patch)


@pytest.mark.parametrize(
    ("drill", "invariant"), [(drill, one) for drill, all_ in MUTANTS.items() for one in all_]
)
def test_a_promise_that_is_broken_is_seen(
    drill: str, invariant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_seen(run: DrillRun) -> bool:
        return any(finding.invariant == invariant for finding in run.account.findings)

    _small(drill, invariant, monkeypatch)
    MUTANTS[drill][invariant](monkeypatch)
    monkeypatch.setattr(DrillRun, "is_over", property(is_seen))
    run = DrillRun(drill, DrillSettings("7", str(tmp_path), rounds=30))
    SCENARIOS[drill].run(run)
    assert is_seen(run), run.end().summary


@pytest.mark.parametrize("drill", SCENARIOS)
def test_each_invariant_of_a_drill_has_a_mutant(drill: str) -> None:
    assert MUTANTS[drill].keys() == set(SCENARIOS[drill].checked)


@pytest.mark.parametrize("drill", STAND_INS)
def test_what_stands_in_for_processes_breaks_nothing(
    drill: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _small(drill, "", monkeypatch)
    run = DrillRun(drill, DrillSettings("7", str(tmp_path), rounds=2))
    SCENARIOS[drill].run(run)
    account = run.end()
    assert account.findings == []
    assert account.checks.keys() <= set(SCENARIOS[drill].checked)


def test_what_a_leader_had_not_logged_may_come_back_unflagged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 21624 lost a leader whose followers did not have its deliveries yet. No confirm has come
    after them.
    """
    _small("cluster", "", monkeypatch)
    serves(mutants.what_was_taken_before())(monkeypatch)
    monkeypatch.setattr(Drainer, "is_logged", False)
    run = DrillRun("cluster", DrillSettings("21624", str(tmp_path), rounds=3))
    SCENARIOS["cluster"].run(run)
    # Both queues are served what either had: that is another matter.
    assert {one.invariant for one in run.end().findings} == {"I1", "I2"}
