"""Transient messages that end with the process are counted by the next one, by queue and reason."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import AMQPError

from amqpstore_server.statistics.volatile import FILE
from tests.broker_process import BrokerProcess
from tests.management_client import (
    ManagementClient,
    keep_management_port,
    managed,
    management_url,
)
from tests.waiting import wait_until

TRANSIENT = pika.BasicProperties(delivery_mode=1)


def noted(broker: BrokerProcess) -> dict[str, int]:
    try:
        content: Any = json.loads(Path(broker.data_directory, FILE).read_bytes())
    except FileNotFoundError:
        return {}
    return {queue: count for _, queue, count in content["queues"]}


@pytest.mark.parametrize("is_killed", [True, False])
def test_what_was_lost_is_counted_at_the_next_start(tmp_path: Path, is_killed: bool) -> None:
    broker = managed(BrokerProcess(str(tmp_path / "data"), str(tmp_path / "log")))
    with broker:
        broker.start()
        keep_management_port(broker)
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        channel.queue_declare("short")
        for queue, properties in (("q", TRANSIENT), ("q", TRANSIENT), ("short", None)):
            channel.basic_publish("", queue, b"x", properties)
        channel.basic_publish("", "q", b"kept", pika.BasicProperties(delivery_mode=2))
        wait_until(lambda: noted(broker) == {"q": 2, "short": 1}, "the counts of what may be lost")
        if is_killed:
            broker.kill()
            with contextlib.suppress(AMQPError):
                connection.close()
        else:
            channel.basic_publish("", "q", b"last", TRANSIENT)
            connection.close()
            broker.terminate()
        broker.start()
        lost = {"q": 2 if is_killed else 3, "short": 1}
        with ManagementClient(management_url(broker)) as api:
            assert api.get("/queues/%2F/q")["messages_left"] == {"lost_at_restart": lost["q"]}
            left = api.get("/overview")["messages_left"]
            assert left == {"lost_at_restart": sum(lost.values())}
        (line,) = [one for one in broker.stderr.splitlines() if "lost_at_restart" in one][-1:]
        assert f"lost_at_restart={sum(lost.values())}" in line
        assert f"/ q lost_at_restart={lost['q']}, / short lost_at_restart=1" in line
        assert ("as_of" in line) is is_killed
        assert not os.path.exists(os.path.join(broker.data_directory, FILE))
