"""Tests of which error is the cause of a broker's end: the disk, if that has failed."""

from __future__ import annotations

import argparse
import errno
import logging
import os
from collections.abc import Iterator
from typing import NoReturn

import pytest

from amqpstore import DamageError, DeposedError, DurabilityError, StoreClosedError
from amqpstore_server import app
from amqpstore_server.logs import streams
from amqpstore_server.process.stopping import cause_of
from amqpstore_tools.verbs import serve

STOPPED = StoreClosedError("the store has stopped after an error")
FAILED = DurabilityError("/segments/1", OSError(errno.EIO, os.strerror(errno.EIO)))
UNREADABLE = OSError(errno.EIO, os.strerror(errno.EIO), "/segments/2")
DEPOSED = DeposedError("/data", "another member leads")
OTHER = ValueError("something else")


@pytest.mark.parametrize(
    ("error", "failure", "expected"),
    [
        (BaseExceptionGroup("", [OTHER]), None, OTHER),
        (BaseExceptionGroup("", [OTHER, ExceptionGroup("", [FAILED])]), None, FAILED),
        (BaseExceptionGroup("", [UNREADABLE, FAILED]), None, FAILED),
        # Only the task that used the store after the disk had failed raised an error.
        (BaseExceptionGroup("", [STOPPED]), FAILED, FAILED),
        (STOPPED, FAILED, FAILED),
        (BaseExceptionGroup("", [ExceptionGroup("", [OTHER, UNREADABLE])]), FAILED, FAILED),
        (BaseExceptionGroup("", [OTHER, UNREADABLE]), None, UNREADABLE),
        (BaseExceptionGroup("", [OTHER, BrokenPipeError(errno.EPIPE, "")]), None, OTHER),
        (STOPPED, None, STOPPED),
        # A leader's disk has failed, and it leads no longer: it does not follow on that disk.
        (BaseExceptionGroup("", [DEPOSED, FAILED]), None, FAILED),
        (DEPOSED, FAILED, FAILED),
        (BaseExceptionGroup("", [DEPOSED, UNREADABLE]), None, UNREADABLE),
        (BaseExceptionGroup("", [STOPPED, DEPOSED]), None, DEPOSED),
        (STOPPED, DEPOSED, DEPOSED),
    ],
)
def test_a_failed_disk_is_the_cause(
    error: BaseException, failure: DurabilityError | None, expected: BaseException
) -> None:
    assert cause_of(error, failure) is expected


@pytest.fixture
def _log_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep the logging that `serve` sets up to one test, as its stream ends with the test."""
    root = logging.getLogger()
    level = root.level
    monkeypatch.setattr(root, "handlers", [])
    yield
    root.setLevel(level)


@pytest.mark.usefixtures("_log_of_its_own")
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FAILED, 70),
        (UNREADABLE, 70),
        (OSError(errno.EROFS, os.strerror(errno.EROFS), "/data/lock"), 70),
        (OSError(errno.EIO, "the terminal is gone"), 1),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/lock"), 1),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/data/lock"), 4),
        (DamageError("/data/catalog", 0, "it cannot be read"), 5),
    ],
)
def test_the_exit_code_says_that_the_disk_has_failed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    data_directory: str,
    error: Exception,
    code: int,
) -> None:
    def fail(*_arguments: object) -> NoReturn:
        raise error

    monkeypatch.setattr(app, "serve", fail)
    monkeypatch.setattr(streams, "decouple", lambda: None)
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    assert serve.run(parser.parse_args(["--data", data_directory])) == code
    if isinstance(error, OSError) and error.filename:
        assert error.filename in capsys.readouterr().err
