"""The simulator notices each broken rule within a few histories."""

from __future__ import annotations

import pytest

from tests.simulated_group.history import run
from tests.simulated_group.nemesis import Story
from tests.unit.cluster.mutants import MUTANTS, Mutant

each_mutant = pytest.mark.parametrize(
    ("mutant", "story"), MUTANTS, ids=lambda one: getattr(one, "__name__", "")
)


@each_mutant
def test_a_broken_rule_is_noticed(
    mutant: Mutant, story: Story | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert any(told(story, seed) for seed in range(30))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.rounds(4)
@each_mutant
def test_a_broken_rule_is_noticed_in_other_histories(
    mutant: Mutant, story: Story | None, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert any(told(story, seed + number) for number in range(60))


@pytest.mark.rounds(2)
@pytest.mark.parametrize("story", Story)
def test_no_story_loses_anything(story: Story, seed: int) -> None:
    assert told(story, seed) == ()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.rounds(2)
@pytest.mark.parametrize("story", Story)
def test_no_story_loses_anything_in_many_histories(story: Story, seed: int) -> None:
    for number in range(200):
        assert told(story, seed + number) == (), seed + number


def told(story: Story | None, seed: int) -> tuple[str, ...]:
    """Return what a story, or any faults, break in a group of three machines or five."""
    size, least = 3 if seed % 3 else 5, 2 if seed % 4 else 1
    return run(seed, size=size, min_in_sync=least, story=story).violations
