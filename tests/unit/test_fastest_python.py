"""Tests of which Python `make serve` and `make test` take."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "fastest_python.py"


def install(directory: Path, *lines: str) -> Path:
    """Make a python3 in a directory, which runs a few lines with the code to be run in `code`."""
    directory.mkdir()
    path = directory / "python3"
    path.write_text("\n".join((f"#!{sys.executable}", "import sys", "code = sys.argv[-1]", *lines)))
    path.chmod(0o755)
    return path


def choice(*pythons: Path) -> str:
    run = subprocess.run(
        [sys.executable, SCRIPT],
        env={"PATH": ":".join(str(python.parent) for python in pythons)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert not run.stderr
    return run.stdout


@pytest.fixture
def fast(tmp_path: Path) -> Path:
    return install(tmp_path / "fast", "exec(code, {})")


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    # A traced line takes several times as long.
    return install(
        tmp_path / "slow",
        "def trace(*event): return trace",
        "sys.settrace(trace)",
        "exec(code, {})",
    )


def test_the_fastest_build_is_taken(slow: Path, fast: Path) -> None:
    assert choice(slow, fast) == choice(fast, slow) == str(fast)


def test_the_version_is_that_of_the_first(slow: Path, fast: Path, tmp_path: Path) -> None:
    newer = install(
        tmp_path / "newer", "sys.version_info = (3, 99, 0, 'final', 0)", "exec(code, {})"
    )
    assert choice(slow, newer) == str(slow)
    assert choice(newer, fast) == str(newer)


def test_what_is_no_use_is_passed_over(fast: Path, tmp_path: Path) -> None:
    # Debian's Python without the package python3-venv.
    bare = install(tmp_path / "bare", "sys.modules['ensurepip'] = None", "exec(code, {})")
    missing = tmp_path / "nothing" / "python3"
    assert choice(missing, bare, fast) == str(fast)
    assert choice(missing, bare) == ""
