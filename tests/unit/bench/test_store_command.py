"""Arguments of `bench store`: what is refused, what is chosen by default, how results are shown."""

import argparse
import json
from pathlib import Path

import pytest

from tests.bench import command
from tests.bench.store.report import StoreReport
from tests.bench.store.settings import WORKLOADS, StoreSettings


def parsed(*arguments: str) -> argparse.Namespace:
    return command.parser().parse_args(["store", *arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("fill --messages 0", "--messages must be 1 to"),
        ("fill --batch 0", "--batch must be 1 to"),
        ("churn --bytes 0", "--bytes must be 1 to"),
        ("churn --size 0", "--size must be 1 to"),
        ("churn --immortal -1", "--immortal must be 0 to"),
        ("restart --runs 0", "--runs must be 1 to"),
        ("fanout --queues 1", "--queues must be 2 to"),
        ("memory --timeout 0", "--timeout must be above 0"),
    ],
)
def test_wrong_usage_is_exit_code_2_with_its_reason(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["store", *arguments.split()]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("arguments", ["", "nothing", "fill --runs 2", "churn --messages 5"])
def test_what_cannot_be_parsed_is_exit_code_2(arguments: str) -> None:
    with pytest.raises(SystemExit) as caught:
        parsed(*arguments.split())
    assert caught.value.code == 2


def test_a_directory_that_is_in_use_is_refused_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "precious").write_text("mine")
    assert command.main(["store", "fill", "--data", str(tmp_path)]) == 2
    assert "new or empty directory" in capsys.readouterr().err
    assert (tmp_path / "precious").read_text() == "mine"


def test_defaults() -> None:
    fill = StoreSettings.of(parsed("fill"))
    assert (fill.messages, fill.size, fill.batch, fill.inline) == (1_000_000, 1024, 1000, False)
    restart = StoreSettings.of(parsed("restart"))
    assert (restart.messages, restart.size, restart.runs) == (10_000_000, 100, 1)
    churn = StoreSettings.of(parsed("churn", "--bytes", "5", "--inline"))
    assert (churn.volume_bytes, churn.immortal, churn.inline) == (5, 1, True)
    assert not churn.keep
    assert StoreSettings.of(parsed("fanout")).queues == 100


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_workload_has_all_that_its_parameters_name(workload: str) -> None:
    parameters = StoreSettings.of(parsed(workload)).parameters()
    assert parameters == WORKLOADS[workload]


REPORT = StoreReport(
    StoreSettings.of(parsed("fill", "--messages", "10")),
    {
        "fill": {"messages": 10, "publish_ms": {"p50": 0.5, "max": 1.5}},
        "drain": {"messages": 10, "disk_bytes": 123456},
    },
)


def test_the_json_report_has_parameters_and_results() -> None:
    report = json.loads(REPORT.as_json())
    assert report["workload"] == "store fill"
    assert report["parameters"]["messages"] == 10
    assert report["results"]["fill"]["publish_ms"] == {"p50": 0.5, "max": 1.5}


def test_the_table_has_a_column_for_each_section(capsys: pytest.CaptureFixture[str]) -> None:
    REPORT.print_table()
    shown = capsys.readouterr().out
    for part in ("store fill: messages 10", "fill", "drain", "publish_ms max", "1.5", "123,456"):
        assert part in shown
