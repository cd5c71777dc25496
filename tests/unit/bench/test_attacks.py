"""Tests of `bench attacks`: what it refuses, what its sockets do, and what it prints."""

import argparse
import json
import socket

import pytest

from amqpstore_tools.client import wire
from amqpstore_tools.client.connection import Address
from amqpstore_tools.client.errors import BenchError
from tests.bench import command
from tests.bench.attacks.attack import is_closed, push
from tests.bench.attacks.attacker import Attacker
from tests.bench.attacks.catalog import ATTACKS
from tests.bench.attacks.others import Slice
from tests.bench.attacks.report import AttackReport, AttackResult
from tests.bench.attacks.settings import AttackSettings


def parsed(*arguments: str) -> argparse.Namespace:
    return command.parser().parse_args(["attacks", *arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("flood nothing", "no attack 'nothing'"),
        ("--scale 0", "--scale must be above 0"),
        ("--seconds 1000", "--seconds must be above 0 and up to 600"),
        ("--rounds 0", "--rounds must be above 0"),
        ("--url http://localhost", "--url must look like"),
    ],
)
def test_wrong_usage_is_exit_code_2_with_its_reason(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["attacks", *arguments.split()]) == 2
    assert message in capsys.readouterr().err


def test_counts_follow_the_scale() -> None:
    settings = AttackSettings.of(parsed("--scale", "0.1"))
    assert settings.only == list(ATTACKS)
    assert settings.scaled(ATTACKS["idle"]) == 1000
    assert settings.scaled(ATTACKS["huge-table"]) == 1


def a_slice(delivered: int, cpu_s: float = 0.0) -> Slice:
    found = Slice(0, 2_000_000_000, delivered, rss_bytes=80 << 20, cpu_s=cpu_s)
    found.logins.record(3_000_000)
    return found


def test_the_report_compares_round_by_round(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = AttackResult(
        40,
        alone=[a_slice(1000, 0.1), a_slice(4000, 0.4), a_slice(1000, 0.1)],
        attacked=[a_slice(900, 0.1), a_slice(2000, 0.25), a_slice(1100, 0.25)],
        rss_before_bytes=50 << 20,
        rss_after_bytes=60 << 20,
    )
    outcomes = {
        "wrong-logins": outcome,
        "idle": AttackResult(10_000, "only 1024 files may be open"),
    }
    report = AttackReport(AttackSettings.of(parsed()), "Some", "1.2", outcomes)
    results = json.loads(report.as_json())["results"]
    assert results["wrong-logins"]["ratio"] == 0.9
    assert results["wrong-logins"]["rate"] == [450, 1000, 550]
    assert results["wrong-logins"]["cpu_us"] == [111.1, 125.0, 227.3]
    assert results["wrong-logins"]["cpu_ratio"] == 0.8
    assert results["idle"] == {"count": 10_000, "failed": "only 1024 files may be open"}
    report.print_table()
    shown = capsys.readouterr().out
    for part in ("attacks on Some 1.2", "wrong-logins 40", "0.90", "0.80", "only 1024 files"):
        assert part in shown


def test_without_the_process_nothing_is_said_of_its_processor_time() -> None:
    outcome = AttackResult(40, alone=[a_slice(1000)], attacked=[a_slice(900)])
    assert (outcome.ratio, outcome.cpu_ratio) == (0.9, 0.0)


def test_a_push_ends_when_nothing_is_taken_or_the_socket_is_closed() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert push(ours, bytes(10_000_000), patience_s=0.01)
        assert not is_closed(ours)
        theirs.sendall(wire.method(0, wire.CONNECTION_CLOSE, bytes(7)))
        assert is_closed(ours)
        theirs.close()
        assert not push(ours, bytes(10_000_000), patience_s=0.01)


def test_a_burner_uses_the_time_that_it_is_to_use() -> None:
    with Attacker(None, 0.5) as burner:
        burner.begin()
        assert burner.end() >= 0


def test_an_attack_that_cannot_be_prepared_says_why() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    address = Address("127.0.0.1", port, "guest", "guest", "/")
    with pytest.raises(BenchError, match="cannot connect"):
        Attacker(ATTACKS["wildcards"](address, "name", 1))
