"""Messages out of real brokers and into others, with every type as it was; and imports killed."""

from __future__ import annotations

import io
import json
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from amqpstore import Store
from amqpstore_tools.transfer.lines import (
    EndLine,
    ExportLine,
    Line,
    LineWriter,
    MessageLine,
    QueueKey,
    QueueLine,
    read_lines,
)
from tests.broker_process import BrokerProcess
from tests.interop.test_copy import amqpstore, kill_when_begun, run
from tests.unit.transfer.test_fields import EXAMPLES, table_of
from tests.waiting import wait_until

_WAIT_S = 60.0
_PERSISTENT = b"\x10\x00\x02"


@pytest.fixture
def other(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A second broker."""
    directory = str(tmp_path / "other")
    with BrokerProcess(directory, f"{directory}.log") as process:
        process.start()
        yield process
        if process.running:
            assert process.terminate() == 0
        assert "Traceback" not in process.stderr, process.log_tail()


def definition(name: str) -> dict[str, object]:
    return {"vhost": "/", "name": name, "auto_delete": False, "arguments": {}}


def write(path: str, messages: list[MessageLine], format_name: str = "jsonl") -> None:
    """An export of one queue."""
    with open(path, "wb") as file:
        writer = LineWriter(file, format_name)
        writer.write(ExportLine("", ""))
        writer.write(QueueLine(messages[0].key, definition(messages[0].key.name or "")))
        for message in messages:
            writer.write(message)
        writer.write(EndLine(len(messages)))


def message(body: bytes, properties: bytes = _PERSISTENT, name: str = "orders") -> MessageLine:
    return MessageLine(QueueKey("/", name), "", name, properties, body)


def lines(path: str) -> list[Line]:
    return [line for line, _ in read_lines(io.BytesIO(Path(path).read_bytes()))]


def contents(path: str) -> list[tuple[bytes, bytes]]:
    """Properties and bodies."""
    return [(one.properties, one.body) for one in lines(path) if isinstance(one, MessageLine)]


def declare(broker: BrokerProcess, name: str = "orders") -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        connection.channel().queue_declare(name, durable=True)


def test_every_type_goes_through_two_brokers_and_a_store(
    broker: BrokerProcess, other: BrokerProcess, tmp_path: Path
) -> None:
    # No broker accepts names that are not UTF-8.
    fields = [field for field, _ in EXAMPLES if b"\xffV" not in field]
    headers = b"\x30\0" + table_of(*fields) + b"\2"
    strange = b"\xff\xfc\1a\1b\0\0\0\0\2\4\1c\1d\0010\1f" + bytes(7) + b"\7\1g\5guest\1i\1j"
    strange = strange.replace(b"\0010", b"\x0599999")
    sent = [message(b"text", headers), message(b"\xff\0" * 200_000, strange), message(b"")]
    first, second, third, last = (str(tmp_path / f"{name}.export") for name in "abcd")
    write(first, sent)
    declare(broker)
    assert "3 messages published" in run("publish", first, "--url", broker.url)
    assert "3 messages of 1 queue" in run("export", broker.data_directory, second, "--live")
    declare(other)
    run("publish", second, "--url", other.url)
    assert broker.terminate() == 0
    run("export", broker.data_directory, third, "--format", "msgpack")
    assert other.terminate() == 0
    assert "imported into 1 queue" in run("import", other.data_directory, third)
    run("export", other.data_directory, last)
    expected = [(one.properties, one.body) for one in sent]
    assert contents(first) == contents(second) == contents(third) == expected
    assert contents(last) == 2 * expected
    other.start()
    with pika.BlockingConnection(pika.URLParameters(other.url)) as connection:
        declared = connection.channel().queue_declare("orders", passive=True)
        assert declared.method.message_count == 6


def test_messages_that_were_delivered_say_so_after_an_import(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    path = str(tmp_path / "orders.jsonl")
    once = message(b"once")
    once.deliveries = 3
    write(path, [message(b"never"), once])
    assert broker.terminate() == 0
    printed = run("import", broker.data_directory, path, code=5)
    assert "the store has no queue 'orders' in virtual host '/'" in printed
    assert "created queue 'orders'" in run("import", broker.data_directory, path, "--create")
    broker.start()
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        found = [channel.basic_get("orders")[0] for _ in range(2)]
        assert [method and method.redelivered for method in found] == [False, True]


def test_a_route_is_taken_again_where_that_is_asked_for(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    path = str(tmp_path / "orders.jsonl")
    one = message(b"one")
    one.exchange, one.routing_key = "amq.topic", "eu.orders"
    write(path, [one])
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("eu", durable=True)
        channel.queue_bind("eu", "amq.topic", "eu.#")
        printed = run("publish", path, "--url", broker.url, code=5)
        assert "returned a message as unroutable: 312 NO_ROUTE" in printed
        run("publish", path, "--url", broker.url, "--routed")
        assert channel.basic_get("eu", auto_ack=True)[2] == b"one"


def test_publishing_goes_on_where_a_broker_was_killed(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    path = str(tmp_path / "orders.jsonl")
    count = 15_000
    write(path, [message(b"%d" % number + bytes(1000)) for number in range(count)])
    declare(broker)
    with amqpstore("publish", path, "--url", broker.url) as process:
        # The broker is killed when it has taken some messages, and surely not all.
        segment = f"{broker.data_directory}/segments/0000000001.segment"
        wait_until(lambda: os.path.exists(segment), pause_s=0.005)
        broker.kill()
        printed, _ = process.communicate(timeout=_WAIT_S)
    assert process.returncode == 5, printed
    skip = int(printed.partition("--skip ")[2].partition(".")[0])
    assert 0 <= skip < count
    broker.start()
    run("publish", path, "--url", broker.url, "--skip", str(skip))
    assert broker.terminate() == 0
    last = str(tmp_path / "last.jsonl")
    run("export", broker.data_directory, last)
    published = [int(body.rstrip(b"\0")) for _, body in contents(last)]
    assert set(published) == set(range(count))
    assert len(published) - count <= 2000
    broker.start()


def test_what_is_wrong_is_said(broker: BrokerProcess, tmp_path: Path) -> None:
    path = str(tmp_path / "orders.jsonl")
    write(path, [message(b"one")])
    data = broker.data_directory
    assert "in use by another process" in run("import", data, path, code=3)
    printed = run("export", data, code=3)
    assert "in use by another process" in printed
    assert "--live" in printed
    printed = run("export", data, "--live", "--queue", "none", code=5)
    assert "there is no queue 'none'" in printed
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        url = f"amqp://127.0.0.1:{port}"
        assert "cannot connect" in run("publish", path, "--url", url, code=5)
    assert "--url must look like" in run("publish", path, "--url", "http://x", code=2)
    Path(path).write_bytes(Path(path).read_bytes()[:-10])
    printed = run("publish", path, "--url", broker.url, "--json", code=5)
    assert "orders.jsonl" in json.loads(printed.splitlines()[0])["error"]


def test_an_import_that_is_killed_is_all_there_or_not_at_all(
    stopped_broker: BrokerProcess, tmp_path: Path
) -> None:
    stopped_broker.start()
    declare(stopped_broker)
    assert stopped_broker.terminate() == 0
    data = stopped_broker.data_directory
    Path(data, "notes.txt").write_text("mine")
    path = str(tmp_path / "orders.jsonl")
    count = 5000
    write(path, [message(bytes(500)) for _ in range(count)])
    rng = random.Random(5)
    there = 0
    outcomes = set()
    for attempt in range(6):
        after_s = rng.uniform(0, 0.7) if attempt else _WAIT_S
        kill_when_begun(["import", data, path], f"{data}.importing", after_s)
        with Store.open(data) as store:
            assert store.recovery_report.damage == []
            (queue,) = store.queues.values()
            assert queue.ready_count in (there, there + count)
            outcomes.add(queue.ready_count - there)
            there = queue.ready_count
        assert Path(data, "notes.txt").read_text() == "mine"
    assert count in outcomes
