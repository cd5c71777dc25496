"""Each case of fixtures/damage: what a repair saves of it, and that it can be undone."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from amqpstore import StoreError
from amqpstore_tools.check.engine import check
from amqpstore_tools.repair.listing import listing
from amqpstore_tools.repair.undo import undo
from fixtures import make_damage
from fixtures.contents import contents
from fixtures.damaging import damage
from fixtures.survivors import survivors
from tests.unit.repair.mending import mend

FIXTURES = Path(make_damage.__file__).parent
CASES: list[dict[str, Any]] = json.loads((FIXTURES / "damage/cases.json").read_text("utf-8"))

pytestmark = pytest.mark.skipif(
    sys.byteorder != "little", reason="the catalogs are of little-endian machines"
)


@pytest.fixture(scope="module")
def bodies() -> dict[int, str]:
    """The bodies of the golden store's messages, by id."""
    expected = json.loads((FIXTURES / "v1/golden/expected.json").read_text("utf-8"))
    return {
        message["id"]: message["body"]
        for queue in expected["queues"].values()
        for message in queue["messages"]
    }


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_exactly_these_messages_survive(
    case: dict[str, Any], tmp_path: Path, bodies: dict[int, str]
) -> None:
    directory = str(shutil.copytree(FIXTURES / case["store"], tmp_path / "store"))
    damage(directory, case["operations"])
    before = listing(directory)
    if "error" in case:
        with pytest.raises(StoreError) as caught:
            mend(directory)
        assert type(caught.value).__name__ == case["error"]
        assert listing(directory) == before
        return
    plan, repair = mend(directory)
    assert {step["code"] for step in plan.steps} >= {
        finding["code"] for finding in case["findings"] if finding["severity"] != "note"
    }
    assert not check(directory).is_damaged
    assert survivors(directory) == case["survivors"]
    if repair is None:
        assert listing(directory) == before
        return
    again = shutil.copytree(directory, tmp_path / "copy")
    for queue in contents(str(again))["queues"].values():
        for message in queue["messages"]:
            assert bodies.get(message["id"], message["body"]) == message["body"]
    undo(directory)
    assert listing(directory) == before
