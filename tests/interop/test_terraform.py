"""Requests of Terraform's provider for RabbitMQ (cyrilgdn/rabbitmq), made without it: those of its
client (rabbit-hole), with the types into which it decodes the answers. A number with a fraction
where a whole one is expected fails all of a `plan`.
"""

import json
from collections.abc import Callable, Generator, Mapping
from typing import Any
from urllib.parse import quote, unquote

import pika
import pytest
import requests

from tests.broker_process import BrokerProcess
from tests.management_client import ManagementClient, managed, management_url
from tests.waiting import wait_until

VHOST, USER = "a/b% c", "app@home"
MAX_INT64 = 1 << 63


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def is_int(value: Any) -> bool:
    """Tell whether Go takes a number for a whole one, which it does not if that has a decimal
    point.
    """
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < MAX_INT64


def is_float(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_map(value: Any) -> bool:
    return isinstance(value, dict)


def is_port(value: Any) -> bool:
    """Whether it is a number, in a string or not."""
    return is_int(value) or value == "undefined" or (is_text(value) and value.isdecimal())


def are(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(kind, value))


def shaped(**fields: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return whether each of these fields that an object has is of its kind; null is of any."""

    def check(row: Any) -> bool:
        assert isinstance(row, dict)
        for name, kind in fields.items():
            value = row.get(name)
            assert value is None or kind(value), f"{name}: {value!r}"
        return True

    return check


def of(kind: Callable[[Any], bool], names: str) -> Mapping[str, Callable[[Any], bool]]:
    return dict.fromkeys(names.split(), kind)


RATE = shaped(rate=is_float, samples=are(shaped(sample=is_int, timestamp=is_int)))
COUNTED = (
    "publish deliver deliver_no_ack deliver_get redeliver get get_no_ack ack return_unroutable "
    "drop_unroutable publish_in publish_out confirm"
)
STATS = shaped(
    **of(is_int, COUNTED), **of(RATE, " ".join(f"{name}_details" for name in COUNTED.split()))
)
CHANNEL = shaped(
    **of(is_text, "connection_name name node peer_host user"), number=is_int, peer_port=is_port
)
CONSUMER = shaped(
    **of(is_text, "active_status consumer_tag"),
    **of(is_bool, "ack_required active exclusive"),
    arguments=is_map,
    channel_details=lambda value: value == [] or CHANNEL(value),
    prefetch_count=is_int,
    queue=shaped(name=is_text, vhost=is_text),
)
QUEUE = shaped(
    **of(
        is_text,
        "name type vhost node state status leader exclusive_consumer_tag policy operator_policy",
    ),
    **of(is_bool, "durable auto_delete exclusive"),
    **of(is_map, "arguments effective_policy_definition"),
    **of(are(is_text), "members online"),
    **of(
        is_int,
        "memory consumers message_bytes message_bytes_persistent message_bytes_ram "
        "message_bytes_ready message_bytes_unacknowledged messages messages_persistent "
        "messages_ram messages_ready messages_unacknowledged active_consumers",
    ),
    **of(RATE, "messages_details messages_ready_details messages_unacknowledged_details"),
    consumer_utilisation=is_float,
    consumer_details=are(CONSUMER),
    message_stats=STATS,
    owner_pid_details=shaped(name=is_text, peer_host=is_text, peer_port=is_port),
    backing_queue_status=is_map,
    garbage_collection=is_map,
)
EXCHANGE = shaped(
    **of(is_text, "name vhost type policy"),
    **of(is_bool, "durable auto_delete internal"),
    arguments=is_map,
    message_stats=STATS,
    incoming=are(is_map),
    outgoing=are(is_map),
)
BINDING = shaped(
    **of(is_text, "source vhost destination destination_type routing_key properties_key"),
    arguments=is_map,
)
POLICY = shaped(**of(is_text, "vhost pattern apply-to name"), priority=is_int, definition=is_map)
ACCOUNT = shaped(
    **of(is_text, "name password_hash hashing_algorithm"),
    tags=lambda value: is_text(value) or are(is_text)(value),
)
HOST = shaped(
    **of(is_text, "name description default_queue_type"),
    **of(
        is_int,
        "messages messages_ready messages_unacknowledged recv_oct send_oct recv_cnt send_cnt",
    ),
    **of(RATE, "messages_details messages_ready_details messages_unacknowledged_details"),
    **of(RATE, "recv_oct_details send_oct_details"),
    tracing=is_bool,
    tags=lambda value: is_text(value) or are(is_text)(value),
    cluster_state=lambda value: is_map(value) and all(map(is_text, value.values())),
)
LIMITS = shaped(vhost=is_text, value=lambda value: all(map(is_int, value.values())))
CONNECTION = shaped(
    **of(
        is_text,
        "name node state type host peer_host last_blocked_by last_blocked_age peer_cert_subject "
        "peer_cert_validity peer_cert_issuer ssl_protocol ssl_key_exchange ssl_cipher ssl_hash "
        "protocol user vhost auth_mechanism user_provided_name",
    ),
    **of(is_int, "channels channel_max timeout frame_max connected_at"),
    **of(is_int, "recv_oct send_oct recv_cnt send_cnt send_pend"),
    **of(RATE, "recv_oct_details send_oct_details"),
    **of(is_port, "port peer_port"),
    ssl=is_bool,
    client_properties=is_map,
)
OPEN_CHANNEL = shaped(
    **of(is_text, "name idle_since user vhost node state"),
    **of(
        is_int,
        "number prefetch_count consumer_count messages_unacknowledged messages_unconfirmed "
        "messages_uncommitted acks_uncommitted global_prefetch_count",
    ),
    **of(is_bool, "confirm transactional client_flow_blocked"),
    connection_details=shaped(name=is_text, peer_host=is_text, peer_port=is_port),
    message_stats=STATS,
)
NAMED = are(shaped(name=is_text, description=is_text, enabled=is_bool, version=is_text))
CONTEXTS = are(shaped(**of(is_text, "node description path"), port=is_port, ignore_in_use=is_bool))
CHURN = (
    "connection_created connection_closed channel_created channel_closed queue_declared "
    "queue_created queue_deleted"
)
MEASURED = (
    "fd_used proc_used mem_used disk_free gc_num gc_bytes_reclaimed context_switches "
    f"io_read_count io_read_bytes io_write_count io_write_bytes io_sync_count {CHURN}"
)
NODE = shaped(
    **of(is_text, "name type os_pid"),
    **of(is_bool, "running mem_alarm disk_free_alarm"),
    **of(is_int, f"{MEASURED} fd_total proc_total mem_limit disk_free_limit run_queue"),
    **of(is_int, "processors uptime sockets_used sockets_total"),
    **of(RATE, " ".join(f"{name}_details" for name in MEASURED.split())),
    **of(is_float, "io_read_avg_time io_write_avg_time io_sync_avg_time"),
    **of(NAMED, "exchange_types auth_mechanisms applications"),
    contexts=CONTEXTS,
    partitions=are(is_text),
    cluster_links=are(is_map),
    metrics_gc_queue_length=lambda value: all(map(is_int, value.values())),
)
TOTALS = "messages messages_ready messages_unacknowledged"
OVERVIEW = shaped(
    **of(
        is_text,
        "management_version rates_mode statistics_level rabbitmq_version erlang_version "
        "erlang_full_version node cluster_name statistics_db_node product_name product_version",
    ),
    exchange_types=NAMED,
    message_stats=STATS,
    queue_totals=shaped(
        **of(is_int, TOTALS), **of(RATE, " ".join(f"{name}_details" for name in TOTALS.split()))
    ),
    object_totals=lambda value: all(map(is_int, value.values())),
    churn_rates=shaped(**of(is_int, CHURN)),
    listeners=are(shaped(**of(is_text, "node protocol ip_address"), port=is_port)),
    contexts=CONTEXTS,
)


class RabbitHole:
    """The provider's client: how it writes paths and bodies, and what it takes for an error."""

    def __init__(self, url: str) -> None:
        self.url = url

    def path(self, *parts: str) -> str:
        """A path, encoded as Go does it."""
        return "/".join(quote(part, safe="$&+=:@") for part in parts)

    def ask(self, method: str, path: str, body: Any = None) -> requests.Response:
        """Send a request on a connection of its own."""
        content = None if body is None else json.dumps(body, separators=(",", ":"))
        headers = {"content-type": "application/json", "connection": "close"}
        if method == "GET":
            del headers["content-type"]
        login = ("guest", "guest")
        url = f"{self.url}/api/{path}"
        return requests.request(method, url, data=content, headers=headers, auth=login, timeout=60)

    def get(self, path: str, kind: Callable[[Any], bool]) -> Any:
        """Return the answer to a GET, decoded as a thing of this kind or a list of them."""
        answer = self.ask("GET", path)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert (are(kind) if isinstance(found, list) else kind)(found)
        return found

    def put(self, path: str, body: Any, method: str = "PUT") -> requests.Response:
        answer = self.ask(method, path, body)
        assert answer.status_code in (201, 204), answer.text
        return answer

    def delete(self, path: str) -> None:
        """Delete an object, then once more: both answers are right for the provider."""
        assert self.ask("DELETE", path).status_code == 204
        again = self.ask("DELETE", path)
        assert again.status_code in (204, 404), again.text

    def is_gone(self, path: str) -> bool:
        """Whether a thing is answered with what makes the provider forget it."""
        answer = self.ask("GET", path)
        error = answer.json()
        return answer.status_code == 404 and is_text(error["error"]) and is_text(error["reason"])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("terraform")
    with managed(BrokerProcess(str(directory / "data"), str(directory / "log"))) as process:
        process.start()
        yield process


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Generator[RabbitHole]:
    client = RabbitHole(management_url(broker))
    # The virtual host is created first, with what was not set.
    unset = {"description": "", "tags": "", "tracing": False}
    client.put(client.path("vhosts", VHOST), unset)
    client.put(client.path("users", USER), {"name": "", "tags": "", "password": "first"})
    yield client
    client.delete(client.path("users", USER))
    client.delete(client.path("vhosts", VHOST))


def test_a_virtual_host_with_limits(client: RabbitHole) -> None:
    path = client.path("vhosts", "made/here")
    limits = client.path("vhost-limits", "made/here")
    client.put(path, {"description": "", "tags": "", "tracing": False})
    host = client.get(path, HOST)
    assert (host["name"], host.get("description", ""), host["tracing"]) == (
        "made/here",
        "",
        False,
    )
    assert client.get(limits, LIMITS) == []
    changed = {"description": "x", "tags": "a,b", "default_queue_type": "quorum", "tracing": True}
    client.put(path, changed)
    for limit, value in (("max-connections", 7), ("max-queues", 9)):
        client.ask("DELETE", f"{limits}/{limit}")
        client.put(f"{limits}/{limit}", {"value": value})
    host = client.get(path, HOST)
    assert host["tags"] in (["a", "b"], "a,b")
    assert {name: host[name] for name in ("description", "default_queue_type", "tracing")} == {
        name: changed[name] for name in ("description", "default_queue_type", "tracing")
    }
    (row,) = client.get(limits, LIMITS)
    assert row == {"vhost": "made/here", "value": {"max-connections": 7, "max-queues": 9}}
    client.delete(f"{limits}/max-queues")
    assert client.get(limits, LIMITS)[0]["value"] == {"max-connections": 7}
    assert [one["name"] for one in client.get("vhosts", HOST)].count("made/here") == 1
    client.delete(path)
    assert client.is_gone(path)


def test_a_user_and_what_it_may_do(client: RabbitHole) -> None:
    user = client.path("users", "made")
    client.put(user, {"name": "", "tags": "", "password": "secret"})
    account = client.get(user, ACCOUNT)
    assert (account["name"], [tag for tag in account["tags"] if tag]) == ("made", [])
    client.put(user, {"name": "", "tags": "monitoring,own", "password": "other"})
    assert client.get(user, ACCOUNT)["tags"] in (["monitoring", "own"], "monitoring,own")
    assert "made" in [one["name"] for one in client.get("users/", ACCOUNT)]
    assert requests.get(f"{client.url}/api/whoami", auth=("made", "other"), timeout=60).ok
    kind = shaped(**of(is_text, "user vhost configure write read exchange"))
    may = client.path("permissions", VHOST, "made")
    assert client.is_gone(may)
    for rights in ({"configure": "^a", "write": "", "read": ".*"}, dict.fromkeys("x", "")):
        rights = {"configure": "", "write": "", "read": "", **rights}
        rights.pop("x", None)
        client.put(may, rights)
        assert client.get(may, kind) == {"user": "made", "vhost": VHOST, **rights}
    client.delete(may)
    assert client.is_gone(may)
    topics = client.path("topic-permissions", VHOST, "made")
    assert client.is_gone(topics)
    rows = [{"exchange": one, "write": "a", "read": "b"} for one in ("amq.topic", "")]
    for row in rows:
        client.put(topics, row)
    granted = client.get(topics, kind)
    expected = [{"user": "made", "vhost": VHOST, **row} for row in rows]
    assert sorted(granted, key=str) == sorted(expected, key=str)
    client.delete(topics)
    assert client.is_gone(topics)
    client.delete(user)
    assert client.is_gone(user)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"x-queue-type": "quorum", "x-delivery-limit": 5},
        {"x-max-length": 10, "x-overflow": "reject-publish", "x-message-ttl": 60000},
        {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "é/%"},
    ],
    ids=str,
)
def test_a_queue(client: RabbitHole, arguments: dict[str, Any]) -> None:
    for name in ("plain", "with/slash %2F?#é"):
        path = client.path("queues", VHOST, name)
        settings = {"type": "", "durable": True}
        client.put(path, {**settings, **({"arguments": arguments} if arguments else {})})
        found = client.get(path, QUEUE)
        assert (found["name"], found["vhost"]) == (name, VHOST)
        assert (found["durable"], found["auto_delete"]) == (True, False)
        # What comes back is compared with what was asked for: nothing may be added.
        assert found["arguments"] == arguments
        assert name in [one["name"] for one in client.get(client.path("queues", VHOST), QUEUE)]
        client.delete(f"{path}?")
        assert client.is_gone(path)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("direct", {"durable": True}),
        ("topic", {"durable": False, "auto_delete": True}),
        ("x-consistent-hash", {"durable": True, "arguments": {"hash-header": "id"}}),
        ("x-delayed-message", {"durable": True, "arguments": {"x-delayed-type": "topic"}}),
        ("headers", {"durable": True, "arguments": {"alternate-exchange": "amq.fanout"}}),
    ],
)
def test_an_exchange(client: RabbitHole, kind: str, settings: dict[str, Any]) -> None:
    path = client.path("exchanges", VHOST, "made, here;")
    client.put(path, {"type": kind, **settings})
    found = client.get(path, EXCHANGE)
    expected = {"auto_delete": False, "arguments": {}, "internal": False, **settings, "type": kind}
    assert {name: found[name] for name in expected} == expected
    assert (found["name"], found["vhost"]) == ("made, here;", VHOST)
    assert EXCHANGE(found)
    client.get(client.path("exchanges", VHOST), EXCHANGE)
    client.delete(path)
    assert client.is_gone(path)


@pytest.mark.parametrize("kind", ["queue", "exchange"])
@pytest.mark.parametrize(
    ("key", "arguments"),
    [
        ("", {}),
        ("a.*.#", {}),
        ("slash/and%2F space", {}),
        ("~", {}),
        ("", {"x-match": "all", "k": "v"}),
        ("key", {"n": 5}),
    ],
)
def test_a_binding(client: RabbitHole, kind: str, key: str, arguments: dict[str, Any]) -> None:
    """The provider names a binding by the end of the path that is in the answer."""
    to = client.path(f"{kind}s", VHOST, "bound")
    client.put(to, {"type": "fanout"} if kind == "exchange" else {"type": "", "durable": True})
    client.put(client.path("exchanges", VHOST, "from/here"), {"type": "topic", "durable": True})
    path = client.path("bindings", VHOST, "e", "from/here", kind[0], "bound")
    sent = {"source": "from/here", "vhost": VHOST, "destination": "bound", "destination_type": kind}
    made = client.put(path, {**sent, "routing_key": key, "arguments": arguments}, "POST")
    properties = unquote(made.headers["location"].rpartition("/")[2])
    for listed in (path, client.path("bindings", VHOST)):
        matching = [
            row for row in client.get(listed, BINDING) if row["properties_key"] == properties
        ]
        (row,) = [row for row in matching if row["source"] == "from/here"]
        assert row == {
            **sent,
            "routing_key": key,
            "arguments": arguments,
            "properties_key": properties,
        }
    client.delete(f"{path}/{quote(properties, safe='$&+=:@')}")
    assert client.get(path, BINDING) == []
    client.get("bindings/", BINDING)
    client.delete(to)


@pytest.mark.parametrize("kind", ["policies", "operator-policies"])
def test_a_policy(client: RabbitHole, kind: str) -> None:
    path = client.path(kind, VHOST, "made/ü")
    first = {"max-length": 10, "message-ttl": 60000}
    more = {} if kind == "operator-policies" else {"overflow": "reject-publish"}
    for definition, applied in (
        ({**first, **more}, "queues"),
        ({"max-length": 5}, "quorum_queues"),
    ):
        policy = {
            "vhost": VHOST,
            "pattern": r"^a\..*$",
            "apply-to": applied,
            "name": "made/ü",
            "priority": 3,
            "definition": definition,
        }
        client.put(path, policy)
        stored = client.get(path, POLICY)
        assert {name: stored[name] for name in policy} == policy
        assert client.get(client.path(kind, VHOST), POLICY) == [stored]
        assert stored in client.get(kind, POLICY)
    client.delete(path)
    assert client.is_gone(path)


@pytest.mark.parametrize("component", ["shovel", "federation-upstream"])
def test_what_there_is_not_is_refused_by_name(client: RabbitHole, component: str) -> None:
    """`apply` fails, instead of a user waiting for messages that no shovel moves."""
    path = client.path("parameters", component, VHOST, "made")
    answer = client.ask("PUT", path, {"component": component, "vhost": VHOST, "value": {}})
    assert answer.status_code == 400, answer.text
    assert component.partition("-")[0] in answer.json()["reason"]
    assert client.is_gone(path)


def test_all_that_its_client_reads_is_of_the_types_that_it_decodes(
    broker: BrokerProcess, client: RabbitHole
) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        for name, type_ in (("busy", "classic"), ("quorum", "quorum")):
            channel.queue_declare(name, durable=True, arguments={"x-queue-type": type_})
            for number in range(12):
                properties = pika.BasicProperties(delivery_mode=2 if number % 2 else 1)
                channel.basic_publish("", name, b"x" * number, properties)
        channel.queue_declare("own", exclusive=True)
        channel.basic_publish("amq.fanout", "", b"no route")
        channel.basic_qos(prefetch_count=5)
        channel.basic_consume("busy", lambda *_message: None, arguments={"x-priority": 2})
        channel.basic_get("quorum", auto_ack=True)
        ages = "?lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5&data_rates_age=60"
        wait_until(lambda: client.get("channels", OPEN_CHANNEL), "the channel is listed")
        wait_until(
            lambda: client.get("overview", OVERVIEW)["object_totals"]["queues"] == 3, "the totals"
        )
        for query in ("", f"{ages}&data_rates_incr=5"):
            answers = {
                path: client.get(f"{path}{query}", kind)
                for path, kind in (
                    ("overview", OVERVIEW),
                    ("nodes", NODE),
                    ("connections", CONNECTION),
                    ("channels", OPEN_CHANNEL),
                    ("consumers", CONSUMER),
                    ("queues", QUEUE),
                    ("queues/%2F/busy", QUEUE),
                    ("queues/%2F/quorum", QUEUE),
                    ("queues/%2F/own", QUEUE),
                    ("exchanges", EXCHANGE),
                    ("exchanges/%2F/amq.fanout", EXCHANGE),
                    ("vhosts", HOST),
                    ("vhosts/%2F", HOST),
                )
            }
            for row in answers["connections"]:
                client.get(client.path("connections", row["name"]) + query, CONNECTION)
            for row in answers["channels"]:
                client.get(client.path("channels", row["name"]) + query, OPEN_CHANNEL)
            for row in answers["nodes"]:
                client.get(client.path("nodes", row["name"]) + query, NODE)
        busy = client.get("queues/%2F/busy", QUEUE)
        assert (busy["messages"], busy["messages_ready"], busy["consumers"]) == (12, 7, 1)
        assert busy["message_bytes"] == sum(range(12))
        assert busy["messages_persistent"] == 6
        paged = client.ask("GET", "queues?page=1&page_size=2&sort=name").json()
        assert shaped(
            **of(is_int, "page page_count page_size filtered_count item_count total_count"),
            items=are(QUEUE),
        )(paged)
        assert (paged["page_count"], paged["item_count"], paged["total_count"]) == (2, 2, 3)
    with ManagementClient(client.url) as api:
        for name in ("busy", "quorum"):
            api.delete(f"/queues/%2F/{name}")
