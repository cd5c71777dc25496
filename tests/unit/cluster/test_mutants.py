"""The simulator notices each broken rule within a few histories."""

from __future__ import annotations

import pytest

from amqpstore_tools.simulation.cluster.history import run
from amqpstore_tools.simulation.cluster.nemesis import Story
from tests.unit.cluster.mutants import FOUND, FOUND_SOON, Mutant
from tests.unit.cluster.test_histories import history


@pytest.mark.parametrize("mutant", FOUND_SOON, ids=lambda mutant: mutant.__name__)
def test_a_broken_rule_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert any(history(seed).violations for seed in range(60))


@pytest.mark.parametrize(("mutant", "story"), FOUND, ids=lambda one: getattr(one, "__name__", ""))
def test_a_story_shows_what_a_rule_is_for(
    mutant: Mutant, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert any(told(story, seed) for seed in range(60))


@pytest.mark.rounds(2)
@pytest.mark.parametrize("story", Story)
def test_no_story_loses_anything(story: Story, seed: int) -> None:
    assert told(story, seed) == ()


def told(story: Story, seed: int) -> tuple[str, ...]:
    """Return what a story breaks, of three machines or five."""
    size, least = 3 if seed % 3 else 5, 2 if seed % 4 else 1
    return run(seed, size=size, min_in_sync=least, story=story).violations
