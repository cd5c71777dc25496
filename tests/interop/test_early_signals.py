"""Signals that come while a command is still being loaded."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("terminal_signals")


def sent(
    numbers: Sequence[signal.Signals], module: str, arguments: Sequence[str], log: Path
) -> "subprocess.Popen[bytes]":
    """A command that gets signals when it begins to load a module."""
    program = f"""
import os, sys
from amqpstore_tools.__main__ import main
def interrupt(event, arguments):
    if event == "import" and arguments[0] == {module!r} and left:
        numbers, left[:] = [*left], []
        for number in numbers:
            os.kill(os.getpid(), number)
left = {[int(number) for number in numbers]}
sys.addaudithook(interrupt)
sys.argv[1:] = {[*arguments]!r}
sys.exit(main())
"""
    with log.open("wb") as stderr:
        return subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=stderr
        )


def serving(directory: Path) -> list[str]:
    return ["serve", "--data", str(directory / "data"), "--listen", "127.0.0.1:0"]


def test_a_broker_outlives_signals_while_it_is_loaded_and_reloads_afterwards(
    tmp_path: Path,
) -> None:
    numbers = [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP]
    log = tmp_path / "log"
    with sent(numbers, "amqpstore_tools.offline.terminal", serving(tmp_path), log) as process:
        assert process.stdout is not None
        assert b" ready: " in process.stdout.readline()
        wait_until(lambda: 'event="configuration reloaded"' in log.read_text())
        process.terminate()
        assert process.wait(20) == 0
    assert log.read_text().count('event="configuration reloaded"') == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_broker_that_is_loaded_ends_as_one_that_starts(
    tmp_path: Path, number: signal.Signals
) -> None:
    log = tmp_path / "log"
    with sent([number], "amqpstore_tools.offline.terminal", serving(tmp_path), log) as process:
        assert process.wait(20) == 0
    assert log.read_text() == "amqpstore serve: stopped by a signal while nobody was served\n"


def test_another_command_that_is_loaded_ends_without_a_traceback(tmp_path: Path) -> None:
    log, arguments = tmp_path / "log", ["check", str(tmp_path)]
    with sent([signal.SIGINT], "amqpstore_tools.offline.exits", arguments, log) as process:
        assert process.wait(20) == 130
    assert log.read_text() == "amqpstore: interrupted\n"
