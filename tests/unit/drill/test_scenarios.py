"""The scenarios of `amqpstore drill`: what a seed decides, and that they see what is broken."""

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from amqpstore import Options, Queue, Store
from amqpstore.errors import DurabilityError
from amqpstore.log.batch import Batch
from amqpstore.log.log import Log
from amqpstore.log.space import Space
from amqpstore.queues.withdrawals import Withdrawals
from amqpstore.system.clock import Clock, SimulatedClock
from amqpstore_tools.check.store import Checked
from amqpstore_tools.copying.restoring import restore
from amqpstore_tools.drill import loading, manual
from amqpstore_tools.drill.damaged import make_store
from amqpstore_tools.drill.examiner import Examined, Examiner, examine_here
from amqpstore_tools.drill.run import DrillRun, DrillSettings, LeftOutError
from amqpstore_tools.drill.scenarios import SCENARIOS, clock_jumps
from amqpstore_tools.drill.scenarios.simulated import open_store
from amqpstore_tools.drill.verdict import Account, Step
from amqpstore_tools.simulation.memory_files import MemoryFile, MemoryFiles
from amqpstore_tools.transfer.exporting import ExportedQueue, export
from amqpstore_tools.transfer.lines import LineWriter

SIMULATED = ("power-cut", "full-disk", "failing-sync", "clock-jumps")
ON_FILES = ("bit-flips", "missing-files", "torn-catalog")


def drill(name: str, work: Path, images: int = 40, **others: Any) -> Account:
    directory = work / f"work-{len(os.listdir(work))}"
    directory.mkdir()
    run = DrillRun(name, DrillSettings("7", str(directory), images=images, **others))
    SCENARIOS[name].run(run)
    return run.end()


def told(timeline: Sequence[Step]) -> list[Step]:
    """Return what was told, without the paths of the copies, which differ."""
    return [Step(**{**vars(step), "did": step.did.partition(": ")[0]}) for step in timeline]


@pytest.mark.parametrize("name", [*SIMULATED, *ON_FILES])
def test_a_sound_store_holds_and_the_seed_decides_all(name: str, tmp_path: Path) -> None:
    first, second = drill(name, tmp_path), drill(name, tmp_path)
    assert first.findings == second.findings == []
    assert first.timeline
    assert told(first.timeline) == told(second.timeline)
    assert first.checks == second.checks
    assert first.checks.keys() <= set(SCENARIOS[name].checked)


def test_a_sync_that_is_left_out_is_seen_and_its_round_shows_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasync = MemoryFile.datasync

    def careless(self: MemoryFile) -> None:
        if "/segments/" not in self.path:
            datasync(self)

    monkeypatch.setattr(MemoryFile, "datasync", careless)
    found = drill("power-cut", tmp_path, images=400)
    assert {"I1", "I4", "I5", "I7"} <= {finding.invariant for finding in found.findings}
    for number in (1, 2):
        command = f"amqpstore drill power-cut --seed 7 --round {number}"
        expected = [finding for finding in found.findings if finding.reproduce == command]
        again = drill("power-cut", tmp_path, images=400, round=number)
        assert 0 < len(expected) <= len(again.findings)
        assert expected == again.findings[: len(expected)]


def test_a_store_that_goes_on_after_a_failed_sync_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Log.write

    def careless(self: Log, batch: Batch) -> None:
        try:
            write(self, batch)
        except DurabilityError:
            self.failure = None

    monkeypatch.setattr(Log, "write", careless)
    assert drill("failing-sync", tmp_path, images=200).findings


def test_a_store_that_adopts_what_a_failed_sync_left_in_memory_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryFile, "drop_cache", lambda _self: None)
    assert drill("failing-sync", tmp_path, images=300).findings


def test_messages_that_expire_too_early_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    withdraw_expired = Withdrawals.withdraw_expired

    def early(self: Withdrawals, queue: Queue, now_ms: int, *, bodies: bool) -> object:
        return withdraw_expired(self, queue, now_ms + 10_000, bodies=bodies)

    monkeypatch.setattr(Withdrawals, "withdraw_expired", early)
    assert "I1" in {one.invariant for one in drill("clock-jumps", tmp_path, images=200).findings}


def test_work_that_is_due_by_the_wall_clock_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimulatedClock, "monotonic_ms", SimulatedClock.wall_ms)
    found = {one.text.partition(" ")[2] for one in drill("clock-jumps", tmp_path).findings}
    assert any("are not in a checkpoint" in text for text in found)
    assert any("are live" in text for text in found)


def test_a_payload_that_is_served_unchecked_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Examiner, "examine", lambda _self, directory: changed(directory))
    assert "I2" in {one.invariant for one in drill("bit-flips", tmp_path).findings}


def as_the_manual_says(tmp_path: Path) -> list[str]:
    found = drill("missing-files", tmp_path, images=31).findings
    return [one.text for one in found if one.invariant == "I14"]


def test_a_repair_that_does_nothing_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manual, "apply_plan", lambda *_: None)
    assert any("not sound" in text for text in as_the_manual_says(tmp_path))


def test_an_export_that_leaves_out_a_queue_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(store_id: str, writer: LineWriter, queues: Sequence[ExportedQueue]) -> object:
        return export(store_id, writer, sorted(queues, key=lambda queue: queue.count)[:-1])

    monkeypatch.setattr(manual, "export", careless)
    assert any("export leaves out" in text for text in as_the_manual_says(tmp_path))


def test_a_check_that_finds_nothing_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Checked, "is_damaged", False)
    assert any("check calls the store sound" in text for text in as_the_manual_says(tmp_path))


def test_a_backup_with_a_stale_page_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that has lost a write after it was read back."""

    def careless(copy: str, directory: str, **_options: bool) -> object:
        restored = restore(copy, directory, links=False, accept_damage=False)
        [first, *_] = sorted(Path(directory, "segments").glob("*.segment"))
        with open(first, "r+b") as file:
            file.seek(4096)
            file.write(bytes(4096))
        return restored

    monkeypatch.setattr(manual, "restore", careless)
    assert any("a restored copy differs" in text for text in as_the_manual_says(tmp_path))


def test_bits_of_the_catalog_are_flipped_too(tmp_path: Path) -> None:
    account = drill("bit-flips", tmp_path)
    of_catalog = [step for step in account.timeline if "catalog/data.mdb" in step.did]
    assert len(of_catalog) > 3
    assert account.did["starts refused"] > 0


def changed(directory: str) -> Examined:
    """Return what a store that serves anything would give: of a damaged copy another digest."""
    found = examine_here(directory)
    if found.damage or any(queue.damaged or queue.unreadable for queue in found.queues.values()):
        for queue in found.queues.values():
            queue.messages = [
                (one, number, f"not {digest}") for one, number, digest in queue.messages
            ]
    return found


def test_an_examiner_that_is_killed_by_a_store_says_so() -> None:
    with Examiner(("sh", "-c", "read line; kill -9 $$")) as examiner:
        found = examiner.examine("/nowhere")
    assert found.error == "opening killed the process (exit code -9)"
    assert not found.is_explained


def test_an_examiner_that_died_is_started_again(tmp_path: Path) -> None:
    directory = str(tmp_path / "store")
    make_store(directory, random.Random(1))
    with Examiner() as examiner:
        process = examiner._started()
        process.kill()
        process.wait()
        assert examiner.examine(directory).queues


def of_a_copy(name: str, work: Path) -> DrillRun:
    work.mkdir()
    make_store(str(work / "store"), random.Random(2))
    return DrillRun(
        name, DrillSettings("7", str(work), images=20, data="/where/it/was/copied/from")
    )


@pytest.mark.parametrize("name", [*SIMULATED, *ON_FILES])
def test_a_copy_of_a_store_is_drilled_as_well(name: str, tmp_path: Path) -> None:
    run = of_a_copy(name, tmp_path / "work")
    SCENARIOS[name].run(run)
    account = run.end()
    assert account.findings == []
    assert run.images >= 20
    assert account.did["messages in the store"] > 50


def test_what_is_lost_of_a_copy_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that has an index file without its first entry, from the second one on."""
    run = of_a_copy("clock-jumps", tmp_path / "work")
    opened = 0

    def forgetful(files: MemoryFiles, options: Options, clock: Clock) -> Store:
        nonlocal opened
        opened += 1
        store = open_store(files, options, clock)
        queue = next(iter(store.queues.values()))
        if opened > 4 and queue.ready_count:
            store.take(queue, 1, acked=True)
            store.sync()
        return store

    monkeypatch.setattr(clock_jumps, "open_store", forgetful)
    SCENARIOS["clock-jumps"].run(run)
    assert "I1" in {one.invariant for one in run.end().findings}


def test_a_copy_that_is_too_large_for_memory_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_MAX_BYTES", 1000)
    run = of_a_copy("power-cut", tmp_path / "work")
    with pytest.raises(LeftOutError, match="a disk in memory takes"):
        SCENARIOS["power-cut"].run(run)


def cuts(account: Account, number: int) -> list[str]:
    return [
        step.did
        for step in account.timeline
        if step.round == number and step.did.startswith("power cut")
    ]


def test_a_history_of_a_given_length_is_looked_at_again_and_again(tmp_path: Path) -> None:
    account = drill("power-cut", tmp_path, images=900, operations=2)
    assert account.findings == []
    assert account.did["rounds"] >= 1
    first, second = cuts(account, 1), cuts(account, 2)
    assert second
    assert second == first[: len(second)]
    # What was seen at an operation is not looked at again.
    assert account.did["of them used, and recovery crashed"] <= account.did["disks recovered"]
    alone = drill("power-cut", tmp_path, images=300, operations=2, round=2)
    assert cuts(alone, 2)
    assert cuts(alone, 2) == first[: len(cuts(alone, 2))]


def test_a_store_without_its_reserve_is_seen_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Space, "give_up", lambda _self: None)
    found = drill("full-disk", tmp_path, images=200).findings
    assert any(one.text.startswith("on a full disk, with a reserve") for one in found)
