"""Arguments: what is refused, with exit code 2, and what is chosen by default."""

import argparse
import json
import socket

import pytest

from amqpstore_tools.bench.board import Totals
from amqpstore_tools.bench.histogram import Histogram
from amqpstore_tools.bench.measure import Measurement
from amqpstore_tools.bench.report import Report
from amqpstore_tools.bench.settings import BenchSettings
from amqpstore_tools.client.connection import Address
from amqpstore_tools.client.errors import CommandLineError
from amqpstore_tools.verbs import bench as command


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench")
    command.add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("fill --consumers 2", "fill takes no --consumers"),
        ("drain --size 5", "drain takes no --size"),
        ("drain --seconds 5", "drain takes no --seconds"),
        ("connect --messages 5", "connect takes no --messages"),
        ("sync --confirm 5", "sync takes no --confirm"),
        ("through --seconds 1 --messages 5", "not both"),
        ("through --seconds 0", "--seconds must be above 0"),
        ("through --seconds -1", "--seconds must be above 0"),
        ("through --warmup -1", "--warmup must not be negative"),
        ("through --timeout 0", "--timeout must be above 0"),
        ("through --messages 0", "--messages must be 1 or more"),
        ("through --producers 0", "--producers must be 1 to 64"),
        ("through --prefetch 70000", "--prefetch must be 0 to 65535"),
        ("through --prefetch 5 --ack-every 6", "would wait forever"),
        ("through --queue=", "--queue must be"),
        ("through --topic --queues 2", "as many --queues as --matches"),
        ("through --topic --queues 20 --matches 0", "--matches must be 1 to 1000"),
        ("fanout --topic", "fanout takes no --topic"),
        ("drain --vary", "drain takes no --vary"),
        ("backlog --seconds 3", "backlog takes no --seconds"),
        ("latency --rate 1 --producers 2", "1 for each of --producers"),
        ("latency --size 7", "latency needs --size 8"),
        ("sync --connections 2 --processes 3", "at least one of --connections"),
        ("through --url http://localhost/", "--url must look like"),
        ("through --url amqp://localhost:99999/", "no usable port"),
    ],
)
def test_wrong_usage_is_exit_code_2_with_its_reason(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.run(parsed(*arguments.split())) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("arguments", ["", "nothing", "through --size x", "fill --queue-type odd"])
def test_what_cannot_be_parsed_is_exit_code_2(arguments: str) -> None:
    with pytest.raises(SystemExit) as caught:
        parsed(*arguments.split())
    assert caught.value.code == 2


def test_defaults() -> None:
    settings = BenchSettings.of(parsed("through"))
    assert (settings.seconds, settings.warmup, settings.timeout) == (10.0, 1.0, 41.0)
    assert (settings.size, settings.persistent, settings.confirm) == (1024, True, 2000)
    assert settings.address == Address("127.0.0.1", 5672, "guest", "guest", "/")
    assert settings.queue_names() == ["amqpstore-bench"]
    assert BenchSettings.of(parsed("fill")).keep
    assert BenchSettings.of(parsed("fanout")).queues == 4
    counted = BenchSettings.of(parsed("through", "--messages", "5", "--transient"))
    assert (counted.seconds, counted.warmup, counted.messages) == (0.0, 0.0, 5)
    assert not counted.persistent
    assert BenchSettings.of(parsed("backlog")).messages == 1_000_000


def test_an_address_is_percent_decoded() -> None:
    address = Address.parse("amqp://a%40b:p%2Fw@[::1]:1/my%2Fhost")
    assert address == Address("::1", 1, "a@b", "p/w", "my/host")
    assert Address.parse("amqp://host") == Address("host", 5672, "guest", "guest", "/")
    with pytest.raises(CommandLineError):
        Address.parse("host:5672")


def test_no_broker_is_exit_code_5_and_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    arguments = parsed("through", "--url", f"amqp://127.0.0.1:{port}/")
    assert command.run(arguments) == 5
    assert "Start the broker, or name another one with --url" in capsys.readouterr().err


def measured() -> Measurement:
    latency = Histogram()
    latency.record(1_500_000)
    return Measurement(
        window_s=2.0,
        duration_s=3.0,
        within=Totals(published=200, delivered=100),
        overall=Totals(published=300, confirmed=300, delivered=300, acked=300),
        cpu_s={"bench": 0.5, "producer": 0.3, "consumer": 0.6},
        nacked=0,
        blocked=0,
        histograms={"latency": latency},
    )


def test_the_json_report_has_parameters_broker_and_results_without_the_password() -> None:
    settings = BenchSettings.of(parsed("latency", "--url", "amqp://me:secret@127.0.0.1/"))
    text = Report(settings, "Some", "1.2", measured()).as_json()
    assert "secret" not in text
    report = json.loads(text)
    assert report["workload"] == "latency"
    assert report["parameters"]["rate"] == 1000
    assert report["broker"] == {"product": "Some", "version": "1.2"}
    results = report["results"]
    assert (results["published_per_s"], results["delivered_per_s"]) == (100.0, 50.0)
    assert (results["producer_cpu_us"], results["consumer_cpu_us"]) == (1000.0, 2000.0)
    assert results["generator_cpu_s"] == 1.4
    assert results["latency_ms"]["p50"] == 1.5


def test_the_table_names_broker_totals_and_percentiles(capsys: pytest.CaptureFixture[str]) -> None:
    Report(BenchSettings.of(parsed("latency")), "Some", "1.2", measured()).print_table()
    shown = capsys.readouterr().out
    for part in ("latency on Some 1.2", "published", "300", "p99.9 1.500 ms"):
        assert part in shown
