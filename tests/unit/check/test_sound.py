"""In a store that was not damaged nothing is found, whatever it has been through."""

import os

import pytest

from amqpstore_tools.check.engine import check
from tests.unit.check.stores import History


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


def files_of(directory: str) -> dict[str, bytes]:
    """Every file and its content."""
    found = {}
    for parent, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(parent, name)
            with open(path, "rb") as file:
                found[path] = file.read()
    return found
