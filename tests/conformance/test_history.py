"""The history of consumed messages, and its replays, with an unmodified client (J17)."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError, UnroutableError

from tests.conformance.topology import confirming, headers, queue, unique
from tests.interop.pika_client import (
    PERSISTENT,
    Inbox,
    channel_closed_with,
    drain,
    get,
    ready,
    wait_until,
    wait_until_ready,
)

pytestmark = pytest.mark.usefixtures("ours_alone")

REPLAY = "amq.replay"


@pytest.fixture
def name(channel: BlockingChannel) -> str:
    """A queue with a history."""
    return queue(channel, {"x-history-length": 100})


@pytest.fixture
def asking(connection: pika.BlockingConnection) -> BlockingChannel:
    """A channel in confirm mode: a replay that is confirmed is done."""
    return confirming(connection)


def history(name: str) -> str:
    return f"amq.consumed.{name}"


def consume(channel: BlockingChannel, name: str, *bodies: str) -> None:
    """Publish messages to a queue, and get and ack each."""
    for body in bodies:
        properties = pika.BasicProperties(message_id=f"id {body}", delivery_mode=2)
        channel.basic_publish("", name, body.encode(), properties)
    wait_until_ready(channel, name, len(bodies))
    for _ in bodies:
        message = get(channel, name)
        assert message is not None
        channel.basic_ack(message.delivery_tag)
    wait_until_ready(channel, history(name), len(bodies))


def replay(channel: BlockingChannel, name: str, **named: Any) -> None:
    """Ask for a replay, and wait until it is done: each `_` in the names of headers is a `-`."""
    asked = {key.replace("_", "-"): value for key, value in named.items()}
    properties = pika.BasicProperties(headers=asked)
    channel.basic_publish(REPLAY, name, b"", properties, mandatory=True)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def is_later(than_ms: int) -> Callable[[], bool]:
    return lambda: now_ms() > than_ms


def texts(channel: BlockingChannel, name: str) -> list[str]:
    return [message.body.decode() for message in drain(channel, name)]


def test_what_was_consumed_is_counted_by_a_passive_declare(
    channel: BlockingChannel, name: str
) -> None:
    """J17."""
    assert ready(channel, history(name)) == 0
    consume(channel, name, "a", "b", "c")
    assert ready(channel, history(name)) == 3


@pytest.mark.parametrize("argument", ["x-history-length", "x-history-ttl"])
@pytest.mark.parametrize("value", [-1, "5", True])
def test_a_limit_that_is_none_is_406(channel: BlockingChannel, argument: str, value: Any) -> None:
    with channel_closed_with(406):
        channel.queue_declare(unique(), exclusive=True, arguments={argument: value})


def test_it_is_purged_and_nothing_else(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    consume(channel, name, "a")
    held = history(name)
    uses: list[Callable[[BlockingChannel], Any]] = [
        lambda made: made.basic_get(held),
        lambda made: made.basic_consume(held, print),
        lambda made: made.queue_delete(held),
        lambda made: made.queue_bind(held, "amq.direct", "x"),
    ]
    for use in uses:
        made = connection.channel()
        with channel_closed_with(403):
            use(made)
    assert channel.queue_purge(held).method.message_count == 1
    assert ready(channel, held) == 0


def test_nobody_publishes_to_it(channel: BlockingChannel, asking: BlockingChannel) -> None:
    name = queue(channel, {"x-history-length": 5})
    with pytest.raises(UnroutableError):
        asking.basic_publish("", history(name), b"forged", mandatory=True)


def test_it_ends_with_its_queue(connection: pika.BlockingConnection) -> None:
    channel = connection.channel()
    name = unique()
    channel.queue_declare(name, arguments={"x-history-ttl": 60_000})
    consume(channel, name, "a")
    channel.queue_delete(name)
    with channel_closed_with(404):
        ready(channel, history(name))


def test_a_history_is_replayed_into_its_queue(
    channel: BlockingChannel, asking: BlockingChannel, name: str
) -> None:
    since_ms = time.time() * 1000 - 1
    consume(channel, name, "a", "b", "c")
    replay(asking, name)
    messages = drain(channel, name)
    assert [message.body for message in messages] == [b"a", b"b", b"c"]
    for message in messages:
        its_headers = headers(message.properties)
        assert its_headers["x-replayed"] is True
        assert since_ms <= its_headers["x-consumed-at"] <= time.time() * 1000 + 1
        assert not message.redelivered
        assert (message.exchange, message.routing_key) == ("", name)
        assert message.properties.message_id == f"id {message.body.decode()}"


def test_a_history_is_browsed_in_a_queue_of_the_clients_own(
    channel: BlockingChannel, asking: BlockingChannel, name: str
) -> None:
    consume(channel, name, "a", "b", "c")
    browse = channel.queue_declare("", exclusive=True).method.queue
    replay(asking, name, x_replay_to=browse)
    assert texts(channel, browse) == ["a", "b", "c"]
    replay(asking, name, x_replay_to=browse, x_limit=2)
    assert texts(channel, browse) == ["a", "b"]
    replay(asking, name, x_replay_to=browse, x_message_id="id b")
    assert texts(channel, browse) == ["b"]
    replay(asking, name, x_replay_to=browse, x_from=datetime.fromtimestamp(0, UTC))
    assert texts(channel, browse) == ["a", "b", "c"]
    assert ready(channel, name) == 0
    assert ready(channel, history(name)) == 3


def test_a_range_of_time_is_half_open(
    channel: BlockingChannel, asking: BlockingChannel, name: str
) -> None:
    browse = queue(channel)
    for body in ("a", "b", "c"):
        channel.basic_publish("", name, body.encode())
        wait_until_ready(channel, name, 1)
        assert get(channel, name, auto_ack=True)
        wait_until(channel, is_later(now_ms()))  # the header has no finer time
    wait_until_ready(channel, history(name), 3)
    replay(asking, name, x_replay_to=browse)
    first, second, third = [
        headers(message.properties)["x-consumed-at"] for message in drain(channel, browse)
    ]
    replay(asking, name, x_replay_to=browse, x_from=first, x_to=third)
    assert texts(channel, browse) == ["a", "b"]
    replay(asking, name, x_replay_to=browse, x_from=second)
    assert texts(channel, browse) == ["b", "c"]


def test_a_replay_reaches_a_consumer(
    channel: BlockingChannel, asking: BlockingChannel, name: str
) -> None:
    consume(channel, name, "a", "b")
    inbox = Inbox(channel, name, auto_ack=True)
    replay(asking, name)
    assert [message.body for message in inbox.wait_for(2)] == [b"a", b"b"]


@pytest.mark.parametrize("missing", ["queue", "history", "target"])
def test_where_there_is_nothing_to_replay_it_is_returned(
    channel: BlockingChannel, asking: BlockingChannel, name: str, missing: str
) -> None:
    consume(channel, name, "a")
    with pytest.raises(UnroutableError):
        if missing == "target":
            replay(asking, name, x_replay_to=unique())
        else:
            replay(asking, unique() if missing == "queue" else queue(channel))


def test_a_queue_that_has_no_room_refuses_all_copies(
    channel: BlockingChannel, asking: BlockingChannel, name: str
) -> None:
    consume(channel, name, "a", "b")
    small = queue(channel, {"x-max-length": 1, "x-overflow": "reject-publish"})
    with pytest.raises(NackError):
        replay(asking, name, x_replay_to=small)
    assert ready(channel, small) == 0


@pytest.mark.parametrize("header", ["x_from", "x_to", "x_limit", "x_replay_to", "x_message_id"])
def test_a_header_of_another_type_is_406(asking: BlockingChannel, name: str, header: str) -> None:
    with channel_closed_with(406):
        replay(asking, name, **{header: True})


def test_a_replay_in_a_transaction_is_406(connection: pika.BlockingConnection, name: str) -> None:
    channel = connection.channel()
    channel.tx_select()
    with channel_closed_with(406):
        replay(channel, name)
        channel.tx_commit()


def test_an_exclusive_queues_history_is_its_connections(
    other_channel: BlockingChannel, name: str
) -> None:
    other_channel.confirm_delivery()
    with channel_closed_with(405):
        replay(other_channel, name)


def test_the_exchange_is_there_and_takes_no_bindings(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    channel.exchange_declare(REPLAY, passive=True)
    with channel_closed_with(403):
        channel.queue_bind(name, REPLAY, "x")
    made = connection.channel()
    with channel_closed_with(406):
        made.exchange_declare(unique(), "x-replay")


def test_copies_are_as_persistent_as_what_was_consumed(
    channel: BlockingChannel, asking: BlockingChannel, name: str
) -> None:
    channel.basic_publish("", name, b"a", PERSISTENT)
    channel.basic_publish("", name, b"b")
    wait_until_ready(channel, name, 2)
    drain(channel, name)
    wait_until_ready(channel, history(name), 2)
    replay(asking, name)
    assert [message.properties.delivery_mode for message in drain(channel, name)] == [2, None]
