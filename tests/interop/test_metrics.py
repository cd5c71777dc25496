"""Metrics of a real broker: Prometheus' own check, the dashboards that exist, and health."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.broker_process import REPOSITORY, BrokerProcess
from tests.interop.external_client import need
from tests.interop.pika_client import PERSISTENT, connect
from tests.management_client import ManagementClient, managed, management_url
from tests.waiting import wait_until

_URL = re.compile(r"event=metrics url=(http://\S+)/metrics")
_NAME = re.compile(r"\b(?:rabbitmq|amqpstore|erlang)_[a-z0-9_]+\b")

# What RabbitMQ's dashboard "RabbitMQ-Overview" asks for: the names in the queries of
# deps/rabbitmq_prometheus/docker/grafana/dashboards/RabbitMQ-Overview.json of rabbitmq-server, in
# the version for 3.8 and in that for 3.9 and later, which has the global counters.
OVERVIEW = (
    "rabbitmq_build_info",
    "rabbitmq_channel_consumers",
    "rabbitmq_channel_get_ack_total",
    "rabbitmq_channel_get_empty_total",
    "rabbitmq_channel_get_total",
    "rabbitmq_channel_messages_acked_total",
    "rabbitmq_channel_messages_confirmed_total",
    "rabbitmq_channel_messages_delivered_ack_total",
    "rabbitmq_channel_messages_delivered_total",
    "rabbitmq_channel_messages_published_total",
    "rabbitmq_channel_messages_redelivered_total",
    "rabbitmq_channel_messages_unconfirmed",
    "rabbitmq_channel_messages_unroutable_dropped_total",
    "rabbitmq_channel_messages_unroutable_returned_total",
    "rabbitmq_channels",
    "rabbitmq_channels_closed_total",
    "rabbitmq_channels_opened_total",
    "rabbitmq_connections",
    "rabbitmq_connections_closed_total",
    "rabbitmq_connections_opened_total",
    "rabbitmq_disk_space_available_bytes",
    "rabbitmq_global_consumers",
    "rabbitmq_global_messages_acknowledged_total",
    "rabbitmq_global_messages_confirmed_total",
    "rabbitmq_global_messages_delivered_consume_auto_ack_total",
    "rabbitmq_global_messages_delivered_consume_manual_ack_total",
    "rabbitmq_global_messages_delivered_get_auto_ack_total",
    "rabbitmq_global_messages_delivered_get_manual_ack_total",
    "rabbitmq_global_messages_delivered_total",
    "rabbitmq_global_messages_get_empty_total",
    "rabbitmq_global_messages_received_confirm_total",
    "rabbitmq_global_messages_received_total",
    "rabbitmq_global_messages_redelivered_total",
    "rabbitmq_global_messages_routed_total",
    "rabbitmq_global_messages_unroutable_dropped_total",
    "rabbitmq_global_messages_unroutable_returned_total",
    "rabbitmq_global_publishers",
    "rabbitmq_identity_info",
    "rabbitmq_process_max_fds",
    "rabbitmq_process_max_tcp_sockets",
    "rabbitmq_process_open_fds",
    "rabbitmq_process_open_tcp_sockets",
    "rabbitmq_process_resident_memory_bytes",
    "rabbitmq_queue_messages_published_total",
    "rabbitmq_queue_messages_ready",
    "rabbitmq_queue_messages_unacked",
    "rabbitmq_queues",
    "rabbitmq_queues_created_total",
    "rabbitmq_queues_declared_total",
    "rabbitmq_queues_deleted_total",
    "rabbitmq_resident_memory_limit_bytes",
)


@pytest.fixture(scope="module")
def metered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with messages, whose metrics are read without a login."""
    directory = tmp_path_factory.mktemp("broker")
    with BrokerProcess(str(directory / "store"), str(directory / "log")) as broker:
        managed(broker).environment["AMQPSTORE_METRICS_LISTEN"] = "127.0.0.1:0"
        broker.start()
        with connect(broker.url) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("orders", durable=True)
            for _ in range(3):
                channel.basic_publish("", "orders", b"one", PERSISTENT)
            channel.basic_get("orders")
            yield broker
        assert broker.terminate() == 0, broker.log_tail()
        assert "Traceback" not in broker.stderr, broker.log_tail()


@pytest.fixture(scope="module")
def url(metered: BrokerProcess) -> str:
    wait_until(lambda: _URL.search(metered.stderr) is not None, "the metrics")
    *_, url = _URL.findall(metered.stderr)
    return str(url)


def asked(url: str, accept: str = "text/plain", **parameters: Any) -> requests.Response:
    with requests.Session() as session:
        session.trust_env = False
        return session.get(url, headers={"accept": accept}, params=parameters, timeout=60)


def test_prometheus_own_check_finds_nothing(url: str) -> None:
    promtool = need("promtool", "it is in Debian's package prometheus")
    for path in ("/metrics", "/metrics/per-object"):
        text = asked(url + path).content
        checked = subprocess.run(
            [promtool, "check", "metrics"], input=text, capture_output=True, check=False
        )
        found = checked.stdout.decode() + checked.stderr.decode()
        ours = [line for line in found.splitlines() if not line.startswith(RABBITMQ_S_OWN)]
        assert ours == []


RABBITMQ_S_OWN = ("rabbitmq_", "error while linting")
"""Beginnings of the check's complaints about names that are RabbitMQ's, and cannot be changed."""


def test_the_format_is_that_which_the_scraper_accepts(url: str) -> None:
    assert asked(url + "/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")
    accepted = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
    answer = asked(url + "/metrics", accepted)
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.text.endswith("# EOF\n")


def served(url: str) -> set[str]:
    """The names of all samples."""
    text = asked(url + "/metrics").text
    return {re.split(r"[{ ]", line)[0] for line in text.splitlines() if line[:1] != "#"}


def test_rabbitmq_s_dashboard_finds_what_it_asks_for(url: str) -> None:
    assert sorted(set(OVERVIEW) - served(url)) == []


def test_our_dashboard_asks_only_for_what_is_there(url: str) -> None:
    text = Path(REPOSITORY, "server/deploy/grafana-store.json").read_text("utf-8")
    dashboard = json.loads(text)
    queries = [
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])
    ]
    assert len(queries) > 20
    queried = {name for query in queries for name in _NAME.findall(query)}
    assert sorted(queried - served(url)) == []
    known = "(rate|sum|histogram_quantile|increase|max|by|le|instance|without)"
    for query in queries:
        left = _NAME.sub("", re.sub(r'\{[^}]*\}|\[[^]]*\]|"[^"]*"', "", query))
        assert re.sub(rf"\b{known}\b", "", left).strip(" ()+-*/.,0123456789") == "", query


def test_families_and_virtual_hosts_are_chosen(url: str) -> None:
    found = asked(
        url + "/metrics/detailed", family=["queue_coarse_metrics", "vhost_status"], vhost="/"
    ).text
    assert 'rabbitmq_detailed_queue_messages{queue="orders",vhost="/"} 3' in found
    assert 'rabbitmq_cluster_vhost_status{vhost="/"} 1' in found
    assert asked(url + "/metrics/detailed", family="queue_coarse_metrics", vhost="no").ok


def test_health_is_told_to_everybody(metered: BrokerProcess, url: str) -> None:
    for base in (url, management_url(metered)):
        assert asked(base + "/health/live").json() == {"status": "ok"}
        assert asked(base + "/health/leader").json() == {"status": "ok"}
        right = {"status": "ok", "alarms": [], "unreadable_messages": 0}
        assert asked(base + "/health/ready").json() == right
        assert asked(base + "/health/alarms").json() == {"status": "ok", "alarms": []}
        right = {"status": "ok", "unreadable_messages": 0, "queues_set_aside": 0}
        assert asked(base + "/health/damage").json() == right


def test_the_open_address_is_a_listener_like_others(metered: BrokerProcess) -> None:
    with ManagementClient(management_url(metered)) as api:
        listeners = {row["protocol"]: row["port"] for row in api.get("/overview")["listeners"]}
        assert listeners.keys() == {"amqp", "http", "http/prometheus"}
        for protocol, port in listeners.items():
            name = protocol.replace("/", "%2F")
            assert api.get(f"/health/checks/protocol-listener/{name}")["status"] == "ok"
            assert api.get(f"/health/checks/port-listener/{port}")["status"] == "ok"
        absent = api.expect(503, "GET", "/health/checks/protocol-listener/mqtt")
        assert absent["protocols"] == sorted(listeners)


def value(url: str, name: str) -> float:
    """The value of a metric, by its whole name, or by the beginning of one with labels."""
    lines = asked(url + "/metrics").text.splitlines()
    begin = name if name.endswith("{") else f"{name} "
    return next(float(line.split()[1]) for line in lines if line.startswith(begin))


def test_bytes_of_connections_that_have_ended_still_count(metered: BrokerProcess, url: str) -> None:
    received, sent = (
        f"rabbitmq_connection_{direction}_bytes_total" for direction in ("incoming", "outgoing")
    )
    before = value(url, received), value(url, sent)
    assert min(before) > 100
    ended = value(url, "rabbitmq_connections_closed_total")
    with connect(metered.url) as connection:
        channel = connection.channel()
        channel.queue_declare("large")
        channel.basic_publish("", "large", b"x" * 100_000)
        assert len(channel.basic_get("large", auto_ack=True)[2] or b"") == 100_000
        channel.queue_delete("large")
    wait_until(lambda: value(url, "rabbitmq_connections_closed_total") > ended, "the end")
    wait_until(lambda: value(url, "rabbitmq_process_open_tcp_sockets") == 1, "the socket's end")
    for name, least in zip((received, sent), before, strict=True):
        assert least + 100_000 <= value(url, name) < least + 110_000


def test_messages_that_the_api_publishes_have_a_size_too(metered: BrokerProcess, url: str) -> None:
    name = "rabbitmq_message_size_bytes_sum{"
    before = value(url, name)
    with ManagementClient(management_url(metered)) as api:
        message = {"routing_key": "nowhere", "payload": "x" * 2000, "payload_encoding": "string"}
        api.post("/exchanges/%2F/amq.default/publish", {**message, "properties": {}})
    assert value(url, name) == before + 2000


def test_nothing_else_is_on_the_open_address(url: str) -> None:
    for path in ("/api/overview", "/api/whoami", "/", "/api/definitions"):
        assert asked(url + path).status_code == 404


def test_the_management_api_has_metrics_for_who_may_monitor(metered: BrokerProcess) -> None:
    base = management_url(metered)
    assert asked(base + "/metrics").status_code == 401
    with ManagementClient(base) as client:
        answer = client.session.get(base + "/metrics", timeout=60)
        assert "rabbitmq_queues 1.0" in answer.text
        latencies = client.get("/latencies")
        assert latencies.keys() == {"sync", "confirm", "delivery"}
        assert all(one.keys() == {"p50", "p99"} for one in latencies.values())


def test_a_broker_without_room_is_ready_for_who_makes_some(stopped_broker: BrokerProcess) -> None:
    stopped_broker.environment["AMQPSTORE_METRICS_LISTEN"] = "127.0.0.1:0"
    stopped_broker.environment["AMQPSTORE_MANAGEMENT_LISTEN"] = "127.0.0.1:0"
    stopped_broker.environment["AMQPSTORE_MEMORY_WATERMARK"] = "1000000"
    stopped_broker.start()
    wait_until(lambda: "memory is short" in stopped_broker.stderr, "the alarm")
    wait_until(lambda: _URL.search(stopped_broker.stderr) is not None, "the metrics")
    base = _URL.findall(stopped_broker.stderr)[-1]
    answer = asked(base + "/health/ready")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ok", "alarms": ["memory"], "unreadable_messages": 0}
    answer = asked(base + "/health/alarms")
    assert answer.status_code == 503
    assert answer.json()["reason"] == "publishers are blocked: low on memory"
    assert asked(base + "/health/live").ok
    with ManagementClient(management_url(stopped_broker)) as api:
        for check in ("health/checks/local-alarms", "healthchecks/node", "aliveness-test/%2F"):
            assert api.expect(503, "GET", f"/{check}")["status"] == "failed"
        assert api.get("/health/checks/ready-to-serve-clients") == {"status": "ok"}
    assert "rabbitmq_alarms_memory_used_watermark 1.0" in asked(base + "/metrics").text
