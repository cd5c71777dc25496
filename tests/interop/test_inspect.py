"""`amqpstore inspect` on what real clients left: a broker that was killed, and one that runs."""

import contextlib
import functools
import json
import selectors
import signal
import subprocess
import sys
from collections.abc import Generator
from typing import Any

import pika
import pytest
from pika.exceptions import AMQPError

from tests.broker_process import REPOSITORY, BrokerProcess

PERSISTENT = pika.BasicProperties(
    delivery_mode=2,
    content_type="application/json",
    headers={"tenant": "acme", "attempt": 3},
    correlation_id="c-1",
)
TIMEOUT_S = 60.0


def inspect(*arguments: str) -> dict[str, Any]:
    """Return what the command prints as JSON."""
    found = run(*arguments, "--json")
    assert found.returncode == 0, found.stderr
    content: dict[str, Any] = json.loads(found.stdout)
    return content


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "amqpstore_tools", "inspect", *arguments],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def publish(broker: BrokerProcess, count: int) -> pika.BlockingConnection:
    """Publish to two queues through a topic exchange, take some messages, ack some, and commit a
    transaction.
    """
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.exchange_declare("logs", "topic", durable=True)
    for queue in ("orders", "audit"):
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, "logs", "eu.#")
    for number in range(count):
        body = json.dumps({"number": number}).encode()
        channel.basic_publish("logs", "eu.de", body, PERSISTENT)
    for _ in range(5):
        method, _, _ = channel.basic_get("orders")
        assert method is not None
        assert method.delivery_tag is not None
        if method.delivery_tag <= 3:
            channel.basic_ack(method.delivery_tag)
    transactional = connection.channel()
    transactional.tx_select()
    transactional.basic_publish("", "audit", b"in a transaction", PERSISTENT)
    transactional.tx_commit()
    return connection


@pytest.fixture
def follower(broker: BrokerProcess) -> Generator[subprocess.Popen[bytes]]:
    """`inspect --follow --json` on a broker that runs."""
    command = [sys.executable, "-m", "amqpstore_tools", "inspect", broker.data_directory]
    process = subprocess.Popen(
        [*command, "--follow", "--json", "--limit", "1000"],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # What was read and not yet asked for would not be waited for.
        bufsize=0,
        # Who runs the tests in the background has Ctrl-C ignored, and so would it.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate(timeout=TIMEOUT_S)


def next_line(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Return the next line that a process prints, within a time limit."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        assert selector.select(TIMEOUT_S), "nothing was shown in time"
    content: dict[str, Any] = json.loads(process.stdout.readline())
    return content


def test_a_broker_that_was_killed(broker: BrokerProcess) -> None:
    connection = publish(broker, 20)
    broker.kill()
    with contextlib.suppress(AMQPError):
        connection.close()
    directory = broker.data_directory
    summary = inspect(directory)
    queues = {queue["name"]: queue for queue in summary["queues"]}
    assert queues["audit"]["ready"] == 21
    # An ack that no client waited for may have been lost, and its message is there again.
    assert 17 <= queues["orders"]["ready"] <= 20
    assert {exchange["name"] for exchange in summary["exchanges"]} == {"logs"}
    assert (summary["vhosts"], summary["users"]) == (["/"], ["guest"])
    assert summary["damage"] == []

    [message, *_] = inspect(directory, "queue", "audit")["messages"]
    details = inspect(directory, "message", str(message["message_id"]), "--body", "json")
    assert (details["exchange"], details["routing_key"]) == ("logs", "eu.de")
    assert details["body"] == {"number": 0}
    assert details["properties"]["headers"] == {"tenant": "acme", "attempt": 3}
    assert details["properties"]["correlation_id"] == "c-1"
    assert "audit" in {queue["queue"] for queue in details["queues"]}
    transaction = inspect(directory, "transaction", str(details["lsn"]))
    assert {operation["queue"] for operation in transaction["operations"]} >= {"orders", "audit"}

    # Recovery finds the same.
    broker.start()
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        for name, queue in queues.items():
            declared = channel.queue_declare(name, passive=True)
            assert declared.method.message_count == queue["ready"]
    report = inspect(directory, "--live")["last_recovery"]
    assert report["messages"] == sum(queue["ready"] for queue in queues.values())


def test_a_broker_that_runs(broker: BrokerProcess) -> None:
    with publish(broker, 10) as connection:
        refused = run(broker.data_directory)
        assert refused.returncode == 3
        assert "--live" in refused.stderr
        assert str(broker.pid) in refused.stderr
        found = inspect(broker.data_directory, "--live")
        assert found["is_live"]
        assert {queue["name"]: queue["ready"] for queue in found["queues"]}["audit"] == 11
        # `inspect` was not in the broker's way.
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "audit", b"more", PERSISTENT)
    found = inspect(broker.data_directory, "--live")
    assert {queue["name"]: queue["ready"] for queue in found["queues"]}["audit"] == 12


def test_the_log_is_followed(broker: BrokerProcess, follower: subprocess.Popen[bytes]) -> None:
    with publish(broker, 8) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("later", durable=True)
        channel.basic_publish("", "later", b"x", PERSISTENT)
        seen: list[dict[str, Any]] = []
        while "later" not in {one["queue"] for event in seen for one in event["operations"]}:
            event = next_line(follower)
            assert event["event"] == "transaction"
            seen.append(event)
    lsns = [event["lsn"] for event in seen]
    assert lsns == list(range(lsns[0], lsns[0] + len(lsns)))
    # The broker is killed and restarted; each start writes a new segment.
    broker.kill()
    broker.start()
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "later", b"y", PERSISTENT)
    while (event := next_line(follower))["segment"] == seen[-1]["segment"]:
        pass
    assert event["operations"][0]["queue"] == "later"
    follower.send_signal(signal.SIGINT)
    assert follower.wait(TIMEOUT_S) == 0
    assert follower.stderr is not None
    assert follower.stderr.read() == b""


def test_whoever_reads_the_output_may_stop(broker: BrokerProcess) -> None:
    with publish(broker, 300):
        pass
    broker.terminate()
    command = [sys.executable, "-m", "amqpstore_tools", "inspect", broker.data_directory]
    with subprocess.Popen(
        [*command, "queue", "audit", "--limit", "0"],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(TIMEOUT_S) == 0
