"""Tests of `bench stalls`: what it refuses, how it counts, and what it prints."""

import argparse
import json
import socket
import struct
import threading

import pytest

from amqpstore_tools.bench.histogram import Histogram
from amqpstore_tools.client import wire
from amqpstore_tools.client.connection import Connection
from amqpstore_tools.client.errors import BenchError, PeerError
from tests.bench import command
from tests.bench.interference.dialogue import Dialogue
from tests.bench.interference.quiet import histogram
from tests.bench.stalls.cases import DISTURBANCES
from tests.bench.stalls.report import Stall, StallReport
from tests.bench.stalls.settings import StallSettings


def parsed(*arguments: str) -> argparse.Namespace:
    return command.parser().parse_args(["stalls", *arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("purge nothing", "no disturbance 'nothing'"),
        ("--scale 0", "--scale must be above 0"),
        ("--lead 0", "--lead must be above 0"),
        ("--timeout -1", "--timeout must be above 0"),
        ("--url http://localhost", "--url must look like"),
    ],
)
def test_wrong_usage_is_exit_code_2_with_its_reason(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["stalls", *arguments.split()]) == 2
    assert message in capsys.readouterr().err


def test_counts_follow_the_scale() -> None:
    settings = StallSettings.of(parsed("--scale", "0.001"))
    assert settings.only == list(DISTURBANCES)
    declares, body, purge = (DISTURBANCES[name] for name in ("declares", "body", "purge"))
    assert (settings.scaled(declares), settings.scaled(body)) == (5, 1)
    assert StallSettings.of(parsed()).scaled(purge) == 1_000_000


def test_waits_count_where_they_were_due() -> None:
    samples = [(10, 5), (20, 100), (29, 7), (30, 1000)]
    found = histogram(samples, 20, 30)
    assert (found.count, found.max_ns) == (2, 100)


def test_the_report_shows_worst_waits_and_what_was_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    waits = Histogram()
    waits.record(24_000_000_000)
    stalls = {
        "declares": Stall(5000, took_s=24.0, server_cpu_s=2.5, confirm=waits, answer=waits),
        "replay": Stall(200_000, refused="404 no exchange"),
    }
    report = StallReport(StallSettings.of(parsed()), "Some", "1.2", stalls)
    results = json.loads(report.as_json())["results"]
    assert results["declares"]["confirm_ms"]["max"] == 24_000.0
    assert results["replay"] == {"count": 200_000, "refused": "404 no exchange"}
    report.print_table()
    shown = capsys.readouterr().out
    for part in ("stalls on Some 1.2", "declares 5,000", "24,000.0", "404 no exchange"):
        assert part in shown


def dialogue(ours: socket.socket, timeout_s: float) -> Dialogue:
    """A dialogue on a socket that is there."""
    found = Dialogue.__new__(Dialogue)
    found.connection = Connection.__new__(Connection)
    found.connection.socket = ours
    found._timeout_s = timeout_s
    return found


def test_much_is_said_while_the_answers_are_read() -> None:
    """Each side fills its socket, and would wait for ever if the other did not read."""
    ours, theirs = socket.socketpair()
    answer = wire.method(1, wire.QUEUE_DELETE_OK, bytes(100_000))

    def peer() -> None:
        for _ in range(20):
            theirs.sendall(answer)
            heard = 0
            while heard < 200_000:
                heard += len(theirs.recv(200_000 - heard))

    thread = threading.Thread(target=peer)
    with ours, theirs:
        thread.start()
        dialogue(ours, 30.0).say(bytes(4_000_000), wire.QUEUE_DELETE_OK, 20)
        thread.join()


def test_a_close_and_silence_end_a_dialogue() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with pytest.raises(BenchError, match="2 answers did not come"):
            dialogue(ours, 0.05).say(b"x", wire.QUEUE_DELETE_OK, 2)
        reason = struct.pack(">H", 404) + wire.short_string("no queue") + bytes(4)
        theirs.sendall(wire.method(1, wire.CHANNEL_CLOSE, reason))
        with pytest.raises(PeerError, match="404 no queue"):
            dialogue(ours, 5.0).say(b"x", wire.QUEUE_DELETE_OK, 1)
