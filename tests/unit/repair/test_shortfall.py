"""A log that lacks what was durable: the plan counts it, and the repaired store is sound."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from amqpstore.system.filenames import SEGMENTS, segment_name
from amqpstore_tools.check.engine import check
from amqpstore_tools.repair.apply import apply_plan
from amqpstore_tools.repair.plan import make_plan
from amqpstore_tools.repair.report import print_plan
from tests.unit.evidence.stores import killed_store, opened, zeros


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return killed_store(tmp_path / "store")


def said(directory: Path) -> str:
    plan = make_plan(str(directory), lambda *_: None).plan
    console = Console(file=StringIO(), width=200)
    print_plan(plan, str(directory), "plan", console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_what_is_missing_behind_the_end_of_the_log_is_said_to_be_lost(directory: Path) -> None:
    zeros(directory / SEGMENTS / segment_name(4))
    plan = make_plan(str(directory), lambda *_: None).plan
    assert (plan.missing_messages, plan.is_log_lost) == (5, True)
    text = said(directory)
    assert "At least 5 messages lost" in text
    assert "at least 5 messages that were durable are missing in the log" in text
    assert "No known message is lost" not in text


def test_the_repaired_store_gives_no_missing_number_again(directory: Path) -> None:
    (directory / SEGMENTS / segment_name(4)).unlink()
    apply_plan(str(directory), make_plan(str(directory), lambda *_: None).plan)
    assert not check(str(directory)).is_damaged
    with opened(directory) as store:
        assert store.recovery_report.is_clean
        [orders] = store.queues.values()
        assert orders.ready_count == 15
        assert store.log.position.message_id >= 21
