"""Tests of tools/amqpstore_tools/spark/README.md against the schemas and the options."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from amqpstore_tools.spark.reading.options import (
    WANTED,
    ConsumeOptions,
    PublishOptions,
    ReadOptions,
    TapOptions,
)
from amqpstore_tools.spark.reading.schemas import VIEWS, spark_schema

TEXT = (Path(__file__).parents[3] / "tools" / "amqpstore_tools" / "spark" / "README.md").read_text(
    "utf-8"
)
HEADINGS = {"tap": "## The log as a stream", "consume": "## A queue as a stream"}


def rows(section: str, columns: str) -> list[list[str]]:
    """The cells of the table with these columns in a section."""
    text = TEXT[TEXT.index(f"{section}\n") :]
    table = text[text.index(f"| {columns} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table]


@pytest.mark.parametrize("view", VIEWS)
def test_the_columns_of_each_view_are_those_of_the_page(view: str) -> None:
    heading = HEADINGS.get(view, f"### View {view}")
    found = [(name.strip("`"), kind) for name, kind, _ in rows(heading, "column | type | meaning")]
    assert found == list(VIEWS[view])
    assert spark_schema(view).fieldNames() == [name for name, _ in VIEWS[view]]


@pytest.mark.parametrize(
    ("heading", "options", "others"),
    [
        ("## Reading a store", ReadOptions, {"path", "wanted"}),
        ("## The log as a stream", TapOptions, {"path"}),
        ("## A queue as a stream", ConsumeOptions, set()),
        ("## Publishing", PublishOptions, set()),
    ],
)
def test_the_options_are_those_of_the_page(heading: str, options: type, others: set[str]) -> None:
    found = set()
    for names, *_ in rows(heading, "option | default | meaning"):
        found |= set(re.findall(r"`(\w+)`", names))
    if options is ReadOptions:
        found -= {*WANTED}
    assert found - {"columns"} == {field.name for field in fields(options)} - others - {"columns"}
