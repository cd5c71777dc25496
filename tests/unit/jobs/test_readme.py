"""The page of the jobs: its tables are what the code has."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from amqpstore_tools import __main__ as program
from amqpstore_tools.archive.events import EVENTS, SCHEMA
from amqpstore_tools.spark.requirements import SparkMissingError, require_spark

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "tools" / "amqpstore_tools" / "spark" / "JOBS.md").read_text("utf-8")


def table(heading: str) -> list[list[str]]:
    """The rows of the table with this heading, without the marks."""
    lines = PAGE[PAGE.index(heading) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]


def test_the_columns_of_an_archive_are_those_of_its_files() -> None:
    said = [(name, kind) for name, kind, _ in table("| column | type |")]
    assert said == [
        (one.name, one.dataType.simpleString()) for one in from_arrow_schema(SCHEMA).fields
    ]


def test_the_events_of_an_archive_are_those_that_are_written() -> None:
    assert sorted(name for name, _ in table("| event |")) == sorted(EVENTS)


def test_every_verb_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    for verb, _ in table("| verb |"):
        name = verb.split()[1]
        with pytest.raises(SystemExit):
            program.main([name, "--help"])
        said = capsys.readouterr().out
        assert "--master" in said
        for option in re.findall(r"--\w+", verb):
            assert option in said


def test_without_spark_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    require_spark()
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(SparkMissingError, match=r"pip install 'amqpstore\[spark\]'"):
        require_spark()


def test_no_verb_needs_spark_to_start() -> None:
    code = (
        "import importlib, pkgutil, sys, amqpstore_tools.verbs as verbs\n"
        "for verb in pkgutil.iter_modules(verbs.__path__, 'amqpstore_tools.verbs.'):\n"
        "    importlib.import_module(verb.name)\n"
        "sys.exit(bool({'pyspark', 'pyarrow'} & sys.modules.keys()))"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False)
    assert ended.returncode == 0
