"""A start logs what it has found: the sum of what is lost, as far as anything tells of it."""

import logging
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from amqpstore import Message, Options, Store
from amqpstore.system.filenames import SEGMENTS, segment_name
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_server.reports.recovery_reports import keep_report
from tests.unit.engine.stores import ENVELOPE

NOW = datetime(2026, 11, 27, tzinfo=UTC)


def opened(directory: Path) -> Store:
    return Store.open(str(directory), options=Options(reserve_bytes=0), worker=InlineWorker())


def kept(directory: Path, caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
    """Open a store, and return the line about all of it."""
    caplog.clear()
    with opened(directory) as store, caplog.at_level(logging.INFO):
        keep_report(store, NOW)
    [line] = [one for one in caplog.records if one.getMessage() == "store opened"]
    return line


def test_messages_whose_segments_are_gone_are_logged_as_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as store:
        orders = store.create_queue({"vhost": "/", "name": "orders"})
        store.publish([orders], [Message(ENVELOPE, b"body")] * 7)
    sound = kept(tmp_path, caplog)
    assert (sound.levelno, sound.__dict__["lost"]) == (logging.INFO, 0)
    shutil.rmtree(tmp_path / SEGMENTS)
    line = kept(tmp_path, caplog)
    assert (line.levelno, line.__dict__["lost"]) == (logging.WARNING, 7)
    assert line.__dict__["messages"] == 7


def test_a_log_that_lost_its_end_is_an_error_with_a_next_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path)
    orders = store.create_queue({"vhost": "/", "name": "orders"})
    store.publish([orders], [Message(ENVELOPE, b"body")] * 7)
    store.sync()
    store.abandon()
    segment = tmp_path / SEGMENTS / segment_name(1)
    segment.write_bytes(bytes(segment.stat().st_size))
    line = kept(tmp_path, caplog)
    assert (line.levelno, line.__dict__["lost"]) == (logging.WARNING, 7)
    [error] = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert error.getMessage() == "the log is short"
    reason = error.__dict__["reason"]
    assert reason.startswith("at least 7 messages that were durable are missing in the log.")
    assert "amqpstore check" in reason


def test_damage_is_one_line_a_file_and_one_for_many_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as store, caplog.at_level(logging.INFO):
        damage = store.recovery_report.damage
        damage += [("first", 4096 + place, 10, "reason") for place in range(1133)]
        damage += [(f"file{number}", 0, 5, "other") for number in range(30)]
        keep_report(store, NOW)
    first, *some, last = [one.__dict__ for one in caplog.records if one.getMessage() == "damage"]
    assert (first["path"], first["offset"], first["reason"]) == ("first", 4096, "reason")
    assert (first["places"], first["bytes"]) == (1133, 11_330)
    assert [one["path"] for one in some] == [f"file{number}" for number in range(19)]
    assert (last["files"], last["places"], last["bytes"]) == (11, 11, 55)
