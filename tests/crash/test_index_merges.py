"""Merges of index files, several of one queue in a checkpoint: power cuts, and calls that fail."""

import contextlib
import functools
import random
from collections.abc import Iterable
from typing import Any

import pytest

from amqpstore import DurabilityError
from amqpstore.checkpoints.index_merge import IndexMerger
from amqpstore.evidence.newer_entries import NewerEntries, find_newer_entries
from amqpstore.recovery import recovery
from amqpstore_tools.drill.explorer import Explorer
from amqpstore_tools.drill.prover import Prover
from amqpstore_tools.simulation.faulty_files import FaultKind, Faults
from tests.crash.histories import (
    full_index_files,
    half_acked,
    merged_and_used,
    merging_history,
    open_faulty_store,
    open_store,
    outside_of,
    record,
)
from tests.crash.test_faults import faults_left_behind


def test_a_checkpoint_of_the_history_merges_three_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    merge = IndexMerger.merge
    counts = []

    def counted(self: IndexMerger, *args: object) -> object:
        merged = list(merge(self, *args))  # type: ignore[arg-type]
        counts.append(len(merged))
        return merged

    monkeypatch.setattr(IndexMerger, "merge", counted)
    record(merging_history)
    assert max(counts) == 3


def test_the_power_is_cut_at_every_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []

    def noted(*arguments: Any) -> NewerEntries | None:
        found.append(find_newer_entries(*arguments))
        return found[-1]

    monkeypatch.setattr(recovery, "find_newer_entries", noted)
    explorer = Explorer(open_store, "merges", images_an_operation=6, images_in_recovery=2)
    result = explorer.explore(record(merging_history))
    assert [str(violation) for violation in result.violations] == []
    # Many leave index files without a row, and the log has all messages in them.
    assert len(found) > 100
    assert set(found) == {None}


def merge_calls() -> range:
    """The calls of the checkpoint that merges the three groups."""
    faults = Faults(-1)
    outside = outside_of(functools.partial(open_faulty_store, faults=faults))
    full_index_files(outside)
    first = len(faults.calls)
    half_acked(outside)
    return range(first, len(faults.calls))


@pytest.mark.rounds(1)
@pytest.mark.parametrize("kind", FaultKind)
def test_a_third_of_the_calls_of_a_checkpoint_that_merges_fail(kind: FaultKind, seed: int) -> None:
    calls = merge_calls()
    fail_calls(kind, random.Random(seed).sample(calls, -(-len(calls) // 3)))


@pytest.mark.long
@pytest.mark.parametrize("kind", FaultKind)
def test_every_call_of_a_checkpoint_that_merges_fails(kind: FaultKind) -> None:
    fail_calls(kind, merge_calls())


def fail_calls(kind: FaultKind, calls: Iterable[int]) -> None:
    """Have each of the calls fail. What was merged before it is in the catalog, once and as it was
    acked."""
    prover = Prover(open_store, 2)
    for nth in calls:
        faults = Faults(nth, kind)
        outside = outside_of(functools.partial(open_faulty_store, faults=faults))
        full_index_files(outside)
        with contextlib.suppress(DurabilityError):
            half_acked(outside)
            merged_and_used(outside)
        assert faults.has_struck
        outside.kill()
        found = faults_left_behind(outside, prover, random.Random(f"{kind} {nth}"))
        assert found == [], f"{kind} at call {nth}, {faults.calls[nth]}: {found}"
