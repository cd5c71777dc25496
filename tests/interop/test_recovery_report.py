"""Reports of a broker about a start that followed a crash."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import AMQPError

from amqpstore import Envelope, Message, Options, Store
from amqpstore.system.filenames import segment_path
from amqpstore_server.reports.reports import list_reports, read_report
from amqpstore_tools.pika import XaResource, Xid
from tests.broker_process import BrokerProcess

ENVELOPE = Envelope("", "orders", b"\x10\x00\x02")
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def reports(broker: BrokerProcess) -> list[dict[str, Any]]:
    files = sorted((Path(broker.data_directory) / "reports").glob("recovery-*.json"))
    return [json.loads(file.read_text()) for file in files]


def publish_and_kill(broker: BrokerProcess, queue: str, count: int, taken: int = 0) -> None:
    """Publish with confirms, and take some without an ack, which the last publish makes durable."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare(queue, durable=True)
    for _ in range(count - 1):
        channel.basic_publish("", queue, b"x", PERSISTENT)
    for _ in range(taken):
        channel.basic_get(queue)
    channel.basic_publish("", queue, b"x", PERSISTENT)
    broker.kill()
    with contextlib.suppress(AMQPError):
        connection.close()


def test_a_clean_start_leaves_no_report(tmp_path: Path) -> None:
    with BrokerProcess(str(tmp_path / "data"), str(tmp_path / "log")) as broker:
        broker.start()
        broker.restart()
        assert reports(broker) == []


def test_a_start_after_a_kill_leaves_a_report_by_queue(tmp_path: Path) -> None:
    with BrokerProcess(str(tmp_path / "data"), str(tmp_path / "log")) as broker:
        broker.start()
        publish_and_kill(broker, "orders", 5, taken=2)
        broker.start()
        publish_and_kill(broker, "audit", 3)
        broker.start()
        first, second = reports(broker)
        [orders] = first["queues"]
        assert (orders["vhost"], orders["queue"]) == ("/", "orders")
        assert (orders["kept"], orders["redelivered"]) == (5, 2)
        assert (orders["lost"], orders["quarantined"], orders["unreadable"]) == (0, 0, 0)
        assert first["damage"] == []
        rows = list_reports(broker.data_directory)
        assert [(row["kind"], row["is_sound"]) for row in rows] == [("recovery", True)] * 2
        shown = read_report(broker.data_directory, rows[1]["name"])
        assert shown is not None
        assert shown["content"]["queues"][0]["redelivered"] == 2
        assert first["messages"] == 5
        assert {queue["queue"]: queue["kept"] for queue in second["queues"]} == {
            "orders": 5,
            "audit": 3,
        }
        assert "event=recovered" in broker.stderr


def test_what_is_in_doubt_is_in_the_report(tmp_path: Path) -> None:
    with BrokerProcess(str(tmp_path / "data"), str(tmp_path / "log")) as broker:
        broker.start()
        publish_and_kill(broker, "orders", 3)
        broker.start()
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        resource, xid = XaResource(channel), Xid(1, b"global", b"")
        resource.start(xid)
        method, _, _ = channel.basic_get("orders")
        assert method is not None
        channel.basic_ack(method.delivery_tag or 0)
        channel.basic_publish("", "orders", b"invisible", PERSISTENT)
        resource.end(xid)
        resource.prepare(xid)
        broker.kill()
        with contextlib.suppress(AMQPError):
            connection.close()
        broker.start()
        report = reports(broker)[-1]
        [in_doubt] = report["in_doubt"]
        assert in_doubt == {
            "vhost": "/",
            "user": "guest",
            "xid": f"1:{b'global'.hex()}:",
            "locked": {"orders": 1},
        }
        [orders] = report["queues"]
        assert (orders["kept"], orders["redelivered"], report["messages"]) == (3, 1, 3)


def test_damage_is_in_the_report(tmp_path: Path) -> None:
    with BrokerProcess(str(tmp_path / "data"), str(tmp_path / "log")) as broker:
        broker.start()
        publish_and_kill(broker, "orders", 1)
        # Not through the broker: however slow the machine is, no checkpoint comes behind these. A
        # start does not read what is before one.
        store = Store.open(broker.data_directory, options=Options(checkpoint_ms=1 << 40))
        (orders,) = (one for one in store.queues.values() if "orders" in str(one.definition))
        for _ in range(3):
            store.publish([orders], [Message(ENVELOPE, b"a body of its own")])
            store.sync()
        segment = segment_path(broker.data_directory, store.log.position.segment)
        store.abandon()
        content = bytearray(Path(segment).read_bytes())
        content[content.index(b"a body of its own")] ^= 1
        Path(segment).write_bytes(content)
        broker.start()
        [report] = reports(broker)
        [damage] = report["damage"]
        assert damage["path"] == segment
        assert damage["reason"]


@pytest.mark.parametrize("is_there", [False, True])
def test_other_users_of_the_machine_cannot_read_a_data_directory(
    tmp_path: Path, is_there: bool
) -> None:
    """Messages, hashes of passwords, names: neither in one that the broker creates, nor in one that
    everybody may list.
    """
    data = tmp_path / "data"
    if is_there:
        data.mkdir(0o755)
    with BrokerProcess(str(data), str(tmp_path / "log")) as broker:
        broker.start()
        publish_and_kill(broker, "orders", 2)
        broker.start()
        found = list(data.iterdir())
        assert {"reports", "admin.sock"} <= {one.name for one in found}
        for one in found if is_there else [data]:
            assert one.stat().st_mode & 0o007 == 0, one
