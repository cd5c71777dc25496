"""A tool writes nothing of its own into the store that it works on."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from amqpstore_tools.__main__ import main
from tests.unit.copying.stores import make_store


@pytest.mark.parametrize("place", ["{store}", "{store}/sub", "{store}/a/b", "{link}/sub"])
@pytest.mark.parametrize("verb", ["copy", "export", "repair", "report", "archive"])
def test_the_store_itself_is_not_a_place_for_output(
    data_directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, place: str
) -> None:
    make_store(data_directory)
    link = str(tmp_path / "link")
    os.symlink(data_directory, link)
    before = sorted(os.listdir(data_directory))
    path = place.format(store=data_directory, link=link)
    arguments = {
        "copy": [path],
        "export": [path],
        "repair": ["--plan", path],
        "report": ["--out", path],
        "archive": [path],
    }[verb]
    assert main([verb, data_directory, *arguments, "--json"]) == 5
    error = json.loads(capsys.readouterr().out)["error"]
    assert error == f"{path} is in the store {data_directory} itself. Name a place elsewhere."
    assert sorted(os.listdir(data_directory)) == before


def test_that_there_is_no_place_for_temporary_files_is_said_with_the_next_step(
    data_directory: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A container whose root is read-only has no such place."""
    make_store(data_directory)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc"])
    assert main(["check", "--live", data_directory]) == 5
    error = capsys.readouterr().err
    assert "no directory for temporary files" in error
    assert "mount a volume as /tmp; elsewhere, set TMPDIR" in error


def test_a_place_whose_name_begins_like_that_of_the_store_is_another(data_directory: str) -> None:
    make_store(data_directory)
    assert main(["copy", data_directory, f"{data_directory}.copy", "--json"]) == 0
