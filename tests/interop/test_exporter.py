"""Requests of an exporter of RabbitMQ's metrics for Prometheus (kbudde/rabbitmq_exporter), made
without it: each number that it reads of a queue, an exchange, a channel and the broker is true, as
the client knows that caused it.
"""

from collections.abc import Generator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.broker_process import BrokerProcess
from tests.management_client import ManagementClient, managed, management_url
from tests.waiting import wait_until

ASKS = {"params": {"sort": ""}, "headers": {"accept": "application/bert, application/json;q=0.1"}}
NODE, CLUSTER = "rabbit@here", "shop"
BODIES = [b"x" * number for number in range(1, 13)]


def numbers(row: Any, prefix: str = "") -> dict[str, float]:
    """Return the numbers of a row by their paths; a list counts by its length, as `_len`."""
    found: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, bool | int | float):
            found[f"{prefix}{name}"] = value
        elif isinstance(value, list):
            found[f"{prefix}{name}_len"] = len(value)
        elif isinstance(value, dict):
            found |= numbers(value, f"{prefix}{name}.")
    return found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("exported")
    process = managed(BrokerProcess(str(directory / "data"), str(directory / "log")))
    process.environment["AMQPSTORE_NODE_NAME"] = NODE
    with process:
        process.start()
        with ManagementClient(management_url(process)) as api:
            api.put("/cluster-name", {"name": CLUSTER}, 204)
            for kind, limit in (("policies", 50), ("operator-policies", 70)):
                definition = {"max-length": limit, "max-length-bytes": 5000}
                api.put(
                    f"/{kind}/%2F/limits",
                    {"pattern": "^measured", "apply-to": "queues", "definition": definition},
                )
        with pika.BlockingConnection(pika.URLParameters(process.url)) as connection:
            use(connection.channel())
            yield process


@pytest.fixture
def api(broker: BrokerProcess) -> Generator[ManagementClient]:
    with ManagementClient(management_url(broker)) as client:
        yield client


def use(channel: BlockingChannel) -> None:
    """Publish 12 messages, half of them persistent, to each of two queues; take some of them out of
    the first in each way that there is: 1 acked, 5 unacked, 1 got back, so that 4 are ready.
    """
    channel.exchange_declare("ex", "fanout")
    for name, arguments in (("measured", {"x-max-length": 90}), ("other", {})):
        channel.queue_declare(name, durable=True, arguments=arguments)
        channel.queue_bind(name, "ex")
    channel.confirm_delivery()
    for number, body in enumerate(BODIES):
        properties = pika.BasicProperties(
            delivery_mode=2 if number % 2 else 1, timestamp=1000 + number
        )
        channel.basic_publish("ex", "", body, properties)
    channel.basic_publish("amq.direct", "nowhere", b"dropped")
    first, _, _ = channel.basic_get("measured")  # 1, comes back at once
    channel.basic_reject(first.delivery_tag)  # type: ignore[arg-type,union-attr]
    channel.basic_get("measured", auto_ack=True)  # 1 again, redelivered
    channel.basic_get("measured", auto_ack=True)  # 2
    channel.basic_qos(prefetch_count=5)
    taken: list[Any] = []
    channel.basic_consume("measured", lambda _c, method, _p, _b: taken.append(method.delivery_tag))
    while len(taken) < 5:  # 3 to 7
        channel.connection.process_data_events(time_limit=0.05)
    channel.basic_ack(taken[0])
    while len(taken) < 6:  # 8
        channel.connection.process_data_events(time_limit=0.05)


def test_a_queue(api: ManagementClient) -> None:
    def found() -> dict[str, float]:
        (row,) = [
            row for row in api.expect(200, "GET", "/queues", **ASKS) if row["name"] == "measured"
        ]
        assert (row["vhost"], row["durable"], row["policy"]) == ("/", True, "limits")
        assert (row["node"], row["state"]) == (NODE, "running")
        return numbers(row)

    # Bodies 4 to 8 are with the consumer, 9 to 12 wait, the last ones of each two are persistent.
    unacked, ready = BODIES[3:8], BODIES[8:]
    kept = [body for number, body in enumerate(BODIES[3:], 3) if number % 2]
    expected = {
        "messages_ready": len(ready),
        "messages_unacknowledged": len(unacked),
        "messages": len(ready) + len(unacked),
        "messages_persistent": len(kept),
        "message_bytes": sum(map(len, ready + unacked)),
        "message_bytes_ready": sum(map(len, ready)),
        "message_bytes_unacknowledged": sum(map(len, unacked)),
        "message_bytes_persistent": sum(map(len, kept)),
        "consumers": 1,
        "head_message_timestamp": 1008,
        "message_stats.publish": 12,
        "message_stats.deliver": 6,
        "message_stats.get": 1,
        "message_stats.get_no_ack": 2,
        "message_stats.redeliver": 1,
        "message_stats.ack": 1,
        "arguments.x-max-length": 90,
        "effective_policy_definition.max-length": 50,
        "effective_policy_definition.max-length-bytes": 5000,
    }
    wait_until(lambda: expected.items() <= found().items(), "the ack has come")
    row = found()
    assert row.get("message_stats.deliver_no_ack", 0) == 0
    assert row["memory"] > 0
    assert row["messages_ram"] == row["messages_ready_ram"] + row["messages_unacknowledged_ram"]
    assert row["messages_ram"] <= row["messages"]
    assert row["message_bytes_ram"] <= row["message_bytes"]
    for name in ("publish", "deliver", "deliver_no_ack"):
        assert row.get(f"message_stats.{name}_details.rate", 0) >= 0


def test_exchanges(api: ManagementClient) -> None:
    rows = api.expect(200, "GET", "/exchanges", **ASKS)
    found = {row["name"]: numbers(row) for row in rows if row["vhost"] == "/"}
    assert found["ex"]["message_stats.publish_in"] == 12
    assert found["ex"]["message_stats.publish_out"] == 24
    assert found["amq.direct"]["message_stats.publish_in"] == 1
    assert found["amq.direct"].get("message_stats.publish_out", 0) == 0
    assert found["amq.topic"].get("message_stats.publish_in", 0) == 0


def test_the_broker(api: ManagementClient) -> None:
    def found() -> dict[str, float]:
        row = api.expect(200, "GET", "/overview", **ASKS)
        assert (row["node"], row["cluster_name"]) == (NODE, CLUSTER)
        assert row["rabbitmq_version"]
        assert row["erlang_version"]
        return numbers(row)

    expected = {
        "object_totals.channels": 1,
        "object_totals.connections": 1,
        "object_totals.consumers": 1,
        "object_totals.queues": 2,
        "queue_totals.messages": 21,
        "queue_totals.messages_ready": 16,
        "queue_totals.messages_unacknowledged": 5,
    }
    wait_until(lambda: expected.items() <= found().items(), "the totals")
    # With those that the broker has in each virtual host, and the default one.
    assert found()["object_totals.exchanges"] == len(api.get("/exchanges"))
    for name in ("publish", "deliver", "deliver_no_ack"):
        assert found()[f"message_stats.{name}_details.rate"] >= 0


def test_what_is_open_and_what_there_is_not(api: ManagementClient) -> None:
    (channel,) = api.expect(200, "GET", "/channels", **ASKS)
    for name, value in {
        "vhost": "/",
        "node": NODE,
        "user": "guest",
        "state": "running",
        "confirm": True,
        "transactional": False,
    }.items():
        assert channel[name] == value
    (connection,) = api.expect(200, "GET", "/connections", **ASKS)
    assert connection["channels"] == 1
    assert channel["connection_details"]["name"] == connection["name"]
    assert numbers(connection)["recv_oct"] > sum(map(len, BODIES))
    (node,) = api.expect(200, "GET", "/nodes", **ASKS)
    assert (node["name"], node["running"], node["partitions"]) == (NODE, True, [])
    for name in ("uptime", "disk_free", "mem_used", "mem_limit", "fd_used", "fd_total"):
        assert node[name] > 0
    assert (node["mem_alarm"], node["disk_free_alarm"]) == (False, False)
    assert api.expect(200, "GET", "/aliveness-test/%2F")["status"] == "ok"
    for path in ("/shovels", "/federation-links"):
        assert api.expect(200, "GET", path, **ASKS) == []
