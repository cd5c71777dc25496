"""The offline tools, one after the other, on what clients of a real broker left in it.

The store has all that a broker keeps: exchanges with bindings of three kinds, queues with
priorities, a history, prepared transactions that were killed in doubt, and a recovery report.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import AMQPError

from amqpstore_tools.__main__ import main
from amqpstore_tools.pika import XaResource, Xid
from tests.broker_process import BrokerProcess
from tests.interop.pika_client import PERSISTENT

HISTORY = "amq.consumed.work"
FORMAT = 77


Run = Callable[..., tuple[int, Any]]
Tool = Callable[..., Any]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """A verb in this process: its exit code, and what it prints as JSON."""

    def run(*arguments: str) -> tuple[int, Any]:
        code = main([*arguments, "--json"])
        printed = capsys.readouterr()
        found = json.loads(printed.out)
        error = found.get("error")
        assert printed.err == (f"amqpstore {arguments[0]}: {error}\n" if error else "")
        assert found.get("exit_code", code) == code
        return code, found

    return run


@pytest.fixture
def tool(run: Run) -> Tool:
    """A verb that ends well: what it prints."""

    def tool(*arguments: str) -> Any:
        code, found = run(*arguments)
        assert code == 0, found
        return found

    return tool


def prepare(channel: Any, number: int) -> None:
    """A branch that publishes two messages to `work` and acks one of `orders`."""
    xa = XaResource(channel)
    xid = Xid(FORMAT, b"global", b"%d" % number)
    method, _, _ = channel.basic_get("orders")
    xa.start(xid)
    channel.basic_ack(method.delivery_tag)
    for n in range(2):
        channel.basic_publish("", "work", b"in doubt %d" % n, PERSISTENT)
    xa.end(xid)
    xa.prepare(xid)


@pytest.fixture
def store(data_directory: str) -> Iterator[str]:
    """The store of a broker that was killed twice, the second time right after its start."""
    with BrokerProcess(data_directory, f"{data_directory}.log") as broker:
        broker.start()
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        channel.confirm_delivery()
        fill(channel)
        prepare(connection.channel(), 1)
        broker.kill()
        with suppress(AMQPError):
            connection.close()
        broker.start()
        broker.kill()
        yield data_directory


def fill(channel: Any) -> None:
    channel.exchange_declare("logs", "topic", durable=True)
    channel.exchange_declare("by-header", "headers", durable=True)
    channel.queue_declare("orders", durable=True, arguments={"x-max-priority": 3})
    channel.queue_declare("work", durable=True, arguments={"x-history-length": 100})
    channel.queue_bind("orders", "logs", "eu.#")
    channel.queue_bind("work", "logs", "#")
    channel.queue_bind("work", "by-header", "", {"x-match": "any", "kind": "job"})
    channel.exchange_bind("by-header", "logs", "eu.jobs")
    for number in range(30):
        properties = pika.BasicProperties(
            delivery_mode=2, priority=number % 4, headers={"number": number}
        )
        channel.basic_publish("logs", "eu.de", b"%d" % number, properties)
    for _ in range(5):
        method, _, _ = channel.basic_get("work")
        channel.basic_ack(method.delivery_tag)


def queues_of(found: dict[str, Any]) -> dict[str, int]:
    return {queue["name"]: queue["ready"] for queue in found["queues"]}


WHOLE = {"orders": 29, "work": 25, HISTORY: 5}


def test_a_store_that_was_killed_in_doubt(store: str, tool: Tool, tmp_path: Path) -> None:
    summary = tool("inspect", store)
    assert queues_of(summary) == WHOLE
    assert sum(queue["locked"] for queue in summary["queues"]) == 1
    [prepared] = summary["prepared"]
    assert prepared["is_undecided"]
    assert sum(group["message_count"] for group in prepared["publishes"]) == 2
    assert summary["last_recovery"]["path"].startswith(os.path.join(store, "reports"))
    checked = tool("check", store)
    assert (checked["sound"], checked["prepared"], checked["messages"]) == (True, 1, 60)
    # The two prepared messages, and one that says that they are prepared, are in a queue of their
    # own.
    assert tool("inspect", store)["usage"]["messages"] == 63

    of_vhost = tool("inspect", store, "vhost", "/")
    bindings = [(one["exchange"], one["to"], one["name"]) for one in of_vhost["bindings"]]
    assert bindings == [
        ("by-header", "queue", "work"),
        ("logs", "exchange", "by-header"),
        ("logs", "queue", "orders"),
        ("logs", "queue", "work"),
    ]
    [first, *_] = tool("inspect", store, "queue", "orders")["messages"]
    message = tool("inspect", store, "message", str(first["message_id"]))
    assert {one["queue"] for one in message["queues"]} >= {"orders"}
    assert message["exchange"] == "logs"

    copy = str(tmp_path / "copy")
    assert not tool("copy", store, copy)["damage"]
    assert tool("check", copy)["sound"]
    restored = str(tmp_path / "restored")
    tool("restore", copy, restored)
    assert not tool("compact", restored)["damage"]
    after = tool("inspect", restored)
    assert queues_of(after) == WHOLE
    assert [one["label"] for one in after["prepared"]] == [prepared["label"]]
    assert tool("check", restored)["sound"]
    decide(restored)
    assert tool("check", restored)["sound"]


def decide(directory: str) -> None:
    """A broker on it knows the branch, and can commit it."""
    with BrokerProcess(directory, f"{directory}.log") as broker:
        broker.start()
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            xa = XaResource(channel)
            [xid] = xa.recover()
            xa.commit(xid)
            assert channel.queue_declare("work", passive=True).method.message_count == 27
            assert channel.queue_declare("orders", passive=True).method.message_count == 29
        assert broker.terminate() == 0


def test_an_export_takes_a_history_and_leaves_out_what_is_in_doubt(
    store: str, run: Run, tool: Tool, tmp_path: Path
) -> None:
    path = str(tmp_path / "all.jsonl")
    exported = tool("export", store, path)
    assert exported["in_doubt"] == 1
    by_name: dict[str, int] = {}
    for label, count in exported["messages"].items():
        name = label.split("'")[1]
        by_name[name] = by_name.get(name, 0) + count
    # What a branch is to ack is in its queue until it is decided.
    assert by_name == WHOLE | {"orders": 30}
    other = str(tmp_path / "other")
    with BrokerProcess(other, f"{other}.log") as broker:
        broker.start()
        assert broker.terminate() == 0
    code, refused = run("import", other, path)
    assert code == 5
    assert "--create" in refused["error"]
    tool("import", other, path, "--create")
    assert queues_of(tool("inspect", other)) == WHOLE | {"orders": 30}
    assert tool("check", other)["sound"]


def test_a_store_that_a_broker_has_open(broker: BrokerProcess, run: Run, tmp_path: Path) -> None:
    """Verbs refuse such a store unless they are given `--live`; `copy` does not need it."""
    directory = broker.data_directory
    copy, file, lines = (str(tmp_path / name) for name in ("copy", "file", "lines"))
    Path(lines).write_text("")
    assert run("copy", directory, copy)[0] == 0
    for verb, *arguments in (["inspect"], ["export", file], ["check"]):
        code, answer = run(verb, directory, *arguments)
        assert (code, answer["kind"]) == (3, "StoreLockedError")
        assert "--live" in answer["error"]
        assert run(verb, directory, *arguments, "--live")[0] == 0
    for words in (
        ["compact", directory],
        ["import", directory, lines],
        ["restore", copy, directory],
    ):
        code, answer = run(*words)
        assert (code, answer["kind"]) == (3, "StoreLockedError")
        assert "--live" not in answer["error"]
    # There is nothing to do, and so nothing to refuse.
    assert run("upgrade", directory) == (
        0,
        {"directory": directory, "found": 2, "version": 2},
    )


def test_what_is_no_store(tmp_path: Path, run: Run) -> None:
    directory, file = tmp_path / "directory", str(tmp_path / "file")
    directory.mkdir()
    for verb in ("inspect", "export", "compact", "upgrade", "check", "copy"):
        more = [file] if verb in ("export", "copy") else []
        code, said = run(verb, str(directory), *more)
        assert (code, said["kind"]) == (4, "NotAStoreError")
    assert not os.path.exists(file)
