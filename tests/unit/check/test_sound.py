"""Nothing is found in a store that was not damaged, whatever it has been through."""

import os
from pathlib import Path

import pytest

from amqpstore_tools.check.engine import check
from amqpstore_tools.check.findings import Finding
from tests.unit.check.stores import History
from tests.unit.copying.stores import make_store
from tests.unit.offline.stores import write_spares


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_found_after_closes_and_crashes(tmp_path: object, seed: int) -> None:
    directory = os.path.join(str(tmp_path), "store")
    history = History(directory, seed)
    for turn in range(6):
        history.steps(60)
        if turn % 2:
            history.close()
        else:
            history.abandon()
        before = files_of(directory)
        checked = check(directory)
        assert checked.findings.of_harm() == []
        assert checked.is_compared
        assert files_of(directory) == before
        queues = [queue for queue in history.store.queues.values() if queue.durable]
        assert checked.messages == sum(queue.ready_count for queue in queues)
        history.abandon()


def test_spare_segments_are_noted(tmp_path: object) -> None:
    directory = os.path.join(str(tmp_path), "store")
    make_store(directory, close=False)
    before = check(directory)
    write_spares(directory)
    checked = check(directory)
    text = "a spare segment: the next start removes it"
    assert list(checked.findings) == [
        *before.findings,
        *(Finding("file-left-over", f"segments/000000090{n}.spare", text) for n in (1, 2, 3)),
    ]
    assert not checked.is_damaged
    assert checked.messages == before.messages
    # A broker that is running has some.
    assert list(check(directory, live=True).findings) == []


def test_what_a_file_system_puts_there_is_not_a_finding(tmp_path: Path) -> None:
    make_store(str(tmp_path), close=True)
    before = list(check(str(tmp_path)).findings)
    for directory in ("", "segments", "index", "quarantine"):
        for name in ("lost+found", ".snapshot", ".nfs000000000123", "..data"):
            (tmp_path / directory / name).mkdir(parents=True)
    assert list(check(str(tmp_path)).findings) == before
    (tmp_path / "lost and found").mkdir()
    assert [one.file for one in check(str(tmp_path)).findings] == ["lost and found"]


def files_of(directory: str) -> dict[str, bytes]:
    """Every file and its content."""
    found = {}
    for parent, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(parent, name)
            with open(path, "rb") as file:
                found[path] = file.read()
    return found
