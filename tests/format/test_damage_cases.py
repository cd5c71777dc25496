"""The cases of damage in `fixtures/damage/`: a check finds in each what it is to find."""

import json
import os
from typing import Any

import pytest

from fixtures.make_damage import CASES, ROOT, expected

with open(CASES, encoding="utf-8") as file:
    CASES_BY_NAME: dict[str, dict[str, Any]] = {case["name"]: case for case in json.load(file)}

UNNOTICED = {
    # No part of the store.
    "bytes behind the end of the log",
    "catalog/data.mdb is cut by a byte",
    # No code reads it.
    "a bit of a meta page's flags",
    "broad: a bit of a meta page's flags",
    # Nothing else says it, and higher does no harm.
    "a bit of a row's next_sequence",
}


@pytest.mark.parametrize("name", CASES_BY_NAME)
def test_a_check_finds_what_is_expected(name: str) -> None:
    case = CASES_BY_NAME[name]
    found = expected(os.path.join(ROOT, case["store"]), case["operations"])
    assert found == {key: case[key] for key in ("exit", "findings", "error") if key in case}


def test_only_what_does_no_harm_is_not_noticed() -> None:
    unnoticed = {
        name for name, case in CASES_BY_NAME.items() if not case["exit"] and not case["findings"]
    }
    assert unnoticed == UNNOTICED


@pytest.mark.parametrize(("name", "codes"), [("golden", set()), ("torn", {"batch-torn"})])
def test_what_was_not_damaged_is_sound(name: str, codes: set[str]) -> None:
    found = expected(os.path.join(ROOT, "v1", name, "store"), [])
    assert found["exit"] == 0
    assert {one["code"] for one in found["findings"]} == codes


def test_the_cases_are_small() -> None:
    sizes = [
        os.path.getsize(os.path.join(parent, name))
        for parent, _, names in os.walk(os.path.dirname(CASES))
        for name in names
    ]
    assert sum(sizes) < 300_000
