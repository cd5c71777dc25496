"""Directories of tests are short, whatever the user is called, and wherever TMPDIR is."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_users_name_and_a_long_tmpdir_are_in_no_path(tmp_path: Path) -> None:
    deep = tmp_path / ("a" * 60) / ("b" * 60)
    deep.mkdir(parents=True)
    program = (
        "import tests.conftest, os, tempfile\nprint(tempfile.gettempdir(), os.environ['LOGNAME'])"
    )
    environment = {**os.environ, "TMPDIR": str(deep), "LOGNAME": "a.name.of.thirty.two.characters"}
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    assert run.stdout.split() == ["/tmp", f"u{os.getuid()}"]
