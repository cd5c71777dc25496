"""Directories of dead runs in memory are removed, and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import MAX_TEMPORARY
from tests.in_memory import PREFIX, new_directory, remove_dead

TELLS = "import os, sys; print(os.environ['TMPDIR'], flush=True); sys.stdin.read()"


@contextmanager
def run(parent: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A run that has left a file, and goes on until its input ends."""
    command = [sys.executable, "-m", "tests.in_memory", str(parent), sys.executable, "-c", TELLS]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        directory = Path(process.stdout.readline().strip())
        assert directory.parent == parent
        (directory / "pytest").mkdir()
        (directory / "pytest" / "store").write_text("content")
        yield process, directory


def test_what_a_killed_run_has_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    with run(tmp_path) as (killed, left):
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        with run(tmp_path) as (_, directory):
            assert [*tmp_path.iterdir()] == [directory]
            assert not left.exists()


def test_what_a_run_has_is_not_removed_while_it_goes_on(tmp_path: Path) -> None:
    with run(tmp_path) as (running, directory):
        with run(tmp_path) as (other, others):
            assert {*tmp_path.iterdir()} == {directory, others}
            assert remove_dead(tmp_path) == []
            other.communicate()
        assert (directory / "pytest" / "store").read_text() == "content"
        # What a run has left that has ended is there until the next one.
        assert (others / "pytest" / "store").exists()
        assert remove_dead(tmp_path) == [others.name]
        running.communicate()
    assert remove_dead(tmp_path) == [directory.name]
    assert [*tmp_path.iterdir()] == []


def test_another_user_and_a_socket_can_be_below_it() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as parent, run(Path(parent)) as (_, directory):
        assert directory.stat().st_mode & 0o7777 == 0o1777
        assert len(os.fsencode(Path("/dev/shm") / directory.name)) <= MAX_TEMPORARY


def test_nothing_else_is_removed(tmp_path: Path) -> None:
    (tmp_path / "pytest-of-somebody").mkdir()
    (tmp_path / f"{PREFIX}without-a-lock").mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "store").write_text("content")
    directory, lock = new_directory(tmp_path)
    (directory / "link").symlink_to(elsewhere)
    os.close(lock)
    assert remove_dead(tmp_path) == [directory.name]
    assert (elsewhere / "store").read_text() == "content"
    assert len([*tmp_path.iterdir()]) == 3
