"""The steps of a check find the same wherever and in whatever order their parts are taken.

`test_forged` holds its stores against it too.
"""

import json
import os
import random
import shutil
from pathlib import Path

import pytest

from amqpstore import StoreError
from amqpstore_tools.check.engine import check
from fixtures.damaging import damage
from fixtures.make_damage import CASES, ROOT
from tests.unit.check.shuffled import ShuffledExecutor
from tests.unit.check.stores import History

ALIKE = ("queues", "messages", "segments", "segment_bytes", "index_files", "prepared")


@pytest.mark.parametrize("seed", range(4))
def test_of_sound_stores_the_same_is_said(tmp_path: Path, seed: int) -> None:
    directory = str(tmp_path / "store")
    history = History(directory, seed)
    history.steps(200)
    history.abandon()
    assert not check(directory).is_damaged
    check_alike(directory, seed)


@pytest.mark.parametrize("number", range(3))
def test_of_damaged_stores_the_same_is_said(tmp_path: Path, number: int) -> None:
    """Check every third case of damage: each case is in one of the three runs."""
    cases = json.loads(Path(CASES).read_text("utf-8"))
    rng = random.Random(number)
    for place, case in enumerate(cases[number::3]):
        directory = str(tmp_path / str(place))
        shutil.copytree(os.path.join(ROOT, case["store"]), directory)
        damage(directory, case["operations"])
        check_alike(directory, rng.randrange(1000))


def check_alike(directory: str, seed: int) -> None:
    try:
        expected = check(directory)
    except StoreError as error:
        with pytest.raises(type(error)):
            check(directory, executor=ShuffledExecutor(seed))
        return
    found = check(directory, executor=ShuffledExecutor(seed))
    assert list(found.findings) == list(expected.findings)
    for name in ALIKE:
        assert getattr(found, name) == getattr(expected, name), name
