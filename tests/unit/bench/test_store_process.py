"""Whole small runs of `bench store`, with their processes; and what happens when one fails."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from amqpstore_tools.client.errors import BenchError
from tests.bench import command
from tests.bench.store import run as store_run
from tests.bench.store.job import Job
from tests.bench.store.process import StoreProcess
from tests.bench.store.settings import StoreSettings


def run(*arguments: str) -> dict[str, Any]:
    args = command.parser().parse_args(["store", *arguments])
    return store_run.run(StoreSettings.of(args)).sections


def test_fill_and_drain(tmp_path: Path) -> None:
    data = tmp_path / "data"
    sections = run("fill", "--messages", "3000", "--data", str(data))
    assert sections["fill"]["messages"] == sections["drain"]["messages"] == 3000
    assert sections["fill"]["messages_per_s"] > 0
    assert not data.exists()


def test_a_killed_store_is_opened_with_all_that_was_confirmed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    sections = run(
        "restart",
        "--messages",
        "5000",
        "--batch",
        "100",
        "--runs",
        "2",
        "--keep",
        "--data",
        str(data),
    )
    assert [section["messages"] for section in sections.values()] == [5000, 5000]
    # It was killed, not closed: there was something to be recovered.
    assert all(section["scanned_bytes"] > 5000 * 100 for section in sections.values())
    assert sorted(path.name for path in data.iterdir()) == ["run-1", "run-2"]


def test_memory_is_that_of_a_process_of_its_own() -> None:
    (figures,) = run("memory", "--messages", "1000").values()
    assert 0 < figures["resident_before_mib"] < figures["resident_peak_mib"] < 200


def test_churn_passes_the_bytes() -> None:
    (figures,) = run("churn", "--bytes", "2000000", "--size", "1000").values()
    assert figures["messages"] == 2000
    assert figures["live_bytes"] == 1000


def test_fanout_writes_a_message_once() -> None:
    sections = run("fanout", "--messages", "1000", "--queues", "10")
    assert list(sections) == ["queues_1", "queues_10", "ratio"]
    assert sections["ratio"]["disk_segments_bytes_per_message"] < 1.5


def test_a_process_that_fails_is_an_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = Job("open", str(tmp_path / "store"), messages=1)
    with StoreProcess(job, timeout_s=60) as process, pytest.raises(BenchError, match="ended with"):
        process.figures(lambda _: None)
    assert "Error" in capfd.readouterr().err


def test_a_process_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    job = Job("fill", str(tmp_path / "store"), messages=10**9)
    with StoreProcess(job, timeout_s=0.5) as process, pytest.raises(BenchError, match="given up"):
        process.figures(lambda _: None)


def test_the_load_generator_does_not_load_the_engine() -> None:
    program = "import sys, amqpstore_tools.verbs.bench; sys.exit('amqpstore' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
