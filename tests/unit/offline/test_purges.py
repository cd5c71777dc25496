"""Purged messages that can be restored are sound for checks and repairs, and in no queue."""

import json
from pathlib import Path
from typing import Any

import pytest

from amqpstore import Store
from amqpstore.catalog.catalog import Change
from amqpstore_tools.__main__ import main
from tests.unit.engine.stores import messages, take

ORDERS = {"vhost": "/", "name": "orders", "auto_delete": False, "arguments": {}}


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """A queue of which 38 messages were purged: some before them are acked, one is unacked, and
    three came later.
    """
    directory = str(tmp_path / "data")
    with Store.open(directory) as store:
        store.definitions.define([Change("vhosts", "/", {})])
        queue = store.create_queue(ORDERS)
        store.publish([queue], messages(*[b"%d" % number for number in range(40)]))
        store.sync()
        store.upkeep.checkpoint()
        store.ack(queue, take(store, queue, 1))
        unacked = take(store, queue, 1)
        assert store.purge_aside([queue], {"until_ms": 1 << 50}) is not None
        store.publish([queue], messages(b"a", b"b", b"c"))
        store.sync()
        store.requeue(queue, unacked)
        store.sync()
        store.abandon()
    return directory


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    code = main([*arguments, "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err or out
    return json.loads(out)


@pytest.mark.parametrize("restarts", [False, True])
def test_the_tools_know_of_it(
    directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], restarts: bool
) -> None:
    if restarts:
        with Store.open(directory):
            pass
    checked = told(capsys, "check", directory)
    assert (checked["findings"], checked["prepared"]) == ([], 0)
    found = told(capsys, "inspect", directory)
    (purge,) = found["prepared"]
    assert (purge["is_purge"], purge["is_undecided"]) == (True, True)
    main(["inspect", directory])
    assert "Purges that can be undone: 1" in capsys.readouterr().out
    exported = tmp_path / "exported"
    told(capsys, "export", directory, str(exported), "--queue", "orders")
    bodies = [json.loads(line).get("body") for line in exported.read_text().splitlines()]
    assert len([body for body in bodies if body is not None]) == 4


def test_a_repair_keeps_it(
    directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store.open(directory):
        pass
    for file in Path(directory, "index").iterdir():
        file.unlink()
    plan = str(tmp_path / "plan")
    main(["repair", directory, "--plan", plan, "--json"])
    assert main(["repair", directory, "--apply", plan, "--json"]) == 0
    capsys.readouterr()
    with Store.open(directory) as store:
        assert [one.message_count for one in store.purged.values()] == [38]
        ready = [one.ready_count for one in store.queues.values() if not store.is_hidden(one.id)]
        assert ready == [4]


def test_an_undo_after_a_restart(directory: str) -> None:
    with Store.open(directory) as store:
        (purged,) = store.purged.values()
        assert purged.undo() == 38
        (queue,) = store.queues.values()
        assert queue.ready_count == 42
        assert queue is not None
