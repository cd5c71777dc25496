"""Comparisons: what is refused, medians and ratios, the table and the page."""

import argparse
import json
import re
from typing import Any

import pytest

from amqpstore_tools.compare.page import page
from amqpstore_tools.compare.report import ComparedBroker, CompareReport
from amqpstore_tools.compare.settings import CompareSettings
from amqpstore_tools.compare.summary import Rounds, Spread
from amqpstore_tools.compare.workloads import WORKLOADS, Figure
from amqpstore_tools.verbs import bench as command

TWO = ("--url", "amqp://127.0.0.1:1", "--url", "amqp://127.0.0.1:2")
EVIL = "<script>alert('\"&')</script>"


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench")
    command.add_arguments(parser)
    return parser.parse_args(["compare", *arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (TWO[:2], "at least two --url"),
        ((*TWO, "--rounds", "0"), "--rounds must be 1"),
        ((*TWO, "--seconds", "0"), "--seconds must be above 0"),
        ((*TWO, "--backlog", "0"), "--backlog must be 1"),
        ((*TWO, "--pid", "3"), "--pid for none of the brokers, or for each"),
        ((*TWO, "--only", "nothing"), "no workload 'nothing'"),
        ((*TWO, "--only", "alike", "--", "through"), "not both"),
        ((*TWO, "--", "drain"), "compare backlog"),
        ((*TWO, "--", "through", "--odd"), "through --odd --seconds 5: unrecognized"),
        ((*TWO, "--", "sync", "--rate", "5"), "sync takes no --rate"),
        ((*TWO, "--", "nothing"), "invalid choice"),
        (("--url", "http://a", *TWO), "--url must look like"),
    ],
)
def test_wrong_usage_is_exit_code_2_with_its_reason(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.run(parsed(*arguments)) == 2
    assert message in capsys.readouterr().err


def test_the_named_workloads_are_all_of_them_with_their_durations() -> None:
    lengths = ("--seconds", "2", "--backlog", "1000")
    settings = CompareSettings.of(parsed(*TWO, *lengths))
    assert list(settings.workloads) == list(WORKLOADS)
    one = settings.settings("one-queue", 1)
    assert (one.seconds, one.address.port) == (2, 2)
    backlog = settings.settings("backlog", 0)
    assert backlog.messages == 1000


def test_a_workload_of_ones_own_follows_two_dashes() -> None:
    line = ("--", "through", "--vary", "--messages", "5")
    settings = CompareSettings.of(parsed(*TWO, *line))
    (workload,) = settings.workloads.values()
    assert workload.arguments == line[1:]
    assert [figure.title for figure in workload.figures][:2] == ["delivered", "CPU"]


def rounds() -> Rounds:
    def result(rate: float, cpu_us: float) -> dict[str, Any]:
        return {"delivered_per_s": rate, "server": {"cpu_us": cpu_us}}

    return Rounds(
        WORKLOADS["alike"],
        [
            [result(200, 5.0), result(300, 7.0), result(1000, 6.0)],
            [result(100, 10.0), result(100, 10.0), None],
        ],
        ["", f"it broke {EVIL}"],
    )


def test_the_spread_is_that_of_the_rounds_and_ratios_are_taken_in_each() -> None:
    rate = Figure(("delivered_per_s",), "delivered", "/s")
    found = rounds()
    assert found.spread(rate, 0) == Spread(300, 200, 1000, (200, 300, 1000))
    assert found.spread(rate, 1) == Spread(100, 100, 100, (100, 100))
    assert found.ratio(rate, 1) == Spread(2.5, 2, 3, (2, 3))
    assert found.spread(Figure(("nothing",), "", ""), 0) is None
    assert [figure.title for figure in found.figures()] == ["delivered", "CPU"]


def report() -> CompareReport:
    brokers = [
        ComparedBroker("Ours 1", "127.0.0.1:1", "Ours", "1"),
        ComparedBroker(EVIL, "127.0.0.1:2", "Theirs", "2"),
    ]
    settings = CompareSettings.of(parsed(*TWO, "--only", "alike"))
    return CompareReport(settings, "2026-01-01T00:00:00+00:00", brokers, {"alike": rounds()})


def test_the_json_has_values_medians_ratios_and_failures() -> None:
    found = json.loads(report().as_json())
    alike = found["workloads"]["alike"]
    assert alike["command"][:3] == ["amqpstore", "bench", "through"]
    delivered, cpu = alike["figures"]
    assert delivered["brokers"][0] == {
        "median": 300,
        "min": 200,
        "max": 1000,
        "values": [200, 300, 1000],
    }
    assert delivered["ratios"][0]["median"] == 2.5
    assert (cpu["name"], cpu["unit"]) == ("server.cpu_us", "s/million")
    assert alike["failures"][1].startswith("it broke")


def test_the_table_has_a_column_for_each_broker_and_each_ratio(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report().print_table()
    shown = capsys.readouterr().out
    for part in ("alike: persistent 1 KiB", "300 (200-1,000)", "2.50 (2.00-3.00)", "it broke"):
        assert part in shown


def test_the_page_loads_nothing_executes_nothing_and_shows_all() -> None:
    text = page(report())
    assert "<script" not in text
    assert not re.search(r"(src|href)=|url\(|@import", text)
    for part in (
        "300 (200-1,000)",
        "2.50 (2.00-3.00) x",
        "Failed: alike",
        "amqpstore bench through",
    ):
        assert part in text
    assert text.count("<svg viewBox") == 3
