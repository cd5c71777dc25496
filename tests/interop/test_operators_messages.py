"""Operators look at messages and handle them while a broker runs, and while it is killed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pika
import pytest

from amqpstore import Queue, Store
from amqpstore_tools.__main__ import main
from tests.broker_process import BrokerProcess
from tests.interop.pika_client import connect, drain, get, ready, wait_until
from tests.management_client import ManagementClient, managed, management_url

PERSISTENT = pika.BasicProperties(delivery_mode=2)


class Operator:
    """An operator who types commands."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.data = str(directory / "data")
        self.broker = BrokerProcess(self.data, str(directory / "log"))
        self._capsys = capsys

    def types(self, *arguments: str) -> Any:
        code = main(["messages", *arguments, "--json", "--data", self.data])
        out, err = self._capsys.readouterr()
        assert code == 0, err
        return json.loads(out)

    def reads(self, *arguments: str) -> str:
        main(["messages", *arguments, "--data", self.data])
        return self._capsys.readouterr().out


@pytest.fixture
def operator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(tmp_path, capsys)


def publish(url: str, queue: str, count: int) -> None:
    with connect(url) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        channel.tx_select()
        for number in range(count):
            channel.basic_publish("", queue, str(number).encode(), PERSISTENT)
        channel.tx_commit()


def test_messages_of_a_running_broker_and_a_stopped_one(operator: Operator) -> None:
    with operator.broker as broker:
        broker.start()
        url = broker.url
        publish(url, "orders", 10)
        publish(url, "parked", 0)
        with connect(url) as connection:
            connection.channel().basic_get("orders")
            page = operator.types("browse", "orders", "--limit", "3")
            assert [(row["payload"], row["state"]) for row in page["messages"]] == [
                ("0", "unacked"),
                ("1", "ready"),
                ("2", "ready"),
            ]
            assert operator.types("move", "orders", "parked", "--all", "--limit", "2")["moved"] == 2
        wanted = json.dumps({"body": {"pattern": "^[5-7]$"}})
        assert operator.types("delete", "orders", "--filter", wanted)["deleted"] == 3
        assert "4711" not in operator.reads("browse", "orders")
        broker.terminate()
    assert operator.types("copy", "parked", "orders", "--position", "2")["copied"] == 1
    table = operator.reads("browse", "orders", "--limit", "2")
    assert "to go on: --start 5" in table
    with operator.broker as broker:
        broker.start()
        url = broker.url
        with connect(url) as connection:
            channel = connection.channel()
            assert [one.body for one in drain(channel, "orders")] == [
                b"0",
                b"3",
                b"4",
                b"8",
                b"9",
                b"2",
            ]
            assert [one.body for one in drain(channel, "parked")] == [b"1", b"2"]


def test_messages_over_http(operator: Operator) -> None:
    with managed(operator.broker) as broker:
        broker.start()
        publish(broker.url, "orders", 10)
        publish(broker.url, "parked", 0)
        with ManagementClient(management_url(broker)) as api:
            orders = "/queues/%2F/orders/messages"
            wanted = json.dumps({"body": {"pattern": "[3-6]"}})
            page = api.get(orders, limit=2, filter=wanted)
            assert [row["payload"] for row in page["messages"]] == ["3", "4"]
            page = api.get(orders, limit=2, start=page["next"], max_payload_bytes=0)
            assert page["messages"][0]["truncated"]
            moved = api.post(f"{orders}/move", {"target": "parked", "positions": [1, "2"]})
            assert moved == {"moved": 2, "left": {}, "stopped": ""}
            assert api.post(f"{orders}/copy", {"target": "parked", "positions": [3]})["copied"] == 1
            assert api.post(f"{orders}/delete", {"filter": {}, "limit": 7})["deleted"] == 7
            assert api.post(f"{orders}/replay", {"filter": {}})["left"]
            parked = api.get("/queues/%2F/parked/messages")["messages"]
            assert [row["payload"] for row in parked] == ["0", "1", "2"]
            for path, body, status in (
                (f"{orders}/move", {"target": "parked"}, 400),
                (f"{orders}/move", {"target": "gone", "filter": {}}, 404),
                (f"{orders}/delete", {"filter": {"colour": 1}}, 400),
                (f"{orders}/delete", {"positions": ["x"]}, 400),
                ("/queues/%2F/gone/messages/delete", {"filter": {}}, 404),
            ):
                api.expect(status, "POST", path, body)
            api.expect(400, "GET", orders, params={"filter": "[]"})
            api.expect(400, "GET", orders, params={"limit": "many"})
            password = Path(operator.data).parent / "password"
            password.write_text("a password")
            of_bert = ("bert", "--data", operator.data)
            add = ["users", "add", *of_bert, "--tag", "management"]
            assert main([*add, "--password-file", str(password)]) == 0
            rights = ["--configure", ".*", "--write", ".*", "--read", "^parked$"]
            assert main(["permissions", "set", *of_bert, *rights]) == 0
            with api.as_user("bert", "a password") as bert:
                bert.expect(401, "GET", orders)
                bert.expect(401, "POST", f"{orders}/delete", {"filter": {}})
                assert len(bert.get("/queues/%2F/parked/messages")["messages"]) == 3


def test_a_kill_in_a_large_move_leaves_each_message_in_one_place(operator: Operator) -> None:
    count = 20_000
    with operator.broker as broker:
        broker.start()
        publish(broker.url, "orders", count)
        publish(broker.url, "parked", 0)
        command = [sys.executable, "-m", "amqpstore_tools", "messages", "move", "orders", "parked"]
        connection = connect(broker.url)
        channel = connection.channel()
        moving = subprocess.Popen(
            [*command, "--all", "--data", operator.data],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(channel, lambda: ready(channel, "parked") > 0)
        broker.kill()
        moving.wait()
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            connection.process_data_events(30)
    left, moved = (in_store(operator.data, name) for name in ("orders", "parked"))
    assert [*moved, *left] == list(range(count))
    assert moved


def test_a_purge_is_undone_after_a_kill(operator: Operator) -> None:
    with managed(operator.broker) as broker:
        broker.start()
        publish(broker.url, "orders", 2000)
        with connect(broker.url) as connection:
            channel = connection.channel()
            assert get(channel, "orders") is not None
            assert channel.queue_purge("orders").method.message_count == 1999
            assert get(channel, "orders") is None
            channel.basic_ack(1)
            # What is answered after it on a transacted channel is on disk with it.
            channel.tx_select()
            channel.tx_commit()
        publish(broker.url, "orders", 1)
        broker.kill()
        broker.start()
        assert operator.types("undo-purge", "orders") == {"restored": 1999, "purges": []}
        with connect(broker.url) as connection:
            assert ready(connection.channel(), "orders") == 2000
            connection.channel().queue_purge("orders")
        with ManagementClient(management_url(broker)) as api:
            undo = "/queues/%2F/orders/purge/undo"
            (purge,) = api.get("/queues/%2F/orders/purge")["purges"]
            assert purge["messages"] == 2000
            assert api.post(undo)["restored"] == 2000
            api.expect(400, "POST", undo, {})
        broker.terminate()
    assert in_store(operator.data, "orders") == [*range(1, 2000), 0]


def in_store(directory: str, name: str) -> list[int]:
    """The numbers in a queue."""
    with Store.open(directory) as store:
        queues = [one for one in store.queues.values() if _name_of(one) == name]
        parts = store.stored.browse(queues[0])
        return [int(message.body) for part in parts for message in part]


def _name_of(queue: Queue) -> str:
    definition = queue.definition
    assert isinstance(definition, dict)
    return str(definition["name"])
