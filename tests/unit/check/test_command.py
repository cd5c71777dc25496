"""`amqpstore check`: what it prints, how it ends, and what it does not touch."""

import json
import os
import shlex
import subprocess
import sys

import pytest

from amqpstore import StoreLockedError
from amqpstore_tools.check.engine import check
from tests.unit.check.stores import History


@pytest.fixture
def history(tmp_path: object) -> History:
    """An open store with something in it."""
    history = History(os.path.join(str(tmp_path), "store"), 3)
    history.steps(120)
    history.store.sync()
    return history


def remove_live_segment(directory: str) -> None:
    """The first one, of those that something is live in."""
    segments = os.path.join(directory, "segments")
    os.remove(os.path.join(segments, min(os.listdir(segments))))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "amqpstore_tools", "check", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": "120"},
    )


def test_a_sound_store(history: History) -> None:
    history.close()
    done = run(history.directory)
    assert (done.returncode, done.stderr) == (0, "")
    assert "The store is sound." in done.stdout
    assert "Next:" not in done.stdout


def test_a_damaged_store_and_what_to_do_about_it(history: History) -> None:
    history.close()
    remove_live_segment(history.directory)
    done = run(history.directory)
    assert done.returncode == 1
    assert "segment-missing" in done.stdout
    assert f"amqpstore repair {shlex.quote(history.directory)} --plan FILE" in done.stdout


def test_json(history: History) -> None:
    history.close()
    remove_live_segment(history.directory)
    done = run(history.directory, "--json")
    assert done.returncode == 1
    said = json.loads(done.stdout)
    assert not said["sound"]
    codes = {finding["code"] for finding in said["findings"]}
    assert {"segment-missing", "message-lost"} <= codes


@pytest.mark.parametrize("option", [(), ("--json",)])
def test_what_cannot_be_checked(tmp_path: object, option: tuple[str, ...]) -> None:
    done = run(str(tmp_path), *option)
    assert done.returncode == 4
    assert "not an amqpstore data directory" in done.stdout + done.stderr


def test_an_open_store_is_refused_unless_live(history: History) -> None:
    with pytest.raises(StoreLockedError):
        check(history.directory)
    checked = check(history.directory, live=True)
    assert not checked.is_damaged
    history.abandon()


def test_a_live_check_sees_one_moment_of_a_store_that_goes_on(history: History) -> None:
    for _ in range(20):
        history.steps(10)
        checked = check(history.directory, live=True)
        assert list(map(str, checked.findings.of_harm())) == []
    history.abandon()


def test_a_broker_cannot_start_while_a_check_runs(history: History) -> None:
    history.close()
    met: list[bool] = []

    def start(_what: str, _done: int, _all: int) -> None:
        if not met:
            with pytest.raises(StoreLockedError):
                history.steps(1)
            met.append(True)

    check(history.directory, tell=start)
    assert met
    history.steps(1)
    history.abandon()
