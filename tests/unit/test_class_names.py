"""A public class name belongs to one module: who reads it knows which class is meant."""

import ast
from collections import Counter
from collections.abc import Iterable

import pytest

from tests.unit.test_imports import sources

# Names that several modules have, and how many. The list may only shrink.
DOUBLES = {
    "Account": 2,
    "Batch": 3,
    "Broker": 2,
    "BrokerError": 2,
    "Catalog": 2,
    "Collector": 2,
    "Commit": 2,
    "Connection": 2,
    "Consumer": 2,
    "Cut": 2,
    "Damaged": 2,
    "Entry": 2,
    "Finding": 2,
    "History": 3,
    "Layout": 2,
    "Ledger": 2,
    "Manifest": 2,
    "NotFoundError": 2,
    "Opened": 2,
    "Options": 2,
    "Outcome": 4,
    "Pattern": 2,
    "Plan": 3,
    "Prepared": 2,
    "Publisher": 4,
    "Queue": 2,
    "QueueLine": 2,
    "QueueName": 3,
    "Received": 2,
    "Recovered": 2,
    "Request": 2,
    "Run": 2,
    "Scanner": 2,
    "Segment": 2,
    "Settings": 3,
    "Shared": 3,
    "Steps": 2,
    "Taken": 3,
    "Tally": 2,
    "Totals": 2,
    "Transaction": 2,
    "UsageError": 3,
    "WaitingGet": 2,
    "Worker": 2,
    "Written": 2,
    "XaStatus": 2,
    "Xid": 2,
}


def public_classes(modules: Iterable[str]) -> Counter[str]:
    """How many modules define each public class."""
    return Counter(
        node.name
        for source in modules
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )


def too_many(classes: Counter[str]) -> list[str]:
    """The names that more modules have than may."""
    return [
        f"{name}: {count} modules"
        for name, count in sorted(classes.items())
        if count > DOUBLES.get(name, 1)
    ]


def test_no_public_class_name_is_used_twice() -> None:
    assert too_many(public_classes(sources().values())) == []


@pytest.mark.parametrize("name", ["Message", max(DOUBLES, key=lambda name: DOUBLES[name])])
def test_one_class_more_of_a_name_is_found(name: str) -> None:
    found = sources()
    found["amqpstore_tools.one_more"] = f"class {name}: ..."
    [complaint] = too_many(public_classes(found.values()))
    assert complaint.startswith(f"{name}: ")
