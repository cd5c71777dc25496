"""The tables of limits in the manual of the server, and of the lessons of others' advisories in
server/SECURITY.md: their defaults are the code's, and their tests are there.
"""

import ast
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest

from amqpstore_server.broker.rights.quotas import USER_LIMITS, VHOST_LIMITS
from amqpstore_server.config.config import KEYS
from tests.conformance.test_rules_table import NAME, functions_in
from tests.format.document import code, table

TESTS = Path(__file__).parents[1]
SERVER = Path(__file__).parents[2] / "server"
SECURITY = SERVER / "SECURITY.md"
TABLES = ("SECURITY.md", "MANAGEMENT.md", "REPLICAS.md")
"""The documents with limits: of clients, of requests by HTTP, and of members of a group."""
_CLOCK = r"\.(advance|jump|tick|pass_time|monotonic)\(|\bautojump_"
ROW = re.compile(r"\| (?P<limit>[^|]+) \| (?P<default>[^|]+) \| (?P<by>[^|]+) \|.*")


def default_of(by: str) -> str:
    """The default of a limit, by the cell that says what sets it."""
    if by.startswith("definitions: "):
        assert code(by.removeprefix("definitions: ")) in {*USER_LIMITS, *VHOST_LIMITS}
        return "none"
    name = code(by)
    if name in KEYS:
        return f"{KEYS[name].default}"
    owner, _, constant = name.rpartition(".")
    module_or_class: Any = pkgutil.resolve_name(f"amqpstore_server.{owner}")
    if isinstance(module_or_class, type):
        value = module_or_class._field_defaults[constant]  # type: ignore[attr-defined]
    else:
        value = getattr(module_or_class, constant)
    return f"{value:g}" if isinstance(value, float) else f"{value}"


def wrong_tests(cell: str) -> list[str]:
    """Return what is wrong with the test that a row names."""
    name = NAME.fullmatch(cell)
    if name is None or name[2] not in functions_in(name[1]):
        return [f"there is no {cell}"]
    if re.fullmatch(r"pytest\.mark\.(long|skip|xfail)\b.*", functions_in(name[1])[name[2]]):
        return ["its test does not run in every build"]
    return []


def reaches(limit: str, test: str) -> bool:
    """Whether the test of a limit in seconds lets them pass: it names the limit, so that it sets it
    or depends on it, or it moves a clock, or reads one. Args: test, as `FILE::FUNCTION`.
    """
    name = limit.rpartition(".")[2]
    if not name.lower().endswith("_s") or name.endswith("_per_s"):
        return True
    path, _, function = test.partition("::")
    text = (TESTS / path).read_text("utf-8")
    sources = [
        ast.unparse(node)
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function
    ]
    return any(re.search(rf"\b{name}\b|{_CLOCK}", source) for source in sources)


def findings(document: str) -> list[str]:
    """Return what is wrong with the table."""
    found = []
    for row in table(document, "Limits"):
        cells = row.cells
        try:
            default = default_of(cells["set by"])
        except (AssertionError, AttributeError, ImportError, KeyError, ValueError):
            found.append(f"{cells['limit']}: nothing is set by {cells['set by']}")
            continue
        if cells["default"] != default:
            found.append(f"{cells['limit']}: the default is {default}")
        wrong = wrong_tests(cells["test"])
        if not wrong and not reaches(cells["set by"].strip("`"), code(cells["test"])):
            wrong = ["its test does not reach it"]
        found += [f"{cells['limit']}: {one}" for one in wrong]
        if not cells["answer"]:
            found.append(f"{cells['limit']}: no answer")
    return found


def document() -> str:
    return SECURITY.read_text("utf-8")


def limits(name: str) -> set[str]:
    """Return the settings and constants that set the limits of a document."""
    rows = table((SERVER / name).read_text("utf-8"), "Limits")
    return {row.cells["set by"].strip("`") for row in rows}


@pytest.mark.parametrize("name", TABLES)
def test_every_limit_is_what_the_code_has_and_is_tested(name: str) -> None:
    assert findings((SERVER / name).read_text("utf-8")) == []


def test_every_lesson_is_tested() -> None:
    rows = table(document(), "What went wrong elsewhere")
    assert len(rows) == 17
    for row in rows:
        assert wrong_tests(row.cells["test"]) == [], row.cells["lesson"]


def test_every_limit_of_the_configuration_has_a_row() -> None:
    listed = {row.cells["set by"] for row in table(document(), "Limits")}
    limits = {name for name in KEYS if name.startswith(("max_", "connection", "management_max_"))}
    limits |= {"frame_max", "channel_max", "memory_bytes", "memory_watermark", "accepts_per_s"}
    assert {f"`{name}`" for name in limits} <= listed


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        (r"\| 2047 \|", "| 2048 |", "highest channel of a connection: the default is 2047"),
        ("test_nesting_has_a_limit", "test_none", "levels of a field table: there is no"),
        (
            "bounds.MAX_DEPTH",
            "bounds.MAX_DEEP",
            "levels of a field table: nothing",
        ),
        ("`frame_max` \\|", "`frame_most` |", "size of a frame: nothing is set by"),
        (
            "test_a_check_of_a_login_may_take_its_time",
            "test_a_nack_of_all_gives_all_back",
            "more seconds while its login is checked: its test does not reach it",
        ),
        ("`max-queues` \\|", "`most-queues` |", "queues of a virtual host: nothing is set by"),
    ],
)
def test_a_broken_copy_is_seen(old: str, new: str, finding: str) -> None:
    before, heading, limits = document().partition("\n## Limits\n")
    broken, changes = re.subn(old, new, limits, count=1)
    assert changes == 1
    found = findings(before + heading + broken)
    assert any(one.startswith(finding) for one in found), found
