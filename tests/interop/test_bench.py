"""Short real runs of every workload against our own broker, in a process of its own."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench.stalls.cases import DISTURBANCES
from tests.broker_process import REPOSITORY


def bench(
    url: str, *arguments: str, program: tuple[str, ...] = ("amqpstore_tools", "bench")
) -> dict[str, Any]:
    finished = subprocess.run(
        [sys.executable, "-m", *program, *arguments, "--url", url, "--json"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    report: dict[str, Any] = json.loads(finished.stdout)
    assert report["workload"] == arguments[0]
    assert report["broker"]["product"] not in ("", "unknown")
    results: dict[str, Any] = report["results"]
    return results


SHORT = ("--seconds", "1", "--warmup", "0.2")
FEW = ("--messages", "300")


@pytest.mark.parametrize(
    "options",
    [
        ("--confirm", "2000", "--prefetch", "500", *SHORT),
        ("--confirm", "0", "--auto-ack", "--transient", "--size", "100", *SHORT),
        ("--confirm", "1", "--prefetch", "1", "--size", "0", *FEW),
        ("--confirm", "10", "--size", "300000", *FEW),
        ("--producers", "2", "--consumers", "3", "--queues", "5", "--ack-every", "20", *FEW),
        ("--vary", "--producers", "2", "--queues", "3", *FEW),
        ("--vary", "--size", "300000", "--confirm", "10", *FEW),
    ],
    ids=" ".join,
)
def test_through_delivers_what_it_publishes(url: str, options: tuple[str, ...]) -> None:
    results = bench(url, "through", *options)
    assert results["published"] == results["delivered"] > 0
    assert results["delivered_per_s"] > 0
    if "--auto-ack" not in options:
        assert results["acked"] == results["published"]
    if "0" not in options[1:2]:
        assert results["confirmed"] == results["published"]


def test_through_ends_with_a_number_of_messages(url: str) -> None:
    results = bench(url, "through", "--messages", "1001", "--producers", "3")
    assert results["published"] == results["confirmed"] == results["delivered"] == 1001


@pytest.mark.parametrize("by", ["tx", "confirms"])
def test_batches_are_safe_and_consumed(url: str, by: str) -> None:
    results = bench(url, "batches", *SHORT, "--by", by, "--batch", "7", "--queues", "3")
    assert results["published"] == results["confirmed"] == results["delivered"] > 0
    assert results["published"] % 7 == 0


def test_sync_confirms_one_by_one_on_every_connection(url: str) -> None:
    results = bench(url, "sync", *SHORT, "--connections", "20", "--processes", "2")
    assert results["published"] == results["confirmed"] >= 20
    assert results["confirm_ms"]["p50"] > 0


def test_fill_leaves_what_drain_takes(url: str) -> None:
    filled = bench(url, "fill", "--messages", "5000", "--queues", "2")
    assert filled["confirmed"] == 5000
    some = bench(url, "drain", "--messages", "1000", "--queues", "2", "--keep")
    assert some["delivered"] == some["acked"] == 1000
    rest = bench(url, "drain", "--queues", "2")
    assert rest["delivered"] == rest["acked"] == 4000


def test_fanout_delivers_to_every_queue(url: str) -> None:
    results = bench(url, "fanout", *SHORT, "--queues", "3", "--consumers", "2")
    assert results["delivered"] == 3 * results["published"] > 0


def test_a_topic_exchange_delivers_to_some_queues(url: str) -> None:
    options = ("--vary", "--topic", "--queues", "6", "--matches", "2", "--consumers", "2")
    results = bench(url, "through", *SHORT, *options)
    assert results["delivered"] == 2 * results["published"] > 0


def test_a_backlog_is_published_and_consumed(url: str) -> None:
    results = bench(url, "backlog", "--messages", "2000", "--vary", "--queues", "2")
    assert results["fill"]["confirmed"] == results["delivered"] == results["acked"] == 2000
    server = results["fill"]["server"]
    assert server["max_rss_mib"] >= server["rss_mib"] > 0


def test_connect_opens_and_closes(url: str) -> None:
    results = bench(url, "connect", *SHORT, "--connections", "4")
    assert results["connected_per_s"] > 0
    assert results["connect_ms"]["samples"] > 0


def test_latency_keeps_its_rate(url: str) -> None:
    results = bench(url, "latency", *SHORT, "--rate", "200", "--vary", "--producers", "2")
    assert results["published"] == results["delivered"] == 240
    assert results["latency_ms"]["samples"] == results["confirm_ms"]["samples"] == 200
    assert results["latency_ms"]["max"] >= results["latency_ms"]["p50"] > 0


@pytest.mark.rounds(1)
def test_stalls_are_measured_beside_some_disturbances(url: str, seed: int) -> None:
    check_stalls(url, *random.Random(seed).sample(sorted(DISTURBANCES), 6))


@pytest.mark.long
def test_stalls_are_measured_beside_each_disturbance(url: str) -> None:
    check_stalls(url)


def check_stalls(url: str, *names: str) -> None:
    """Make each disturbance, small, and see that the quiet client was measured beside it."""
    options = ("--scale", "0.002", "--lead", "0.1")
    stalls = bench(url, "stalls", *names, *options, program=("tests.bench",))
    assert sorted(stalls) == sorted(names or DISTURBANCES)
    for name, stall in stalls.items():
        if "refused" in stall:
            assert name == "replay"
            continue
        assert stall["confirm_ms"]["samples"] > 10
        assert stall["answer_ms"]["max"] > 0


def test_brokers_are_compared_by_turns(url: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    options = ("--url", url, "--rounds", "2", "--page", str(page))
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "amqpstore_tools", "bench", "compare", "--url", url),
            *(*options, "--json", "--", "through", "--vary", "--messages", "500"),
        ],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    report = json.loads(finished.stdout)
    assert len({one["label"] for one in report["brokers"]}) == 2
    delivered = report["workloads"]["through"]["figures"][0]
    assert [len(one["values"]) for one in delivered["brokers"]] == [2, 2]
    assert delivered["ratios"][0]["median"] > 0
    order = [line.rpartition(" on ")[2] for line in finished.stderr.splitlines()]
    assert order == [*order[:2], *reversed(order[:2])]
    assert "<svg" in page.read_text("utf-8")


def test_store_needs_no_broker() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "tests.bench", "store", "fill", "--messages", "2000", "--json"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    report = json.loads(finished.stdout)
    assert report["workload"] == "store fill"
    assert report["results"]["drain"]["messages"] == 2000
