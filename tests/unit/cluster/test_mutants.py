"""The simulator notices each broken rule within a few histories."""

from __future__ import annotations

import pytest

from tests.unit.cluster.mutants import FOUND_SOON, Mutant
from tests.unit.cluster.test_histories import history


@pytest.mark.parametrize("mutant", FOUND_SOON, ids=lambda mutant: mutant.__name__)
def test_a_broken_rule_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert any(history(seed).violations for seed in range(60))
