"""A message needs the same rights by whatever way it is published."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import pika
import pika.exceptions
import pytest
import requests
from pika.adapters.blocking_connection import BlockingChannel

from amqpstore_server.broker.messages.cycles import LANDMARK, mark_of
from amqpstore_tools.pika import XaResource, Xid
from tests.broker_process import BrokerProcess
from tests.interop.pika_client import connect
from tests.management_client import PASSWORD, ManagementClient, managed_broker, management_url
from tests.waiting import wait_until

OPEN, TOPIC, INTERNAL, CLOSED = "open", "events", "inner", "closed"
VICTIM = "open.victim"
GRAVE = "grave"
KEPT = "open.kept"

FIREHOSE, EVENTS = "amq.rabbitmq.trace", "amq.rabbitmq.event"
"""Exchanges to which only the broker publishes, about messages and events."""

OWN = r"amq\.rabbitmq\..*|amq\.default|amq\.replay"

WRITE = f"^({OPEN}|{TOPIC}|{INTERNAL}|{OPEN}\\..*|{OWN}|{GRAVE})$"
USERS = {"u": WRITE, "no-default": f"^({OPEN}|amq\\.replay|{OPEN}\\..*)$"}

REFUSED = {
    "write": (CLOSED, "any", None),
    "topic write": (TOPIC, "others.key", None),
    "internal exchange": (INTERNAL, "any", None),
    "firehose": (FIREHOSE, "publish.forged", None),
    "events": (EVENTS, "user.forged", None),
    "user-id": (OPEN, "any", "somebody"),
}
ALLOWED = {
    "write": (OPEN, "any", None),
    "topic write": (TOPIC, "mine.key", None),
    "user-id": (OPEN, "any", "u"),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess]:
    with managed_broker(tmp_path_factory.mktemp("rights")) as process:
        yield process


@pytest.fixture(scope="module")
def api(broker: BrokerProcess) -> Generator[ManagementClient]:
    with ManagementClient(management_url(broker)) as client:
        for user, write in USERS.items():
            client.put(f"/users/{user}", {**PASSWORD, "tags": "management"})
            client.put(
                f"/permissions/%2F/{user}", {"configure": ".*", "write": write, "read": ".*"}
            )
        client.put(
            "/topic-permissions/%2F/u", {"exchange": TOPIC, "write": "^mine[.]", "read": ".*"}
        )
        for exchange in (OPEN, TOPIC, INTERNAL, CLOSED):
            client.put(
                f"/exchanges/%2F/{exchange}",
                {"type": "topic", "internal": exchange == INTERNAL},
            )
        for queue in (VICTIM, GRAVE, "closed.queue"):
            client.put(f"/queues/%2F/{queue}")
        client.put(f"/queues/%2F/{KEPT}", {"arguments": {"x-history-length": 10}})
        for exchange in (OPEN, TOPIC, INTERNAL, CLOSED):
            client.post(f"/bindings/%2F/e/{exchange}/q/{VICTIM}", {"routing_key": "#"}, status=201)
        for sink in ("firehose", "events"):
            exchange, key, _ = REFUSED[sink]
            client.post(f"/bindings/%2F/e/{exchange}/q/{VICTIM}", {"routing_key": key}, status=201)
        yield client


@pytest.fixture
def mine(api: ManagementClient) -> ManagementClient:
    """The client of user u, and empty queues."""
    for queue in (VICTIM, GRAVE, "closed.queue"):
        api.delete(f"/queues/%2F/{queue}/contents")
    return api.as_user("u")


def depth(broker: BrokerProcess, queue: str) -> int:
    with connect(broker.url) as connection:
        found = connection.channel().queue_declare(queue, passive=True)
        return int(found.method.message_count)


def by_channel(
    use: Callable[[BlockingChannel, Callable[[], None]], None],
) -> Callable[..., None]:
    """A road of AMQP."""

    def road(broker: BrokerProcess, _mine: ManagementClient, *what: Any) -> None:
        exchange, key, user_id = what
        url = broker.url.replace("guest:guest", "u:password")
        with contextlib.suppress(pika.exceptions.AMQPError), connect(url) as connection:
            channel = connection.channel()
            properties = pika.BasicProperties(delivery_mode=2, user_id=user_id)
            use(channel, lambda: channel.basic_publish(exchange, key, b"x", properties))

    return road


def publish(channel: BlockingChannel, send: Callable[[], None]) -> None:
    channel.confirm_delivery()
    send()


def publish_by_tx(channel: BlockingChannel, send: Callable[[], None]) -> None:
    channel.tx_select()
    send()
    channel.tx_commit()


def publish_by_dtx(channel: BlockingChannel, send: Callable[[], None]) -> None:
    xa, xid = XaResource(channel), Xid.new(7, b"g", b"b")
    xa.start(xid)
    send()
    xa.end(xid)
    xa.prepare(xid)
    xa.commit(xid)


def publish_by_http(_broker: BrokerProcess, mine: ManagementClient, *what: Any) -> None:
    exchange, key, user_id = what
    body = {"routing_key": key, "payload": "x", "payload_encoding": "string"}
    properties = {} if user_id is None else {"user_id": user_id}
    mine.request(
        "POST", f"/exchanges/%2F/{exchange}/publish", json={**body, "properties": properties}
    )


def forge(mine: ManagementClient, exchange: str, keys: list[str], queue: str = VICTIM) -> None:
    """Publish a letter that says it died in a queue."""
    death = {"queue": queue, "exchange": exchange, "routing-keys": keys, "reason": "expired"}
    properties = {"headers": {"x-death": [{"count": 1, **death}]}}
    body = {"routing_key": GRAVE, "payload": "x", "payload_encoding": "string"}
    mine.post("/exchanges/%2F/amq.default/publish", {**body, "properties": properties})


def replay(_broker: BrokerProcess, mine: ManagementClient, *what: Any) -> None:
    exchange, key, _ = what
    forge(mine, exchange, [key])
    asked = {"filter": {}, "to": "exchange", "trusts_publishers": True}
    answer = mine.post(f"/queues/%2F/{GRAVE}/messages/replay", asked)
    assert answer["replayed"] + sum(answer["left"].values()) == 1


def replay_with_more_keys(broker: BrokerProcess, mine: ManagementClient, *what: Any) -> None:
    """Replay a message with a key that is allowed, and with the given one."""
    exchange, key, _ = what
    forge(mine, exchange, ["mine.key", key])
    asked = {"filter": {}, "to": "exchange", "trusts_publishers": True}
    mine.post(f"/queues/%2F/{GRAVE}/messages/replay", asked)


EXCHANGE_ROADS: dict[str, Callable[..., None]] = {
    "publish": by_channel(publish),
    "tx": by_channel(publish_by_tx),
    "dtx": by_channel(publish_by_dtx),
    "HTTP": publish_by_http,
    "replay": replay,
    "replay with more keys": replay_with_more_keys,
}
"""Each publishes to an exchange, with a key and a user-id, as user u."""

_NO_USER_ID = ("replay", "replay with more keys")
"""Ways that keep the user-id of the first publisher, which was checked then."""


@pytest.mark.parametrize("road", EXCHANGE_ROADS)
@pytest.mark.parametrize("right", REFUSED)
def test_what_a_user_may_not_publish_comes_by_no_road(
    broker: BrokerProcess, mine: ManagementClient, road: str, right: str
) -> None:
    if right == "user-id" and road in _NO_USER_ID:
        forge_as = by_channel(publish)
        forge_as(broker, mine, "", GRAVE, "somebody")
        assert depth(broker, GRAVE) == 0
        return
    EXCHANGE_ROADS[road](broker, mine, *REFUSED[right])
    assert depth(broker, VICTIM) == 0


@pytest.mark.parametrize("road", EXCHANGE_ROADS)
@pytest.mark.parametrize("right", ALLOWED)
def test_and_what_a_user_may_publish_comes_by_each(
    broker: BrokerProcess, mine: ManagementClient, road: str, right: str
) -> None:
    EXCHANGE_ROADS[road](broker, mine, *ALLOWED[right])
    assert depth(broker, VICTIM) == 1


def in_the_grave(mine: ManagementClient) -> None:
    forge(mine, OPEN, ["k"], queue="closed.queue")


def move(mine: ManagementClient, target: str, verb: str = "move") -> requests.Response:
    in_the_grave(mine)
    which = {"filter": {}, "target": target}
    return mine.request("POST", f"/queues/%2F/{GRAVE}/messages/{verb}", json=which)


def copy(mine: ManagementClient, target: str) -> requests.Response:
    return move(mine, target, "copy")


def replay_to_queue(mine: ManagementClient, target: str) -> requests.Response:
    forge(mine, OPEN, ["k"], queue=target)
    asked = {"filter": {}, "trusts_publishers": True}
    return mine.request("POST", f"/queues/%2F/{GRAVE}/messages/replay", json=asked)


def undo(mine: ManagementClient, target: str) -> requests.Response:
    admin = mine.as_user("guest", "guest")
    body = {"routing_key": target, "payload": "x", "payload_encoding": "string"}
    persistent = {"properties": {"delivery_mode": 2}}
    admin.post("/exchanges/%2F/amq.default/publish", {**body, **persistent})
    admin.delete(f"/queues/%2F/{target}/contents")
    return mine.request("POST", f"/queues/%2F/{target}/purge/undo", json={})


@pytest.mark.parametrize("road", [move, copy, replay_to_queue, undo])
def test_straight_into_a_queue_it_takes_the_permission_to_write_to_it(
    broker: BrokerProcess, mine: ManagementClient, road: Callable[..., requests.Response]
) -> None:
    road(mine, "closed.queue")
    assert depth(broker, "closed.queue") == 0
    road(mine, VICTIM)
    assert depth(broker, VICTIM) > 0


@pytest.mark.parametrize(("user", "copies"), [("u", 1), ("no-default", 0)])
def test_a_history_is_replayed_by_who_may_publish_to_queues(
    broker: BrokerProcess, mine: ManagementClient, user: str, copies: int
) -> None:
    with connect(broker.url) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", KEPT, b"x", pika.BasicProperties(delivery_mode=2))
        assert channel.basic_get(KEPT, auto_ack=True)[2] == b"x"
    wait_until(lambda: depth(broker, f"amq.consumed.{KEPT}") > 0, "it is in the history")
    properties = {"headers": {"x-replay-to": "closed.queue", "x-limit": 1}}
    body = {"routing_key": KEPT, "payload": "", "payload_encoding": "string"}
    request = {**body, "properties": properties}
    mine.as_user(user).request("POST", "/exchanges/%2F/amq.replay/publish", json=request)
    assert depth(broker, "closed.queue") == copies


def test_a_queue_with_dead_letters_is_declared_by_who_may_publish_them(
    broker: BrokerProcess, mine: ManagementClient
) -> None:
    for exchange, status in ((CLOSED, 401), (OPEN, 201)):
        arguments = {"x-dead-letter-exchange": exchange}
        mine.expect(status, "PUT", f"/queues/%2F/{OPEN}.{exchange}", {"arguments": arguments})


@pytest.mark.parametrize("exchange", [FIREHOSE, EVENTS])
def test_what_the_broker_tells_of_goes_to_who_may_read_it(
    broker: BrokerProcess, api: ManagementClient, mine: ManagementClient, exchange: str
) -> None:
    """A user who may not read a message cannot get a copy of it either."""
    key = {"routing_key": "publish.mine"}
    path = f"/bindings/%2F/e/{exchange}/q/{VICTIM}"
    for read, status in (("^open", 401), (".*", 201)):
        row = {"configure": ".*", "write": WRITE, "read": read}
        api.put("/permissions/%2F/u", row, status=204)
        mine.expect(status, "POST", path, key)


@pytest.mark.parametrize("forged", ["landmark", "x-death"])
def test_a_forged_death_is_believed_on_no_road(
    broker: BrokerProcess, mine: ManagementClient, forged: str
) -> None:
    """The mark in the header of the broker's own can be worked out from the id of its cluster."""
    store_id = bytes.fromhex(
        mine.as_user("guest", "guest")
        .get("/global-parameters/internal_cluster_id")["value"]
        .removeprefix("amqpstore-cluster-id-")
    )
    landmark = {"BCC": mark_of(store_id), "queue": "", "deaths": 1, "moves": 0}
    death = {"queue": VICTIM, "exchange": OPEN, "routing-keys": ["k"], "reason": "expired"}
    headers: dict[str, Any] = {"x-death": [{"count": 1, **death}]}
    if forged == "landmark":
        headers[LANDMARK] = landmark
    body = {"routing_key": GRAVE, "payload": "x", "payload_encoding": "string"}
    mine.post("/exchanges/%2F/amq.default/publish", {**body, "properties": {"headers": headers}})
    with connect(broker.url) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        # The second has the shape of the first.
        for _ in range(2):
            channel.basic_publish("", GRAVE, b"x", pika.BasicProperties(headers=headers))
    answer = mine.post(f"/queues/%2F/{GRAVE}/messages/replay", {"filter": {}})
    assert (answer["replayed"], sum(answer["left"].values())) == (0, 3)
    assert depth(broker, VICTIM) == 0
