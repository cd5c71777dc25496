"""The power is cut at every operation of a history, and everything that was promised is there."""

import pytest

from tests.crash.histories import open_store, random_history, record, short_history
from tools.drill.explorer import Explorer, Result


def explore(trace_seed: str, steps: int, images: int) -> Result:
    explorer = Explorer(open_store, trace_seed, images_an_operation=images)
    return explorer.explore(random_history(trace_seed, steps))


def test_every_operation_of_a_short_history() -> None:
    explorer = Explorer(open_store, "short", images_an_operation=60)
    result = explorer.explore(record(short_history))
    assert [str(violation) for violation in result.violations] == []
    # Fewer would mean that the history, or what is made of it, is not what it was meant to be.
    assert result.operations > 100
    assert result.distinct > 500


@pytest.mark.parametrize("seed", range(4))
def test_random_histories(seed: int) -> None:
    result = explore(f"random {seed}", steps=40, images=12)
    assert [str(violation) for violation in result.violations] == []


@pytest.mark.long
@pytest.mark.parametrize("seed", range(200))
def test_many_random_histories(seed: int) -> None:
    result = explore(f"long {seed}", steps=120, images=40)
    assert [str(violation) for violation in result.violations] == []
