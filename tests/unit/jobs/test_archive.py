"""The archive of a log: every event once, whatever happens between two runs, or in one."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from amqpstore import NotAStoreError
from amqpstore_tools.archive.committing import Archive, writing_to
from amqpstore_tools.archive.errors import ArchiveError
from amqpstore_tools.archive.layout import QueueName, directory_of, hour_of
from tests.unit.check.stores import History
from tests.unit.jobs.archives import Event, events_of, held_by, held_in, log_of, rows_of, run

ROOT = Path(__file__).parents[3]


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@pytest.fixture
def out(tmp_path: Path) -> str:
    return str(tmp_path / "archive")


def made(directory: str, out: str) -> None:
    """A store, and an archive of it."""
    history = History(directory, 1)
    history.steps(30)
    history.close()
    run(directory, out)


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 6))]
)
def test_every_event_is_archived_once_through_crashes_and_compaction(
    directory: str, out: str, seed: int
) -> None:
    history = History(directory, seed)
    expected: Counter[Event] = Counter()
    for stage in range(5):
        history.steps(120)
        if stage % 2:
            history.close()
        else:
            history.abandon()
        # What is durable is what is archived: a start adopts or takes back the rest.
        expected |= log_of(directory)
        run(directory, out)
        rows = rows_of(out)
        assert events_of(rows) == expected
        assert held_by(rows) == held_in(directory)


def test_nothing_new_is_no_run(directory: str, out: str) -> None:
    history = History(directory, 1)
    history.steps(50)
    history.close()
    assert run(directory, out) is not None
    before = rows_of(out)
    assert run(directory, out) is None
    assert rows_of(out) == before
    assert len(Archive(out).manifests()) == 1


def test_a_queue_that_is_gone_is_said_to_be(directory: str, out: str) -> None:
    history = History(directory, 1)
    history.steps(60)
    history.store.sync()
    queue = next(one for one in history.store.queues.values() if one.ready_count)
    history.close()
    run(directory, out)
    store = history.store
    store.delete_queue(store.queues[queue.id])
    history.close()
    manifest = run(directory, out)
    assert manifest is not None
    assert manifest.deleted == [queue.id]
    assert held_by(rows_of(out)) == held_in(directory)


def test_a_log_that_compaction_took_is_missed_and_what_it_left_is_held(
    directory: str, out: str
) -> None:
    history = History(directory, 3)
    history.steps(400)
    history.close()
    manifest = run(directory, out)
    assert manifest is not None
    assert manifest.missing > 0
    assert manifest.events["held"] > 0
    assert held_by(rows_of(out)) == held_in(directory)


def test_an_archive_is_of_one_store(directory: str, out: str, tmp_path: Path) -> None:
    for name in ("store", "other"):
        history = History(str(tmp_path / name), 1)
        history.steps(20)
        history.close()
    run(directory, out)
    with pytest.raises(ArchiveError, match="it is of store"):
        run(str(tmp_path / "other"), out)


def test_an_older_copy_of_the_store_is_refused(directory: str, out: str, tmp_path: Path) -> None:
    history = History(directory, 1)
    history.steps(20)
    history.close()
    shutil.copytree(directory, tmp_path / "copy")
    history.steps(20)
    history.close()
    run(directory, out)
    with pytest.raises(ArchiveError, match="it was replaced by an older copy"):
        run(str(tmp_path / "copy"), out)


def test_two_runs_do_not_write_at_a_time(directory: str, out: str) -> None:
    history = History(directory, 1)
    history.steps(20)
    history.close()
    with writing_to(out), pytest.raises(ArchiveError, match="another run is writing to it"):
        run(directory, out)
    assert run(directory, out) is not None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("run", 7), ("run", -1), ("run", 1 << 70), ("format", 2), ("store_id", None)),
        *(("staging", "../../.."), ("staging", ""), ("staging", "/etc"), ("staging", "a\0b")),
        *(("position", [1, -5, 3]), ("position", []), ("queues", {"x": ["/", "q"]}), ("files", 1)),
        *(("path", one) for one in ("/etc/passwd", "../../x", "vhost=a/../../x.parquet", "", "\0")),
        *(("path", one) for one in ("_archive/1.json", "vhost=a/queue=b/hour=c/../1.parquet")),
        *(("rows", -1), ("first_ms", 1e300), ("bytes", "x")),
    ],
)
@pytest.mark.parametrize("suffix", [".json", ".prepared"])
def test_a_manifest_that_no_run_writes_is_refused(
    directory: str, out: str, key: str, value: Any, suffix: str
) -> None:
    made(directory, out)
    path = Path(out, "_archive", "000001.json")
    manifest = json.loads(path.read_text())
    (manifest if key in manifest else manifest["files"][0])[key] = value
    path.unlink()
    path.with_suffix(suffix).write_text(json.dumps(manifest))
    before = sorted(os.walk(os.path.dirname(out)))
    with pytest.raises(ArchiveError, match=f"_archive/000001\\{suffix} cannot be read: "):
        run(directory, out)
    assert sorted(os.walk(os.path.dirname(out))) == before


def test_a_manifest_that_is_nested_without_end_is_refused(directory: str, out: str) -> None:
    made(directory, out)
    Path(out, "_archive", "000001.json").write_text('{"x":' + "[" * 100_000)
    with pytest.raises(ArchiveError, match=r"000001\.json cannot be read"):
        run(directory, out)


def test_a_directory_with_something_else_in_it_is_left_alone(directory: str, out: str) -> None:
    os.makedirs(out)
    Path(out, "thesis.txt").write_text("years of work")
    history = History(directory, 1)
    history.steps(20)
    history.close()
    with pytest.raises(ArchiveError, match=r"not empty: it contains 'thesis\.txt'"):
        run(directory, out)
    assert os.listdir(out) == ["thesis.txt"]


def test_what_is_no_store_is_not_archived(tmp_path: Path, out: str) -> None:
    with pytest.raises(NotAStoreError):
        run(str(tmp_path / "nothing"), out)
    assert not os.path.exists(out)


def test_a_damaged_record_costs_its_content_only(directory: str, out: str) -> None:
    history = History(directory, 2)
    history.steps(60)
    history.close()
    whole = run(directory, out)
    assert whole is not None
    path = os.path.join(directory, "segments", min(os.listdir(f"{directory}/segments")))
    with open(path, "r+b") as file:
        content = file.read()
        # In the middle of a record, somewhere behind the first ones.
        offset = content.index(b"RECS"[:3], len(content) // 2) + 45
        file.seek(offset)
        file.write(bytes([content[offset] ^ 1]))
    other = f"{out}-damaged"
    report = run(directory, other)
    assert report is not None
    assert report.damaged >= 1
    bodies = {
        (row["queue_id"], row["position"]): row["body"]
        for row in rows_of(out)
        if row["event"] == "publish"
    }
    differs = [
        row
        for row in rows_of(other)
        if row["event"] == "publish" and row["body"] != bodies[row["queue_id"], row["position"]]
    ]
    # Of one message, in as many queues as it was routed to.
    assert len({row["id"] for row in differs}) == 1
    assert len(differs) == report.unreadable


def test_killed_at_any_moment_and_run_again_each_event_is_there_once(
    directory: str, out: str
) -> None:
    history = History(directory, 5)
    history.steps(12)
    history.close()
    ended = subprocess.run(
        [sys.executable, "-m", "tests.unit.jobs.killed_archive", directory, out],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    moments = int(ended.stdout.split()[0])
    assert moments > 30


def test_a_lock_that_is_left_does_not_matter(directory: str, out: str) -> None:
    history = History(directory, 1)
    history.steps(20)
    history.close()
    run(directory, out)
    lock = os.open(os.path.join(out, "_archive", "lock"), os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.close(lock)
    assert run(directory, out) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (QueueName("/", "orders"), "vhost=%2F/queue=orders/hour=2026-11-21-17"),
        (QueueName("a", "x/y:z=1%"), "vhost=a/queue=x%2Fy%3Az%3D1%25/hour=2026-11-21-17"),
        (QueueName("a", "Größe"), "vhost=a/queue=Größe/hour=2026-11-21-17"),
        (
            QueueName(None, None),
            "vhost=__HIVE_DEFAULT_PARTITION__/queue=__HIVE_DEFAULT_PARTITION__/hour=2026-11-21-17",
        ),
    ],
)
def test_directories_are_named_as_spark_names_them(name: QueueName, expected: str) -> None:
    assert directory_of(name, hour_of(1795280400000)) == expected


def test_names_that_are_too_long_for_a_directory_stay_apart(tmp_path: Path) -> None:
    names = ["ä" * 127 + end for end in "ab"] + ["/" * 254 + end for end in "ab"]
    made = {directory_of(QueueName("/", name), "h") for name in names}
    assert len(made) == len(names)
    for one in made:
        os.makedirs(tmp_path / one)
