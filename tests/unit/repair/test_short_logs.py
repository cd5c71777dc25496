"""Verbs that would change a store whose log is short say what is missing, and leave it known."""

import json
import os
import shutil
from pathlib import Path

import pytest

from amqpstore import Message, Options, Store
from amqpstore.system.filenames import SEGMENTS, segment_name
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.check.engine import check
from tests.unit.engine.stores import ENVELOPE
from tests.unit.evidence.stores import killed_store, zeros
from tests.unit.offline.stores import Command, files_of, run_command
from tests.unit.repair.mending import mend

MISSING = "at least 5 messages that were durable are missing in the log"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return lambda *arguments: run_command(monkeypatch, capsys, *arguments)


@pytest.fixture
def exported(tmp_path: Path, command: Command) -> str:
    """An export of another store."""
    other, out = tmp_path / "other", tmp_path / "all.jsonl"
    with Store.open(str(other), options=Options(reserve_bytes=0), worker=InlineWorker()) as store:
        queue = store.create_queue({"vhost": "/", "name": "mine"})
        store.publish([queue], [Message(ENVELOPE, b"one")])
    assert command("export", str(other), str(out)).code == 0
    return str(out)


VERBS = {
    "compact": ("compact", "DIR"),
    "import": ("import", "DIR", "FILE", "--create"),
    "users list": ("users", "list", "--data", "DIR"),
    "vhosts add": ("vhosts", "add", "shop", "--data", "DIR"),
    "messages browse": ("messages", "browse", "orders", "--data", "DIR"),
    "definitions export": ("definitions", "export", "-", "--data", "DIR"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_short_log_is_refused_until_a_repair(
    tmp_path: Path, command: Command, exported: str, verb: str
) -> None:
    path = killed_store(tmp_path / "store")
    whole = tmp_path / "whole"
    last = path / SEGMENTS / segment_name(4)
    shutil.copyfile(last, whole)
    zeros(last)
    words = {"DIR": str(path), "FILE": exported}
    arguments = [words.get(one, one) for one in VERBS[verb]]
    for _ in range(2):
        done = command(*arguments)
        assert done.code == 5, done
        assert MISSING in done.err
        assert f"amqpstore repair {path} --plan plan.json" in done.err
        checked = check(str(path))
        assert [one.code for one in checked.findings if one.code == "log-short"]
        assert checked.shortfall.lost == 5
    # What a person does then: the loss is accepted, and the verb works.
    mend(str(path))
    done = command(*arguments)
    assert MISSING not in done.err
    if verb in ("compact", "import"):
        assert done.code == 0, done.err


def test_what_was_missing_may_be_put_back(tmp_path: Path, command: Command) -> None:
    path = killed_store(tmp_path / "store")
    last = path / SEGMENTS / segment_name(4)
    shutil.move(last, tmp_path / "whole")
    assert command("compact", str(path)).code == 5
    before = files_of(str(path))
    assert command("inspect", str(path), "--json").code == 0
    assert files_of(str(path)) == before
    shutil.move(tmp_path / "whole", last)
    assert command("compact", str(path)).code == 0
    assert not check(str(path)).is_damaged
    found = json.loads(command("inspect", str(path), "--json").out)
    assert [queue["ready"] for queue in found["queues"]] == [20]
    assert os.listdir(path / "segments")
