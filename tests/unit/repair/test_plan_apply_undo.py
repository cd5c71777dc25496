"""Plans, their refusals, and the command."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from amqpstore import Message, Store, StoreLockedError
from amqpstore.catalog.catalog import Change
from amqpstore.format.message import Envelope
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.__main__ import main
from amqpstore_tools.check.engine import check
from amqpstore_tools.repair.apply import apply_plan
from amqpstore_tools.repair.errors import (
    BadPlanError,
    NothingToUndoError,
    OtherStoreError,
    StateDiffersError,
    UsedSinceError,
)
from amqpstore_tools.repair.listing import listing
from amqpstore_tools.repair.plan import read_plan
from amqpstore_tools.repair.undo import undo
from fixtures import make_damage
from fixtures.damaging import damage
from fixtures.survivors import survivors
from tests.unit.offline.stores import write_spares
from tests.unit.repair.mending import mend, plan_of

GOLDEN = Path(make_damage.__file__).parent / "v1/golden/store"


@pytest.fixture
def broken(tmp_path: Path) -> str:
    """A store with a flipped bit in a segment, and spare segments."""
    directory = str(shutil.copytree(GOLDEN, tmp_path / "store"))
    write_spares(directory)
    damage(directory, [{"do": "flip", "file": make_damage.LOG, "offset": 300, "bit": 1}])
    return directory


def publish(directory: str) -> None:
    with Store.open(directory) as store:
        queue = next(iter(store.queues.values()))
        store.publish([queue], [Message(Envelope("", "orders"), b"one more")])


def test_a_plan_changes_nothing(broken: str) -> None:
    before = listing(broken)
    plan = plan_of(broken)
    assert [step["code"] for step in plan.steps] == ["record-damaged", "message-lost"]
    assert plan.steps[0]["into"] in plan.makes
    assert listing(broken) == before


def test_a_plan_combines_the_levels_of_a_queue_with_priorities(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = str(tmp_path / "store")
    names: tuple[tuple[str, dict[str, int]], ...] = (
        ("/", {}),
        ("/", {"level": 3}),
        ("/", {"level": 5}),
        ("other", {}),
    )
    with Store.open(directory, worker=InlineWorker()) as store:
        store.definitions.define([Change("vhosts", vhost, {}) for vhost in ("/", "other")])
        for vhost, more in names:
            queue = store.create_queue({"vhost": vhost, "name": "prio", **more})
            store.publish([queue], [Message(Envelope("", "prio"), b"message")] * 2)
        store.sync()
    # The last message of each queue at the highest level, and of the other virtual host.
    path = Path(directory, "segments", min(os.listdir(f"{directory}/segments")))
    content = bytearray(path.read_bytes())
    for body in sorted(found.start() for found in re.finditer(b"message", content))[4:]:
        content[body] ^= 1
    path.write_bytes(content)
    rows = plan_of(directory).queues
    assert [(row["name"], row["ids"], row["kept"], row["lost"]) for row in rows] == [
        ("/prio", [1, 2, 3], 4, 2),
        ("other/prio", [4], 0, 2),
    ]
    assert {lost["queue_id"] for lost in rows[0]["lost_messages"]} == {3}
    capsys.readouterr()
    assert main(["repair", directory, "--plan", str(tmp_path / "plan.json")]) == 0
    shown = capsys.readouterr().out.partition("What the queues hold afterwards")[2]
    assert [line.split() for line in shown.splitlines() if "/prio" in line] == [
        ["/prio", "4", "0", "0", "2"],
        ["other/prio", "0", "0", "0", "2"],
    ]


def test_a_plan_without_a_step_is_good_for_any_sound_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = str(shutil.copytree(GOLDEN, tmp_path / "store"))
    # A digest of all files takes as long as the check.
    monkeypatch.delattr("amqpstore_tools.repair.plan.listing")
    plan = plan_of(directory)
    assert plan.files == {}
    publish(directory)
    assert apply_plan(directory, plan) is None


def test_a_sound_store_has_a_plan_without_a_step(tmp_path: Path) -> None:
    directory = str(shutil.copytree(GOLDEN, tmp_path / "store"))
    write_spares(directory)
    before = listing(directory)
    plan, repair = mend(directory)
    assert (plan.steps, plan.moves, plan.makes, repair) == ([], [], [], None)
    assert listing(directory) == before


def test_a_plan_is_for_one_state(broken: str) -> None:
    plan = plan_of(broken)
    damage(broken, [{"do": "make", "file": "notes.txt", "text": "x"}])
    before = listing(broken)
    with pytest.raises(StateDiffersError) as caught:
        apply_plan(broken, plan)
    assert caught.value.names == ["notes.txt"]
    assert listing(broken) == before


def test_a_plan_is_for_one_store(broken: str, tmp_path: Path) -> None:
    plan = plan_of(broken)
    other = str(tmp_path / "other")
    Store.open(other).close()
    with pytest.raises(OtherStoreError):
        apply_plan(other, plan)


def test_a_plan_that_was_changed_is_refused(broken: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    row = plan_of(broken).as_json()
    row["files"]["STORE"][1] = 70
    path.write_text(json.dumps(row), "utf-8")
    with pytest.raises(BadPlanError):
        read_plan(str(path))


def test_a_store_that_is_open_is_refused(broken: str, tmp_path: Path) -> None:
    plan = plan_of(broken)
    with Store.open(broken):
        before = listing(broken)
        with pytest.raises(StoreLockedError):
            apply_plan(broken, plan)
        with pytest.raises(StoreLockedError):
            undo(broken)
        assert listing(broken) == before


def test_an_undo_is_refused_once_the_store_was_used(broken: str) -> None:
    mend(broken)
    publish(broken)
    before = listing(broken)
    with pytest.raises(UsedSinceError):
        undo(broken)
    assert listing(broken) == before
    assert not check(broken).is_damaged


def test_repairs_are_undone_from_the_last_one_on(broken: str) -> None:
    first = listing(broken)
    mend(broken)
    damage(broken, [{"do": "make", "file": "notes.txt", "text": "x"}])
    second = listing(broken)
    mend(broken)
    assert sorted(os.listdir(os.path.join(broken, "quarantine"))) == [
        "repair-0000000001",
        "repair-0000000002",
    ]
    undo(broken)
    assert listing(broken) == second
    os.remove(os.path.join(broken, "notes.txt"))
    undo(broken)
    assert listing(broken) == first
    with pytest.raises(NothingToUndoError):
        undo(broken)


def test_a_repaired_store_goes_on(broken: str) -> None:
    """A repaired store takes messages, makes checkpoints, compacts, and is sound after all that."""
    plan, _ = mend(broken)
    spare = sorted(name for name in plan.files if name.endswith(".spare"))
    assert sorted(name for name in listing(broken) if name.endswith(".spare")) == spare != []
    before = survivors(broken)
    for _ in range(3):
        with Store.open(broken) as store:
            queue = next(iter(store.queues.values()))
            message = Message(Envelope("", "orders"), b"x" * 100)
            store.publish([queue], [message] * 20)
            store.sync()
            store.upkeep.checkpoint()
    assert not check(broken).is_damaged
    after = survivors(broken)
    assert sum(count for _, count, _ in after["orders"]) == 60 + sum(
        count for _, count, _ in before["orders"]
    )


def test_queues_keep_their_names_without_the_catalog(tmp_path: Path) -> None:
    directory = str(tmp_path / "store")
    publish_to_new(directory)
    before = survivors(directory)
    os.remove(os.path.join(directory, "catalog/data.mdb"))
    plan, _ = mend(directory)
    assert survivors(directory).keys() == before.keys()
    assert [queue["is_recovered"] for queue in plan.queues] == [False]
    with Store.open(directory) as store:
        assert store.definitions.rows("vhosts") == {"/": {}}


def publish_to_new(directory: str) -> None:

    with Store.open(directory) as store:
        store.definitions.define([Change("vhosts", "/", {})])
        store.create_queue({"vhost": "/", "name": "orders", "auto_delete": False, "arguments": {}})
    publish(directory)


def test_the_command(broken: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(tmp_path / "plan.json")
    before = listing(broken)

    def run(*arguments: str) -> tuple[int, str]:
        code = main(["repair", broken, *arguments])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    code, shown = run("--plan", plan)
    assert code == 0
    assert "record-damaged" in shown
    assert "--apply" in shown
    code, shown = run("--plan", plan, "--json")
    assert json.loads(shown)["findings"] == 2
    code, shown = run("--plan", os.path.join(broken, "plan.json"))
    assert code == 5
    assert listing(broken) == before
    code, shown = run("--apply", plan)
    assert code == 0
    assert "repair-0000000001" in shown
    assert run("--apply", plan)[0] == 5
    code, shown = run("--undo", "--json")
    assert (code, json.loads(shown)) == (0, {"undone": "quarantine/repair-0000000001"})
    assert run("--undo")[0] == 5
    assert listing(broken) == before


def test_a_prepared_transaction_stays_undecided_with_what_is_left_of_it(tmp_path: Path) -> None:
    directory = str(tmp_path / "store")
    with Store.open(directory) as store:
        target = store.create_queue({"name": "target"})
        transaction = store.transaction()
        bodies = [b"first", b"second", b"third"]
        transaction.publish([target], [Message(Envelope("", "target"), body) for body in bodies])
        transaction.prepare({"name": "t"})
    name = "segments/0000000001.segment"
    with open(os.path.join(directory, name), "rb") as file:
        offset = file.read().index(b"second")
    damage(directory, [{"do": "flip", "file": name, "offset": offset, "bit": 0}])
    mend(directory)
    with Store.open(directory) as store:
        (prepared,) = store.prepared.values()
        assert prepared.label == {"name": "t"}
        left = [message.body for publish in prepared.publishes() for message in publish.messages]
        assert left == [b"first", b"third"]


def test_a_log_that_contradicts_itself_is_mended(tmp_path: Path) -> None:
    """Two segments with each other's records cannot both be right: what is live of them stays."""
    directory = str(shutil.copytree(GOLDEN, tmp_path / "store"))
    for number in (1, 2):
        os.rename(
            os.path.join(directory, f"segments/{number:010}.segment"),
            os.path.join(directory, f"segments/{number}.moved"),
        )
    for number in (1, 2):
        os.rename(
            os.path.join(directory, f"segments/{number}.moved"),
            os.path.join(directory, f"segments/{3 - number:010}.segment"),
        )
    before = listing(directory)
    mend(directory)
    assert not check(directory).is_damaged
    undo(directory)
    assert listing(directory) == before
