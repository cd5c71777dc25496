"""A log that lacks what was durable: check says so, and how much, and is not content."""

import shutil
from pathlib import Path

import pytest

from amqpstore.system.filenames import SEGMENTS, TRAILS, segment_name
from amqpstore_tools.check import report
from amqpstore_tools.check.engine import check
from amqpstore_tools.check.store import Checked
from tests.unit.evidence.stores import killed_store, zeros


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return killed_store(tmp_path / "store")


def short(checked: Checked) -> list[tuple[str, int]]:
    return [(one.file, one.messages) for one in checked.findings if one.code == "log-short"]


def test_a_store_that_was_killed_is_sound(directory: Path) -> None:
    assert list(check(str(directory)).findings) == []


@pytest.mark.parametrize("number", [3, 4])
def test_a_last_segment_of_zeros_is_not_sound(directory: Path, number: int) -> None:
    for later in range(number + 1, 5):
        (directory / SEGMENTS / segment_name(later)).unlink()
    zeros(directory / SEGMENTS / segment_name(number))
    checked = check(str(directory))
    lost = 5 * (5 - number)
    assert short(checked) == [(f"{SEGMENTS}/{segment_name(number)}", lost)]
    assert checked.is_damaged
    assert f"missing in the log: {lost} at least" in str(report._verdict(checked))


def test_a_last_segment_that_is_gone_is_not_sound(directory: Path) -> None:
    for number in (2, 3, 4):
        (directory / SEGMENTS / segment_name(number)).unlink()
    assert short(check(str(directory))) == [(f"{SEGMENTS}/{segment_name(1)}", 15)]


def test_a_hole_is_counted(directory: Path) -> None:
    (directory / SEGMENTS / segment_name(3)).unlink()
    assert [messages for _, messages in short(check(str(directory)))] == [5]


def test_without_its_catalog_the_log_is_compared_from_its_first_batch_on(directory: Path) -> None:
    shutil.rmtree(directory / "catalog")
    assert short(check(str(directory))) == []
    (directory / SEGMENTS / segment_name(1)).unlink()
    assert short(check(str(directory))) == []
    (directory / SEGMENTS / segment_name(4)).unlink()
    assert [messages for _, messages in short(check(str(directory)))] == [5]


def test_without_notes_nothing_is_known(directory: Path) -> None:
    shutil.rmtree(directory / TRAILS)
    zeros(directory / SEGMENTS / segment_name(4))
    assert short(check(str(directory))) == []


def test_a_torn_batch_is_told_without_a_promise(directory: Path) -> None:
    path = directory / SEGMENTS / segment_name(4)
    path.write_bytes(path.read_bytes().rstrip(b"\0")[:-60])
    found = {one.code: one.text for one in check(str(directory)).findings}
    assert found.keys() == {"batch-torn", "log-short"}
    assert "with 5 whole messages are ignored. After a crash, nobody" in found["batch-torn"]
