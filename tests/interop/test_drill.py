"""`amqpstore drill` as an operator runs it: exit codes, reports, and the original left alone."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pika.spec import BasicProperties

from amqpstore_tools.client.connection import Address
from amqpstore_tools.drill.client import MARKS, QUEUES, Drainer
from amqpstore_tools.drill.scenarios import SCENARIOS
from tests.broker_process import REPOSITORY, BrokerProcess
from tests.etcd_process import INSTALL
from tests.interop.external_client import need
from tests.interop.pika_client import connect
from tests.waiting import wait_until

PERSISTENT = BasicProperties(delivery_mode=2)


def drill(*arguments: str, directory: str = REPOSITORY) -> subprocess.CompletedProcess[str]:
    """Run it with the code that is below a directory."""
    roots = (directory, f"{directory}/server", f"{directory}/tools")
    return subprocess.run(
        [sys.executable, "-m", "amqpstore_tools", "drill", *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(roots)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def files_of(directory: str) -> dict[str, bytes]:
    found = {}
    for root, _, names in os.walk(directory):
        for name in names:
            with open(os.path.join(root, name), "rb") as file:
                found[os.path.join(root, name)] = file.read()
    return found


def test_kills_of_the_real_process_lose_nothing(tmp_path: Path) -> None:
    report = str(tmp_path / "report")
    finished = drill("kill", "--seed", "5", "--images", "2", "--report", report)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    with open(f"{report}.json", encoding="utf-8") as file:
        (scenario,) = json.load(file)["scenarios"]
    assert scenario["did"]["kills"] == 2
    assert scenario["did"]["confirms"] > 0
    # What is due by a clock is for `clock-jumps`, and what a sync is for `disk`.
    held = dict.fromkeys(scenario["verdicts"], "held")
    assert scenario["verdicts"] == {**held, "I13": "not exercised", "I15": "not exercised"}
    assert finished.stdout.splitlines()[-2] == "kill: passed; not exercised: I13, I15"
    assert os.path.getsize(f"{report}.html") > 1000


@pytest.mark.long
def test_losses_of_members_lose_nothing(tmp_path: Path) -> None:
    need("etcd", INSTALL)
    report = str(tmp_path / "report")
    finished = drill("cluster", "--seed", "1", "--rounds", "2", "--report", report)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    with open(f"{report}.json", encoding="utf-8") as file:
        (scenario,) = json.load(file)["scenarios"]
    assert scenario["did"]["members lost"] >= 2
    assert scenario["did"]["confirms"] > 0
    held = [name for name, verdict in scenario["verdicts"].items() if verdict == "held"]
    assert held == ["I1", "I2", "I5", "I9", "I14"]


def test_who_drains_a_queue_knows_what_is_in_the_log(broker: BrokerProcess) -> None:
    """A confirm that comes after the deliveries shows it: deliveries that were not in the log may
    come back without a flag.
    """
    connection = connect(broker.url)
    channel = connection.channel()
    channel.confirm_delivery()
    for name in (QUEUES[0], MARKS):
        channel.queue_declare(name, durable=True)
    for number in range(3):
        channel.basic_publish("", QUEUES[0], b"%d" % number, PERSISTENT)
    drainer = Drainer(Address.parse(broker.url), QUEUES[0])
    drainer.run()
    assert drainer.bodies == [(b"0", False), (b"1", False), (b"2", False)]
    assert (drainer.failure, drainer.is_done, drainer.is_logged) == ("", True, True)
    assert channel.queue_declare(MARKS, passive=True).method.message_count == 1
    connection.close()


def test_a_copy_is_drilled_and_the_original_stays_as_it_was(
    broker: BrokerProcess, data_directory: str
) -> None:
    connection = connect(broker.url)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True)
    for number in range(50):
        channel.basic_publish("", "orders", b"%d" % number * 100, PERSISTENT)
    connection.close()
    busy = drill("bit-flips", "--data", data_directory, "--images", "5")
    assert busy.returncode == 3, busy.stderr
    assert "in use by another process" in busy.stderr
    broker.terminate()
    before = files_of(data_directory)
    arguments = ("--data", data_directory, "--seed", "1", "--images", "1", "--seconds", "100")
    finished = drill("all", *arguments)
    assert not finished.stderr
    last_lines = {line.partition(":")[0]: line for line in finished.stdout.splitlines()}
    for scenario in SCENARIOS:
        assert f"\n{scenario}: seed 1" in f"\n{finished.stdout}" or scenario == "cluster"
        result = "not exercised" if scenario == "cluster" else "passed"
        # The tests do not know what their disk is like.
        assert last_lines[scenario].startswith(f"{scenario}: {result}") or scenario == "disk"
    assert finished.returncode == ("failed" in last_lines["disk"])
    assert finished.stdout.splitlines()[-1].startswith("drill ")
    assert files_of(data_directory) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("bit-flips", "--data", "{data}", "--work", "{data}"), "only read"),
        (("earthquake",), "invalid choice"),
        (("bit-flips", "--images", "0"), "positive"),
    ],
)
def test_wrong_usage_is_refused(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    finished = drill(*(one.format(data=tmp_path) for one in arguments))
    assert finished.returncode == 2
    assert said in finished.stderr


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a store")
    assert drill("bit-flips", "--data", str(tmp_path)).returncode == 4


def test_a_broken_engine_is_reported_with_the_command_that_shows_it_again(tmp_path: Path) -> None:
    """A copy of the code that confirms before the sync: the drill sees it, twice the same."""
    for name in ("amqpstore", "server/amqpstore_server", "tools/amqpstore_tools"):
        shutil.copytree(os.path.join(REPOSITORY, name), tmp_path / name)
    log = tmp_path / "amqpstore" / "log" / "log.py"
    text = log.read_text()
    assert text.count("            segment.writer.datasync()\n") == 1
    log.write_text(text.replace("            segment.writer.datasync()\n", ""))
    finished = drill("power-cut", "--seed", "7", "--images", "300", directory=str(tmp_path))
    assert finished.returncode == 1
    assert "I1 violated" in finished.stdout
    command = "amqpstore drill power-cut --seed 7 --round 1"
    assert command in finished.stdout
    again = drill(*command.split()[2:], directory=str(tmp_path))
    assert again.returncode == 1
    assert "I5 violated" in again.stdout


def test_a_drill_that_is_interrupted_leaves_nothing_behind(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "amqpstore_tools", "drill", "kill", "--work", str(tmp_path)],
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_until(lambda: bool(list(tmp_path.glob("*/store-1/STORE"))))
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in said
    assert list(tmp_path.iterdir()) == []
