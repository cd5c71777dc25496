"""Keys of the configuration at their extremes: what a client, an operator or a file sees of each.

Those whose effect other tests show are in the table of `conformance/acts.toml`.
"""

import struct
from functools import partial
from pathlib import Path

import pytest

from amqpstore.provenance.client_trails import BLOCK_NOTES
from amqpstore_server.broker.definitions.accepted import GLOBAL_PARAMETERS
from tests.conformance import wire_client
from tests.conformance.wire_client import WireClient
from tests.served import ServedApp

PERSISTENT = b"\x10\0\2"


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(tmp_path / "store")


def declare(client: WireClient, queue: str = "q", bits: int = 0b010) -> None:
    client.send(wire_client.queue_declare(1, queue, bits))
    client.expect(wire_client.QUEUE_DECLARE_OK, 1)


def publish(client: WireClient, body: bytes, queue: str = "q", count: int = 1) -> None:
    """Publish persistent messages, and return when they are confirmed."""
    client.send(wire_client.confirm_select(1))
    client.expect(wire_client.CONFIRM_SELECT_OK, 1)
    tag = 0
    client.send(*[wire_client.publish(1, queue, body, PERSISTENT)] * count)
    while tag < count:
        tag = int.from_bytes(client.expect(wire_client.BASIC_ACK, 1).arguments[:8], "big")


def test_a_client_is_offered_what_is_configured(data: str) -> None:
    with ServedApp(data, channel_max=1, frame_max=8192, heartbeat_s=0) as served:
        with served.client(channels=1) as client:
            assert client.tune == (1, 8192, 0)
            client.send(wire_client.channel_open(2))
            client.expect_connection_close(504, 530)
        with served.client() as client:
            client.send(wire_client.publish_method(1, "q"), wire_client.header(1, 9000))
            client.send(struct.pack(">BHI", wire_client.BODY, 1, 8193))
            client.expect_connection_close(501)
        with WireClient.tuning(served.url) as client:
            client.send(wire_client.tune_ok(1, 8193, 0), wire_client.connection_open("/"))
            client.expect_closed()


def test_heartbeats_are_offered_and_missed_as_configured(data: str) -> None:
    for offered_s in (0, 1):
        with ServedApp(f"{data}{offered_s}", heartbeat_s=offered_s) as served:
            with WireClient.tuning(served.url) as client:
                assert client.tune.heartbeat_s == offered_s
            with served.client(heartbeat_s=offered_s) as client:
                served.pass_time(3)
                if offered_s:
                    client.read_to_end()
                else:
                    client.expect_alive()


def test_a_client_is_told_the_product_and_the_version(data: str) -> None:
    with ServedApp(data, product="RabbitMQ", version="3.13.7") as served:
        with WireClient(served.url) as client:
            client.send(wire_client.PROTOCOL_HEADER)
            properties = client.expect(wire_client.CONNECTION_START).arguments
            assert wire_client.field("product", b"S", wire_client.long_string("RabbitMQ")) in (
                properties
            )
            assert wire_client.field("version", b"S", wire_client.long_string("3.13.7")) in (
                properties
            )
        overview = served.get("/overview")
        assert (overview["product_name"], overview["product_version"]) == ("RabbitMQ", "3.13.7")
        assert 'product_name="RabbitMQ"' in served.scrape()


def test_the_node_has_the_name_that_is_configured(data: str) -> None:
    with ServedApp(data, node_name="rabbit@here") as served:
        assert served.get("/overview")["node"] == "rabbit@here"
        assert served.get("/nodes/rabbit@here")["name"] == "rabbit@here"
        assert 'rabbitmq_node="rabbit@here"' in served.scrape()


def test_a_body_above_the_limit_is_refused(data: str) -> None:
    with ServedApp(data, max_message_bytes=0) as served, served.client() as client:
        declare(client)
        publish(client, b"")
        client.send(wire_client.publish(1, "q", b"x"))
        client.expect_channel_close(1, 311)
        body = {"properties": {}, "routing_key": "q", "payload": "x", "payload_encoding": "string"}
        answer = served.request("POST", "/exchanges/%2F/amq.default/publish", body)
        assert answer.status_code == 400


def test_only_so_many_connections_are_there(data: str) -> None:
    with ServedApp(data, max_connections=1) as served, served.client() as client:
        with WireClient(served.url) as another:
            another.send_to_closing_peer(wire_client.PROTOCOL_HEADER)
            another.expect_closed()
        client.expect_alive()


def test_one_more_consumer_closes_the_connection(data: str) -> None:
    with ServedApp(data, max_consumers=1) as served, served.client() as client:
        declare(client)
        client.send(wire_client.basic_consume(1, "q", "a"))
        client.expect(wire_client.BASIC_CONSUME_OK, 1)
        client.send(wire_client.basic_consume(1, "q", "b"))
        client.expect_connection_close(530)


def test_no_consumer_has_more_unacked_than_is_configured(data: str) -> None:
    with ServedApp(data, max_prefetch=1) as served, served.client() as client:
        declare(client)
        publish(client, b"x", count=3)
        client.send(wire_client.basic_consume(1, "q", "a", no_ack=False))
        client.expect(wire_client.BASIC_CONSUME_OK, 1)
        client.expect(wire_client.BASIC_DELIVER, 1)
        client.expect_content(1)
        assert client.ready("q") == 2


def test_names_follow_the_rule_that_is_configured(data: str) -> None:
    for rule, name in (("strict", "with blank"), ("0-10", "-first")):
        with ServedApp(f"{data}{rule}", names=rule) as served:
            with served.client() as client:
                client.send(wire_client.queue_declare(1, name))
                client.expect_channel_close(1, 406)
            assert served.request("PUT", f"/queues/%2F/{name}", {}).status_code == 400


def test_the_first_user_is_the_one_that_is_configured(data: str) -> None:
    with ServedApp(data, default_user="ada", default_password="secret") as served:
        with WireClient.greeted(served.url) as client:
            client.send(wire_client.start_ok(response=b"\0ada\0secret"))
            client.expect(wire_client.CONNECTION_TUNE)
        with WireClient.greeted(served.url) as client:
            client.send(
                wire_client.start_ok(capabilities=("authentication_failure_close",)),
            )
            client.expect_connection_close(403)


def test_a_segment_of_the_configured_size_gets_no_further_batch(data: str) -> None:
    with ServedApp(data, segment_bytes=1 << 16) as served, served.client() as client:
        declare(client)
        for _ in range(3):
            publish(client, bytes(70_000))
    assert len(list(Path(data, "segments").glob("*.segment"))) >= 3


def test_bodies_are_compressed_from_the_configured_size_on(data: str) -> None:
    written = []
    for from_bytes in (0, 1, 100_001):
        directory = f"{data}{from_bytes}"
        with ServedApp(directory, compress_from_bytes=from_bytes) as served:
            with served.client() as client:
                declare(client)
                publish(client, bytes(100_000))
            written.append(served.store.measures.batch_bytes.total)
    assert written[0] > 100_000
    assert written[1] < 10_000
    assert written[2] > 100_000


def test_a_purge_can_be_undone_for_the_configured_time(data: str) -> None:
    for undo_s, status in ((0, 400), (366 * 24 * 3600, 200)):
        with ServedApp(f"{data}{undo_s}", purge_undo_s=undo_s) as served:
            with served.client() as client:
                declare(client)
                publish(client, b"x")
            assert served.request("DELETE", "/queues/%2F/q/contents").status_code == 204
            answer = served.request("POST", "/queues/%2F/q/purge/undo", {})
            assert answer.status_code == status, answer.text


def test_who_had_to_do_with_a_message_takes_the_configured_space(data: str) -> None:
    for most_bytes in (0, 1 << 20):
        directory = f"{data}{most_bytes}"
        with ServedApp(directory, provenance_bytes=most_bytes) as served, served.client() as client:
            declare(client)
            publish(client, b"x")
            if most_bytes:
                served.call(partial(note_much, served, 2 * most_bytes))
        sizes = [path.stat().st_size for path in Path(directory).glob("trails/*.trail")]
        assert most_bytes / 2 <= sum(sizes) <= most_bytes


def note_much(served: ServedApp, size: int) -> None:
    """Note clients until that many bytes were written, or more."""
    trails = served.app.services.trails
    assert trails is not None
    queue = served.app.broker.vhost("/").queue("q").priorities.lowest
    written = 0
    for number in range(size // BLOCK_NOTES):
        clients = [(f"{number} {client}", 1, "guest") for client in range(BLOCK_NOTES)]
        trails.published_by(clients, queue, 1, persistent=True)
        written += BLOCK_NOTES * 10  # names and times alone take more
        if written > size:
            break
    trails.flush()


def test_single_objects_have_as_many_series_as_is_configured(data: str) -> None:
    for most in (0, 1):
        with ServedApp(f"{data}{most}", metrics_max_objects=most) as served:
            with served.client() as client:
                for queue in "abc":
                    declare(client, queue)
            text = served.scrape("/metrics/detailed?family=queue_coarse_metrics")
            assert text.count('rabbitmq_detailed_queue_messages{queue="') == most
            assert f"\namqpstore_metrics_left_out {3 * (3 - most)}" in served.scrape()


def test_parameters_of_components_act(data: str) -> None:
    with ServedApp(data) as served, served.client() as client:
        declare(client)
        policy = {"pattern": ".*", "definition": {"max-length": 0}, "apply-to": "queues"}
        for path, value in (
            ("operator_policy/%2F/none", policy),
            ("vhost-limits/%2F/limits", {"max-queues": 1}),
        ):
            answer = served.request("PUT", f"/parameters/{path}", {"value": value})
            assert answer.status_code == 201, answer.text
        publish(client, b"x")
        assert client.ready("q") == 0
        client.send(wire_client.queue_declare(1, "another"))
        client.expect_channel_close(1, 406)
        refused = served.request("PUT", "/parameters/shovel/%2F/s", {"value": {}})
        assert refused.status_code == 400


def test_a_global_parameter_acts_or_is_noted(data: str) -> None:
    with ServedApp(data) as served:
        for name in GLOBAL_PARAMETERS:
            path = f"/global-parameters/{name}"
            assert served.request("PUT", path, {"value": 5}).status_code == 400
            answer = served.request("PUT", path, {"value": "shop"})
            assert "x-amqpstore-notes" not in answer.headers
        metrics = served.scrape()
        assert 'rabbitmq_cluster="shop"' in metrics
        assert 'rabbitmq_cluster_permanent_id="shop"' in metrics
        assert served.get("/overview")["cluster_name"] == "shop"
        answer = served.request("PUT", "/global-parameters/other", {"value": 5})
        assert "'other' has no effect" in answer.headers["x-amqpstore-notes"]
        imported = {"global_parameters": [{"name": "cluster_name", "value": 5}]}
        answer = served.request("POST", "/definitions", imported)
        assert "cluster_name" in answer.text
        assert served.get("/overview")["cluster_name"] == "shop"
