"""The drill of the operator's own disk: what it sees of syncs, and of a disk that lies."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from amqpstore_tools.drill import loop_disk, own_disk
from amqpstore_tools.drill.loop_disk import LoopDisk, NoDiskError
from amqpstore_tools.drill.own_disk import Syncs
from amqpstore_tools.drill.run import DrillRun, DrillSettings
from amqpstore_tools.drill.scenarios import SCENARIOS, disk
from amqpstore_tools.drill.verdict import Account, Verdict

EXT4, XFS = 2, 1
"""Rounds."""

_LYING = """
import os, sys
import lmdb
from amqpstore.system.files import OsFile, OsFiles
from amqpstore_tools.drill import syncing
opened = lmdb.open
lmdb.open = lambda *args, **options: opened(*args, **options, sync=False, metasync=False)
OsFile.datasync = lambda self: None
OsFiles.sync_directory = lambda self, path: None
syncing.work(*sys.argv[1:])
"""


def drill(work: Path, round_: int = EXT4, data: str | None = None) -> Account:
    run = DrillRun("disk", DrillSettings("7", str(work), round=round_, data=data))
    SCENARIOS["disk"].run(run)
    account = run.end()
    if not account.did["power cuts"]:
        pytest.skip(f"no file system can be mounted here: {account.unknown}")
    return account


def violated(account: Account) -> set[str]:
    return {name for name, one in account.verdicts.items() if one is Verdict.VIOLATED}


@pytest.fixture(autouse=True)
def _plausible(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk of the tests, which may be any, is not what is tested."""
    monkeypatch.setattr(own_disk, "doubts", lambda _syncs: iter(()))


@pytest.mark.parametrize("round_", [EXT4, XFS])
def test_what_was_synced_survives_the_power_cut_of_a_real_file_system(
    tmp_path: Path, round_: int
) -> None:
    account = drill(tmp_path, round_)
    assert account.findings == []
    assert account.checks["I1"] == account.checks["I14"] == 1
    assert account.did["batches promised"] > 0
    assert os.listdir(tmp_path) == []


def test_a_program_whose_syncs_do_nothing_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "_PROGRAM", (sys.executable, "-c", _LYING))
    found = drill(tmp_path)
    assert violated(found) >= {"I1", "I15"}
    assert found.summary.startswith("disk: failed: I1, ")


def broken(monkeypatch: pytest.MonkeyPatch, harm: Callable[[Path], None]) -> None:
    restart = LoopDisk.restart

    def careless(self: LoopDisk) -> None:
        restart(self)
        harm(max(Path(self.path, "store", "segments").iterdir()))

    monkeypatch.setattr(LoopDisk, "restart", careless)


def test_a_lost_directory_entry_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, lambda segment: segment.unlink())
    assert violated(drill(tmp_path)) >= {"I1", "I15"}


def test_a_stale_page_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def harm(segment: Path) -> None:
        with open(segment, "r+b") as file:
            file.seek(4096)
            file.write(bytes(4096))

    broken(monkeypatch, harm)
    assert violated(drill(tmp_path)) >= {"I1", "I15"}


def test_what_cannot_be_tried_here_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_command: str) -> NoReturn:
        raise NoDiskError("mount: permission denied")

    monkeypatch.setattr(loop_disk, "_run", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    run = DrillRun("disk", DrillSettings("7", str(tmp_path), rounds=3))
    SCENARIOS["disk"].run(run)
    account = run.end()
    assert account.checks["I1"] == 0
    for kind in ("ext4", "xfs"):
        assert f"a power cut of {kind}: mount: permission denied" in account.summary


def test_a_store_in_memory_fails_and_that_of_the_drill_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory = own_disk.Mounted("tmpfs", "/run", "tmpfs")
    monkeypatch.setattr(own_disk, "mounted", lambda _path: in_memory)
    monkeypatch.setattr(disk, "KINDS", {})
    for data, is_violated in ((str(tmp_path), True), (None, False)):
        run = DrillRun("disk", DrillSettings("7", str(tmp_path), rounds=1, data=data))
        SCENARIOS["disk"].run(run)
        account = run.end()
        assert violated(account) == ({"I15"} if is_violated else set())
        text = "/run is tmpfs, which is memory: nothing on it survives a power cut"
        assert text in (account.findings[0].text if is_violated else account.summary)


SOUND = Syncs(200, 800e-6, 400e-6, "vda", 200, 200, has_cache=True)


@pytest.mark.parametrize(
    ("syncs", "doubt"),
    [
        (SOUND, ""),
        # A device without a cache is not told to flush.
        (SOUND._replace(flushes=0, has_cache=False), ""),
        (SOUND._replace(direct_s=None, writes=None, flushes=None), ""),
        (SOUND._replace(writes=3), "the device vda was written to 3 times"),
        (SOUND._replace(flushes=0), "was never told to flush it"),
        (SOUND._replace(sync_s=50e-6), "a single write past the cache takes 400.0 us"),
        (SOUND._replace(sync_s=1e-6, direct_s=None), "no disk is that fast"),
    ],
)
def test_a_sync_that_is_too_good_is_doubted(
    monkeypatch: pytest.MonkeyPatch, syncs: Syncs, doubt: str
) -> None:
    monkeypatch.undo()
    found = [*own_disk.doubts(syncs)]
    assert len(found) == bool(doubt)
    assert doubt in "".join(found)


def test_syncs_that_do_nothing_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(os, "fdatasync", lambda _descriptor: None)
    syncs = own_disk.measure(str(tmp_path))
    assert syncs.number == 200
    assert [*own_disk.doubts(syncs)]
    assert os.listdir(tmp_path) == []


def test_the_file_system_of_a_path_is_known() -> None:
    assert own_disk.mounted("/proc/self").kind == "proc"
    assert own_disk.unseen(own_disk.mounted("/proc")) == ""
    assert "overlay" in own_disk.unseen(own_disk.Mounted("overlay", "/", "overlay"))
    assert "fuse.sshfs" in own_disk.unseen(own_disk.Mounted("fuse.sshfs", "/mnt", ""))
