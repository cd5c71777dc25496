"""A public class name belongs to one module: its readers know which class is meant."""

import ast
from collections import Counter
from collections.abc import Iterable

import pytest

from tests.unit.python_sources import parsed, sources

# Names that several modules have, and how many. The list may only shrink. The broker's queues and
# transactions consist of the store's; `pika` is for programs that have nothing else of ours, and
# names what dtx has on the wire as the broker does; NotFoundError is a reply code to a client, and
# what tools with --json call the same to a person.
DOUBLES = {
    "NotFoundError": 2,
    "Queue": 2,
    "Transaction": 2,
    "WaitingGet": 2,
    "XaStatus": 2,
    "Xid": 2,
}


def public_classes(modules: Iterable[str]) -> Counter[str]:
    """Return how many modules define each public class."""
    return Counter(
        node.name
        for source in modules
        for node in parsed(source).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )


def wrong_counts(classes: Counter[str]) -> list[str]:
    """The names that more modules have than may, and those that fewer have than are listed."""
    return [
        f"{name}: {classes[name]} modules, {DOUBLES.get(name, 1)} expected"
        for name in sorted(classes.keys() | DOUBLES.keys())
        if classes[name] != DOUBLES.get(name, 1)
    ]


def test_no_public_class_name_is_used_twice() -> None:
    assert wrong_counts(public_classes(sources().values())) == []


@pytest.mark.parametrize("name", ["Message", max(DOUBLES, key=lambda name: DOUBLES[name])])
def test_one_class_more_of_a_name_is_found(name: str) -> None:
    found = sources()
    found["amqpstore_tools.one_more"] = f"class {name}: ..."
    [complaint] = wrong_counts(public_classes(found.values()))
    assert complaint.startswith(f"{name}: ")


def test_a_name_that_is_listed_and_not_doubled_any_more_is_found() -> None:
    classes = public_classes(sources().values())
    name = max(DOUBLES, key=lambda name: DOUBLES[name])
    classes[name] = 1
    [complaint] = wrong_counts(classes)
    assert complaint.startswith(f"{name}: 1 modules")
