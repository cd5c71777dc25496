"""A journal or a plan that does not read as one is named, and no file is moved by it."""

import json
from pathlib import Path
from typing import Any

import pytest

from amqpstore import Envelope, Message, Options, Store
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.repair.apply import apply_plan
from amqpstore_tools.repair.errors import BadJournalError, BadPlanError
from amqpstore_tools.repair.plan import make_plan, read_plan
from amqpstore_tools.repair.undo import undo


@pytest.fixture
def repaired(tmp_path: Path) -> Path:
    """A store that was repaired."""
    directory = tmp_path / "store"
    with Store.open(
        str(directory), options=Options(reserve_bytes=0), worker=InlineWorker()
    ) as store:
        queue = store.create_queue({"vhost": "/", "name": "orders"})
        store.publish([queue], [Message(Envelope("", "orders", b"\x10\0\2"), b"body")])
        store.sync()
    (directory / "catalog" / "data.mdb").write_bytes(b"damage")
    assert apply_plan(str(directory), make_plan(str(directory), lambda *_: None).plan)
    return directory


def tree(directory: Path) -> dict[str, bytes]:
    return {str(one): one.read_bytes() for one in directory.rglob("*") if one.is_file()}


@pytest.mark.parametrize(
    "changed",
    [
        {"state": "done"},
        {"state": None},
        {"puts": 5},
        {"moves": [[1]]},
        {"directories": {}},
        {"before": []},
        {"after": {"STORE": 1}},
        {"moves": ["../outside"]},
        {"puts": ["/etc/passwd"]},
        {"puts": ["segments/../../outside"]},
        {"directories": ["a\0b"]},
    ],
)
def test_a_journal_that_is_none(repaired: Path, changed: dict[str, Any]) -> None:
    (journal,) = repaired.glob("quarantine/repair-*/journal.json")
    journal.write_text(json.dumps({**json.loads(journal.read_text()), **changed}))
    before = tree(repaired.parent)
    for attempt in (undo, lambda directory: make_plan(directory, lambda *_: None)):
        with pytest.raises(BadJournalError, match=r"journal\.json is not the journal of a repair"):
            attempt(str(repaired))
    after = tree(repaired.parent)
    lock = str(repaired / "lock")
    assert {**before, lock: b""} == {**after, lock: b""}


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b"5"])
def test_a_journal_or_a_plan_that_is_not_json(repaired: Path, content: bytes) -> None:
    (journal,) = repaired.glob("quarantine/repair-*/journal.json")
    journal.write_bytes(content)
    with pytest.raises(BadJournalError):
        undo(str(repaired))
    with pytest.raises(BadPlanError):
        read_plan(str(journal))


@pytest.mark.parametrize(
    "changed", [{"steps": 1}, {"files": []}, {"made_ms": "x"}, {"moves": [1]}, {"queues": [1]}]
)
def test_a_plan_of_other_types(repaired: Path, tmp_path: Path, changed: dict[str, Any]) -> None:
    path = tmp_path / "plan.json"
    plan = make_plan(str(repaired), lambda *_: None).plan.as_json()
    path.write_text(json.dumps({**plan, **changed}))
    with pytest.raises(BadPlanError):
        read_plan(str(path))
