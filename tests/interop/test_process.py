"""The broker as a process: its ready line, its exit codes, the lock on its directory."""

import os
import re
import signal
import subprocess
import sys

import pytest

from amqpstore import OtherOwnerError, SharedStore, StoreLockedError
from tests.broker_process import (
    READY_LINE,
    REPOSITORY,
    BrokerProcess,
    BrokerStartError,
    CommandLineBroker,
    serve_command,
)
from tests.interop.pika_client import connect

RUN_TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def broker_type() -> type[BrokerProcess]:
    return CommandLineBroker


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command that is expected to end by itself."""
    return subprocess.run(
        command,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )


def test_the_ready_line_names_the_url_and_the_directory(broker: BrokerProcess) -> None:
    ready = READY_LINE.match(broker.ready_line)
    assert ready is not None
    assert ready["data"] == broker.data_directory
    connect(broker.url).close()


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT], ids=lambda stop: stop.name)
def test_a_stop_signal_is_a_clean_shutdown(broker: BrokerProcess, stop: signal.Signals) -> None:
    assert broker.terminate(stop) == 0


def test_it_stops_with_clients_connected(broker: BrokerProcess) -> None:
    connections = [connect(broker.url) for _ in range(3)]
    assert broker.terminate() == 0
    for connection in connections:
        if connection.is_open:
            with pytest.raises(Exception, match=r"(?i)clos|lost|shut|320"):
                connection.process_data_events(time_limit=10)


def test_it_starts_again_after_a_kill(broker: BrokerProcess) -> None:
    broker.kill()
    broker.start()
    connect(broker.url).close()


def test_a_directory_that_is_held_exits_with_3(broker: BrokerProcess) -> None:
    second = run(serve_command(broker.data_directory))
    assert second.returncode == 3, second.stderr
    assert broker.data_directory in second.stderr
    assert re.search(rf"\b{broker.pid}\b", second.stderr)
    assert "Traceback" not in second.stderr
    assert second.stdout == ""
    connect(broker.url).close()


def test_a_directory_that_is_no_store_exits_with_4_and_is_left_alone(
    stopped_broker: BrokerProcess,
) -> None:
    directory = stopped_broker.data_directory
    os.mkdir(directory)
    with open(os.path.join(directory, "letter.txt"), "w", encoding="utf-8") as letter:
        letter.write("dear reader")
    with pytest.raises(BrokerStartError) as caught:
        stopped_broker.start()
    assert caught.value.exit_code == 4, caught.value
    assert directory in caught.value.stderr
    assert "Traceback" not in caught.value.stderr
    assert os.listdir(directory) == ["letter.txt"]


def test_the_directory_of_a_library_exits_with_4_and_is_left_alone(
    stopped_broker: BrokerProcess,
) -> None:
    directory = stopped_broker.data_directory
    with SharedStore.open(directory) as shared:
        shared.declare("q")
        with shared.transaction() as transaction:
            transaction.send("q", [b"one"])
    with pytest.raises(BrokerStartError) as caught:
        stopped_broker.start()
    assert caught.value.exit_code == 4, caught.value
    assert "Traceback" not in caught.value.stderr
    with SharedStore.open(directory) as shared:
        assert [(queue.name, queue.ready_count) for queue in shared.queues()] == [("q", 1)]


def test_a_library_leaves_the_directory_of_a_broker_alone(broker: BrokerProcess) -> None:
    with pytest.raises(StoreLockedError):
        SharedStore.open(broker.data_directory)
    assert broker.terminate() == 0
    with pytest.raises(OtherOwnerError, match="virtual hosts"):
        SharedStore.open(broker.data_directory)
    broker.start()
    connect(broker.url).close()


def test_an_empty_directory_becomes_a_store(stopped_broker: BrokerProcess) -> None:
    os.mkdir(stopped_broker.data_directory)
    stopped_broker.start()
    assert stopped_broker.terminate() == 0


@pytest.mark.parametrize(
    "arguments",
    [["--no-such-option"], ["--listen", "nowhere"], ["--listen", "127.0.0.1:99999"]],
    ids=" ".join,
)
def test_bad_arguments_exit_with_2(stopped_broker: BrokerProcess, arguments: list[str]) -> None:
    command = [
        sys.executable,
        "-m",
        "amqpstore_tools",
        "serve",
        "--data",
        stopped_broker.data_directory,
    ]
    ended = run([*command, *arguments])
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr
    assert "Traceback" not in ended.stderr
