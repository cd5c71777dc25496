"""The section Rules of server/PROTOCOL.md: no row missing, none twice, every test of it there."""

import ast
import functools
import os
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.conformance.test_protocol_document import document

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# The rules' own numbering: of the letters two digits, of the specification's rules three. C01 is
# a row about exchanges and C001 the first rule of the specification.
COUNTS = {
    "A": 22,
    "B": 15,
    "C": 38,
    "D": 26,
    "E": 17,
    "F": 22,
    "G": 13,
    "H": 22,
    "I": 20,
    "J": 20,
    "K": 19,
    "L": 7,
    "M": 7,
    "N": 7,
    "O": 6,
}
SPECIFICATION_RULES = 160
IDS = [f"{letter}{number:02}" for letter, count in COUNTS.items() for number in range(1, count + 1)]
IDS += [f"C{number:03}" for number in range(1, SPECIFICATION_RULES + 1)]

UNTESTED = {"not there", "not applicable"}
STATUSES = {"holds", "deliberately different", *UNTESTED}
HEAD = "| id | status | why or how | test |"
NAME = re.compile(r"`([a-z0-9_/]+\.py)::(test_[a-z0-9_]+)`")


def section(text: str) -> list[str]:
    """The lines under the heading Rules, up to the next of its rank."""
    _, _, rest = text.partition("\n## Rules\n")
    assert rest, "no section Rules"
    return rest.partition("\n## ")[0].splitlines()


def rows(text: str) -> Iterator[tuple[str, str, str, str]]:
    """Id, status, why or how, and test of each row. Fails for a row of another form."""
    lines = section(text)
    for number, line in enumerate(lines):
        if not line.startswith("|") or line in (HEAD, "|---|---|---|---|"):
            continue
        assert lines[number - 1].startswith("|"), f"no table begins with {line}"
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert len(cells) == 4, line
        yield cells[0], cells[1], cells[2], cells[3]


@functools.cache
def functions_in(path: str) -> dict[str, str]:
    """The functions of a file below tests/, and their decorators; none where there is no file."""
    try:
        with open(os.path.join(TESTS, path), encoding="utf-8") as file:
            tree = ast.parse(file.read())
    except FileNotFoundError:
        return {}
    return {
        node.name: " ".join(map(ast.unparse, node.decorator_list))
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def findings(text: str) -> list[str]:
    """Return what is wrong with the table of a document."""
    wrong = []
    listed = list(rows(text))
    counted = Counter(row[0] for row in listed)
    wrong += [f"{rule}: no row" for rule in IDS if not counted[rule]]
    wrong += [f"{rule}: {count} rows" for rule, count in counted.items() if count > 1]
    wrong += [f"{rule}: no rule of that number" for rule in counted if rule not in IDS]
    for rule, status, why, test in listed:
        if status not in STATUSES:
            wrong.append(f"{rule}: the status {status!r}")
        if not why:
            wrong.append(f"{rule}: neither why nor how")
        if status in UNTESTED:
            if test:
                wrong.append(f"{rule}: a test of what is {status}")
            continue
        name = NAME.fullmatch(test)
        if name is None:
            wrong.append(f"{rule}: {test!r} names no test")
        elif name[2] not in functions_in(name[1]):
            wrong.append(f"{rule}: there is no {name[1]}::{name[2]}")
    return wrong


def test_every_rule_has_one_row_and_a_test_that_is_there() -> None:
    assert findings(document()) == []


def test_rows_are_in_the_order_of_their_numbers() -> None:
    assert [row[0] for row in rows(document())] == IDS


def test_a_rule_that_holds_is_tested_by_what_runs_in_every_build() -> None:
    """A test that is marked long would leave its row unproven for most of the time."""
    for rule, _, _, test in rows(document()):
        if not test:
            continue
        path, _, name = test.strip("`").partition("::")
        marks = functions_in(path)[name]
        assert not re.search(r"mark\.(long|skip|skipif|xfail)\b", marks), rule


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        (r"\| A05 .*\n", "", "A05: no row"),
        (r"(\| C001 .*\n)", r"\1\1", "C001: 2 rows"),
        (r"\| C01 \|", "| C001 |", "C01: no row"),
        (r"\| M03 .*\n", "", "M03: no row"),
        (r"\| N07 \|", "| N08 |", "N07: no row"),
        (r"\| O06 \|", "| O07 |", "O07: no rule of that number"),
        (r"(\| B02 \| )holds", r"\1mostly holds", "B02: the status 'mostly holds'"),
        (r"(\| B02 \| holds \|)[^|]*\|", r"\1 |", "B02: neither why nor how"),
        (r"(\| D07 .*\| )`.*` \|", r"\1 |", "D07: '' names no test"),
        (r"(\| D07 .*)test_an_exclusive", r"\1test_no_exclusive", "D07: there is no interop/"),
        (r"(\| D07 .*)test_pika_queues", r"\1test_pika_none", "D07: there is no interop/"),
        (
            r"(\| G02 .*)\| \|",
            r"\1| `conformance/test_rules_table.py::test_x` |",
            "G02: a test of what is not there",
        ),
    ],
)
def test_a_broken_copy_is_seen(old: str, new: str, finding: str) -> None:
    """The guard itself: each kind of fault, put in a copy, is found by its rule."""
    broken, changes = re.subn(old, new, document())
    assert changes == 1
    assert any(found.startswith(finding) for found in findings(broken)), findings(broken)
