"""The reports in a data directory: which files are read, and what is taken out of them."""

import dataclasses
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from amqpstore.system.filenames import MARKER
from amqpstore_server.reports.reports import (
    BrokenPromise,
    DrillStep,
    ReportError,
    list_reports,
    read_report,
    write_report,
)
from amqpstore_tools.drill import report as drill_report
from amqpstore_tools.drill.verdict import Account, DrillFinding, Step

NOW = datetime(2026, 5, 17, 12, tzinfo=UTC)
EMPTY = {"version": "1", "violated": False, "invariants": {}, "scenarios": []}


def put(directory: Path, content: object) -> str:
    """Write a report of a drill, and return its name."""
    path = write_report(str(directory), "drill", NOW, json.dumps(content))
    return os.path.basename(path)


def test_what_a_drill_leaves_in_a_data_directory_is_listed_and_read(tmp_path: Path) -> None:
    (tmp_path / MARKER).touch()
    account = Account("power-cut", "7")
    account.checked(["I1"])
    account.findings.append(DrillFinding("I1", "lost", "byte 7", "amqpstore drill"))
    drill_report.write([account], str(tmp_path))
    (row,) = list_reports(str(tmp_path))
    assert (row["kind"], row["is_sound"], row["problem"]) == ("drill", False, "")
    found = read_report(str(tmp_path), row["name"])
    assert found is not None
    (scenario,) = found["content"]["scenarios"]
    assert scenario["verdicts"]["I1"] == "violated"
    assert scenario["findings"][0]["text"] == "lost"


def test_what_a_drill_writes_is_what_is_read() -> None:
    """The tools write it and the server reads it, and neither knows the types of the other."""
    for written, read in ((Step, DrillStep), (DrillFinding, BrokenPromise)):
        fields = [one.name for one in dataclasses.fields(written)]
        assert fields == [one.name for one in msgspec.structs.fields(read)]


def test_the_last_twenty_of_a_kind_are_kept(tmp_path: Path) -> None:
    write_report(str(tmp_path), "recovery", NOW - timedelta(days=1), "{}")
    for day in range(25):
        write_report(str(tmp_path), "drill", NOW + timedelta(days=day), json.dumps(EMPTY))
    times = [row["time_ms"] for row in list_reports(str(tmp_path)) if row["kind"] == "drill"]
    assert times == [
        int((NOW + timedelta(days=day)).timestamp() * 1000) for day in range(24, 4, -1)
    ]
    assert len(list_reports(str(tmp_path))) == 21


@pytest.mark.parametrize(
    "name",
    [
        "../STORE",
        "recovery-20260517T120000.000000Z.json/../../STORE",
        "recovery-20260517T120000.000000Z.html",
        "secret.json",
        "",
    ],
)
def test_other_files_are_not_looked_at(tmp_path: Path, name: str) -> None:
    put(tmp_path, EMPTY)
    (tmp_path / "STORE").write_text("{}")
    (tmp_path / "reports" / "secret.json").write_text("{}")
    assert read_report(str(tmp_path), name) is None
    assert len(list_reports(str(tmp_path))) == 1


@pytest.mark.parametrize(
    "content", [[], {}, {**EMPTY, "scenarios": 5}, {**EMPTY, "scenarios": [{"scenario": []}]}]
)
def test_what_is_not_a_report_is_told(tmp_path: Path, content: object) -> None:
    name = put(tmp_path, content)
    with pytest.raises(ReportError, match="not a report"):
        read_report(str(tmp_path), name)
    assert "not a report" in list_reports(str(tmp_path))[0]["problem"]


def test_a_link_and_a_pipe_are_not_followed(tmp_path: Path) -> None:
    name = put(tmp_path, EMPTY)
    path = tmp_path / "reports" / name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "reports" / name.replace("20260517", "20260518"))
    assert all(row["problem"] for row in list_reports(str(tmp_path)))
    with pytest.raises(ReportError, match="cannot be read"):
        read_report(str(tmp_path), name)
