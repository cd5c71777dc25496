"""Expiry, dead letters, delivery limits and delays (rules H)."""

import pika
import pytest
from pika import DeliveryMode
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import BasicProperties

from tests.broker_process import BrokerProcess
from tests.conformance.topology import (
    Arguments,
    bodies,
    bound,
    confirming,
    deaths,
    exchange,
    get_soon,
    headers,
    queue,
    session,
    texts,
    unique,
)
from tests.interop.pika_client import (
    PERSISTENT,
    Inbox,
    Received,
    channel_closed_with,
    drain,
    ready,
    settle,
    wait_until,
    wait_until_ready,
)


def dead_lettering(dead: str, arguments: Arguments | None = None) -> dict[str, object]:
    """Arguments of a queue whose dead letters go to the queue `dead`."""
    return {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead,
        **(arguments or {}),
    }


def expiring(ttl_ms: int | str) -> BasicProperties:
    return BasicProperties(expiration=str(ttl_ms))


def reject(channel: BlockingChannel, name: str) -> Received:
    """Take the next message, and reject it for good."""
    message = get_soon(channel, name, auto_ack=False)
    channel.basic_reject(message.delivery_tag, requeue=False)
    return message


def test_a_queues_ttl_removes_its_messages(channel: BlockingChannel) -> None:
    """H01, H06: in their order."""
    dead = queue(channel)
    name = queue(channel, dead_lettering(dead, {"x-message-ttl": 300}))
    for number in range(5):
        channel.basic_publish("", name, str(number).encode())
    wait_until_ready(channel, dead, 5)
    assert ready(channel, name) == 0
    assert texts(channel, dead) == list("01234")


def test_a_messages_expiration_removes_it(channel: BlockingChannel) -> None:
    """H02, H04: and one without stays."""
    name = queue(channel)
    channel.basic_publish("", name, b"short", expiring(200))
    channel.basic_publish("", name, b"stays")
    wait_until_ready(channel, name, 1)
    assert bodies(channel, name) == [b"stays"]


@pytest.mark.parametrize("expiration", ["soon", "-1", "1.5", "", "10s", " 5"])
def test_an_expiration_that_is_no_number_is_406(channel: BlockingChannel, expiration: str) -> None:
    """H02."""
    with channel_closed_with(406):
        channel.basic_publish("", queue(channel), b"", expiring(expiration))
        settle(channel)


@pytest.mark.parametrize(("of_queue", "of_message"), [(200, 600_000), (600_000, 200)])
def test_the_smaller_ttl_wins(channel: BlockingChannel, of_queue: int, of_message: int) -> None:
    """H03."""
    name = queue(channel, {"x-message-ttl": of_queue})
    channel.basic_publish("", name, b"x", expiring(of_message))
    wait_until_ready(channel, name, 0)


@pytest.mark.parametrize("of", ["queue", "message"])
def test_a_ttl_of_zero_drops_what_no_consumer_takes_at_once(
    channel: BlockingChannel, of: str
) -> None:
    """H05: it is dead-lettered, and not returned."""
    dead = queue(channel)
    name = queue(channel, dead_lettering(dead, {"x-message-ttl": 0} if of == "queue" else {}))
    properties = expiring(0) if of == "message" else BasicProperties()
    channel.basic_publish("", name, b"dropped", properties)
    assert get_soon(channel, dead).body == b"dropped"
    inbox = Inbox(channel, name, auto_ack=True)
    channel.basic_publish("", name, b"taken", properties)
    assert [message.body for message in inbox.wait_for(1)] == [b"taken"]


@pytest.mark.usefixtures("ours_alone")
def test_a_message_expires_anywhere_in_its_queue(channel: BlockingChannel) -> None:
    """H07: behind messages that stay, and is dead-lettered on time."""
    dead = queue(channel)
    name = queue(channel, dead_lettering(dead))
    for body, ttl_ms in (("a", 600_000), ("b", 400), ("c", 200), ("d", 600_000)):
        channel.basic_publish("", name, body.encode(), expiring(ttl_ms))
    channel.basic_publish("", name, b"e")
    wait_until_ready(channel, dead, 2)
    assert texts(channel, dead) == ["c", "b"]
    assert texts(channel, name) == ["a", "d", "e"]


def test_a_message_that_is_unacked_does_not_expire(channel: BlockingChannel) -> None:
    """H06, D20."""
    marker = queue(channel, {"x-message-ttl": 300})
    name = queue(channel, {"x-message-ttl": 300})
    channel.basic_publish("", name, b"held")
    held = get_soon(channel, name, auto_ack=False)
    channel.basic_publish("", marker, b"")
    wait_until_ready(channel, marker, 0)
    channel.basic_ack(held.delivery_tag)
    settle(channel)


def test_a_requeue_does_not_start_the_ttl_anew(channel: BlockingChannel) -> None:
    """H08: a message that is overdue when it is requeued expires before later ones."""
    dead = queue(channel)
    arguments = dead_lettering(dead, {"x-message-ttl": 1500})
    name, marker, later = (
        queue(channel, arguments),
        queue(channel, arguments),
        queue(channel, arguments),
    )
    channel.basic_publish("", name, b"held")
    held = get_soon(channel, name, auto_ack=False)
    channel.basic_publish("", marker, b"marker")
    wait_until_ready(channel, marker, 0)
    channel.basic_publish("", later, b"later")
    channel.basic_nack(held.delivery_tag, requeue=True)
    wait_until_ready(channel, dead, 3)
    assert texts(channel, dead) == ["marker", "held", "later"]


def test_each_queue_has_a_clock_of_its_own(channel: BlockingChannel) -> None:
    """H08: a dead-lettered message starts anew in its next queue, its expiration taken away."""
    last = queue(channel)
    second = queue(channel, dead_lettering(last, {"x-message-ttl": 200}))
    first = queue(channel, dead_lettering(second))
    channel.basic_publish("", first, b"x", expiring(200))
    message = get_soon(channel, last)
    assert [entry["queue"] for entry in deaths(message)] == [second, first]
    assert message.properties.expiration is None


def test_an_expired_message_says_so_in_x_death(channel: BlockingChannel) -> None:
    """H10, H11: reason expired, and what its expiration was."""
    dead = queue(channel)
    name = queue(channel, dead_lettering(dead))
    channel.basic_publish("", name, b"x", BasicProperties(expiration="150", app_id="kept"))
    message = get_soon(channel, dead)
    assert deaths(message) == [
        {
            "count": 1,
            "reason": "expired",
            "queue": name,
            "exchange": "",
            "routing-keys": [name],
            "original-expiration": "150",
        }
    ]
    assert (message.properties.expiration, message.properties.app_id) == (None, "kept")


@pytest.mark.parametrize("how", ["reject", "nack"])
def test_a_rejected_message_is_dead_lettered(channel: BlockingChannel, how: str) -> None:
    """H09, H10, H11: body and properties kept, where and why in the headers."""
    dead_exchange = exchange(channel, "direct")
    dead = bound(channel, dead_exchange, "key")
    source = exchange(channel, "direct")
    name = queue(channel, {"x-dead-letter-exchange": dead_exchange})
    channel.queue_bind(name, source, "key")
    properties = BasicProperties(
        headers={"mine": 1}, delivery_mode=DeliveryMode.Persistent, message_id="id"
    )
    channel.basic_publish(source, "key", b"body", properties)
    held = get_soon(channel, name, auto_ack=False)
    if how == "reject":
        channel.basic_reject(held.delivery_tag, requeue=False)
    else:
        channel.basic_nack(held.delivery_tag, requeue=False)
    message = get_soon(channel, dead)
    assert (message.body, message.exchange, message.routing_key) == (b"body", dead_exchange, "key")
    assert (message.properties.message_id, message.properties.delivery_mode) == ("id", 2)
    assert not message.redelivered
    assert deaths(message) == [
        {
            "count": 1,
            "reason": "rejected",
            "queue": name,
            "exchange": source,
            "routing-keys": ["key"],
        }
    ]
    dead_headers = headers(message.properties)
    assert dead_headers["mine"] == 1
    assert dead_headers["x-first-death-reason"] == "rejected"
    assert dead_headers["x-first-death-queue"] == name
    assert dead_headers["x-first-death-exchange"] == source
    assert "time" in dead_headers["x-death"][0]


@pytest.mark.usefixtures("ours_alone")
def test_the_last_death_is_in_the_headers(channel: BlockingChannel) -> None:
    """H11: x-last-death-*, of RabbitMQ since 3.13, beside x-first-death-*."""
    last = queue(channel)
    second = queue(channel, dead_lettering(last, {"x-message-ttl": 100}))
    first = queue(channel, dead_lettering(second))
    channel.basic_publish("", first, b"x")
    reject(channel, first)
    found = headers(get_soon(channel, last).properties)
    assert [found[f"x-first-death-{part}"] for part in ("reason", "queue", "exchange")] == [
        "rejected",
        first,
        "",
    ]
    assert [found[f"x-last-death-{part}"] for part in ("reason", "queue", "exchange")] == [
        "expired",
        second,
        "",
    ]


def test_a_second_death_for_one_reason_is_counted(channel: BlockingChannel) -> None:
    """H11: one entry for a queue and reason, the newest first, the first death unchanged."""
    second = queue(channel)
    first = unique()
    channel.queue_declare(first, exclusive=True, arguments=dead_lettering(second))
    retry = queue(channel, dead_lettering(first))
    channel.basic_publish("", first, b"x")
    for _ in range(2):
        reject(channel, first)
        message = get_soon(channel, second)
        channel.basic_publish("", retry, message.body, message.properties)
        reject(channel, retry)
    message = get_soon(channel, first)
    assert [(entry["queue"], entry["count"]) for entry in deaths(message)] == [
        (retry, 2),
        (first, 2),
    ]
    assert headers(message.properties)["x-first-death-queue"] == first


def test_the_original_keys_are_kept_without_a_dead_letter_key(channel: BlockingChannel) -> None:
    """H09, H11: the keys of CC and BCC are kept too, but nothing shows that there was a BCC."""
    dead_exchange = exchange(channel, "direct")
    by_key = {key: bound(channel, dead_exchange, key) for key in ("to", "cc", "bcc")}
    name = queue(channel, {"x-dead-letter-exchange": dead_exchange})
    source = exchange(channel, "direct")
    channel.queue_bind(name, source, "to")
    properties = BasicProperties(headers={"CC": ["cc"], "BCC": ["bcc"]})
    channel.basic_publish(source, "to", b"x", properties)
    reject(channel, name)
    for name in by_key.values():
        message = get_soon(channel, name)
        assert deaths(message)[0]["routing-keys"] == ["to", "cc"]
        assert "BCC" not in headers(message.properties)


def test_a_dead_letter_key_replaces_all_keys(channel: BlockingChannel) -> None:
    """H09: CC is gone from the message."""
    dead_exchange = exchange(channel, "direct")
    dead, cc = bound(channel, dead_exchange, "dead"), bound(channel, dead_exchange, "cc")
    name = queue(
        channel,
        {"x-dead-letter-exchange": dead_exchange, "x-dead-letter-routing-key": "dead"},
    )
    channel.basic_publish("", name, b"x", BasicProperties(headers={"CC": ["cc"]}))
    reject(channel, name)
    message = get_soon(channel, dead)
    assert message.routing_key == "dead"
    assert "CC" not in headers(message.properties)
    assert ready(channel, cc) == 0


def test_a_missing_dead_letter_exchange_drops(channel: BlockingChannel) -> None:
    """H09: silently; it may be made later."""
    missing = unique()
    name = queue(channel, {"x-dead-letter-exchange": missing})
    channel.basic_publish("", name, b"dropped")
    reject(channel, name)
    channel.exchange_declare(missing, "fanout")
    dead = bound(channel, missing)
    channel.basic_publish("", name, b"kept")
    reject(channel, name)
    assert get_soon(channel, dead).body == b"kept"
    channel.exchange_delete(missing)


def test_without_a_dead_letter_exchange_a_rejected_message_is_dropped(
    channel: BlockingChannel,
) -> None:
    """F05."""
    name = queue(channel)
    channel.basic_publish("", name, b"x")
    reject(channel, name)
    assert drain(channel, name) == []


def test_an_automatic_cycle_is_cut(channel: BlockingChannel) -> None:
    """H12: a message that expired all the way round is dropped where it would begin again."""
    first, second = unique(), unique()
    channel.queue_declare(
        first, exclusive=True, arguments=dead_lettering(second, {"x-message-ttl": 100})
    )
    channel.queue_declare(
        second, exclusive=True, arguments=dead_lettering(first, {"x-message-ttl": 1000})
    )
    channel.basic_publish("", first, b"x")
    wait_until_ready(channel, second, 1)
    wait_until_ready(channel, second, 0)
    watch = queue(channel, {"x-message-ttl": 500})
    channel.basic_publish("", watch, b"")
    while ready(channel, watch):
        assert ready(channel, first) == 0


def test_a_queue_that_is_its_own_dead_letter_target_drops_what_expires(
    channel: BlockingChannel,
) -> None:
    """H12."""
    name = unique()
    arguments = dead_lettering(name, {"x-message-ttl": 100})
    channel.queue_declare(name, exclusive=True, arguments=arguments)
    channel.basic_publish("", name, b"x")
    wait_until_ready(channel, name, 0)


def test_a_cycle_with_a_rejection_goes_on(channel: BlockingChannel) -> None:
    """H12: it is how retries are built."""
    work, wait = unique(), unique()
    channel.queue_declare(work, exclusive=True, arguments=dead_lettering(wait))
    channel.queue_declare(
        wait, exclusive=True, arguments=dead_lettering(work, {"x-message-ttl": 100})
    )
    channel.basic_publish("", work, b"x")
    for round_ in range(3):
        message = get_soon(channel, work, auto_ack=False)
        assert {entry["queue"]: entry["count"] for entry in deaths(message)} == (
            {work: round_, wait: round_} if round_ else {}
        )
        channel.basic_reject(message.delivery_tag, requeue=False)


def test_a_dead_letter_goes_to_all_that_are_bound(channel: BlockingChannel) -> None:
    """H09, E06."""
    dead_exchange = exchange(channel, "fanout")
    targets = [bound(channel, dead_exchange) for _ in range(3)]
    name = queue(channel, {"x-dead-letter-exchange": dead_exchange})
    channel.basic_publish("", name, b"x")
    reject(channel, name)
    assert [get_soon(channel, target).body for target in targets] == [b"x"] * 3


def test_a_delay_is_built_from_ttl_and_dead_letters(channel: BlockingChannel) -> None:
    """H15."""
    work = queue(channel)
    delay = queue(channel, dead_lettering(work, {"x-message-ttl": 300}))
    inbox = Inbox(channel, work, auto_ack=True)
    channel.basic_publish("", delay, b"later")
    channel.basic_publish("", work, b"now")
    assert [message.body for message in inbox.wait_for(2)] == [b"now", b"later"]


@pytest.mark.usefixtures("ours_alone")
def test_a_delivery_limit_dead_letters_what_comes_back_too_often(
    channel: BlockingChannel,
) -> None:
    """D26, C103, H10: reason delivery_limit."""
    dead = queue(channel)
    name = queue(channel, dead_lettering(dead, {"x-delivery-limit": 2}))
    channel.basic_publish("", name, b"poison")
    inbox = Inbox(channel, name)
    for count in range(1, 4):
        message = inbox.wait_for(count)[-1]
        assert message.redelivered == (count > 1)
        channel.basic_nack(message.delivery_tag, requeue=True)
    message = get_soon(channel, dead)
    assert (message.body, deaths(message)[0]["reason"]) == (b"poison", "delivery_limit")
    assert len(inbox.received) == 3


@pytest.mark.usefixtures("ours_alone")
def test_without_a_delivery_limit_a_message_comes_back_as_often_as_it_is_requeued(
    channel: BlockingChannel,
) -> None:
    """D26."""
    name = queue(channel)
    channel.basic_publish("", name, b"again")
    inbox = Inbox(channel, name)
    for count in range(1, 41):
        channel.basic_nack(inbox.wait_for(count)[-1].delivery_tag, requeue=True)
    inbox.wait_for(41)


def test_a_delivery_limit_counts_across_restarts(broker: BrokerProcess) -> None:
    """D26, C103: a kill included."""
    arguments = dead_lettering("dead", {"x-delivery-limit": 2})
    with session(broker.url) as connection:
        connection.channel().queue_declare("dead", durable=True)
        connection.channel().queue_declare("limited", durable=True, arguments=arguments)
        confirming(connection).basic_publish("", "limited", b"poison", PERSISTENT)
    for is_killed in (False, True, False):
        with session(broker.url) as connection:
            held = get_soon(connection.channel(), "limited", auto_ack=False)
            assert held.body == b"poison"
            # What is confirmed behind the delivery is on disk, and so the delivery is.
            confirming(connection).basic_publish("", "dead", b"mark", PERSISTENT)
            if is_killed:
                broker.kill()
        broker.restart()
    with session(broker.url) as connection:
        channel = connection.channel()
        wait_until_ready(channel, "dead", 4)
        assert ready(channel, "limited") == 0


def test_messages_expire_while_the_broker_is_down(broker: BrokerProcess) -> None:
    """H02, H13: and are dead-lettered when it is back."""
    with session(broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare("dead", durable=True)
        channel.queue_declare("first", durable=True, arguments=dead_lettering("dead"))
        confirms = confirming(connection)
        for body, expiration in ((b"stays", None), (b"expires", "1500")):
            properties = BasicProperties(
                delivery_mode=DeliveryMode.Persistent, expiration=expiration
            )
            confirms.basic_publish("", "first", body, properties)
    broker.restart()
    with session(broker.url) as connection:
        channel = connection.channel()
        wait_until_ready(channel, "dead", 1)
        assert bodies(channel, "first") == [b"stays"]
        message = get_soon(channel, "dead")
        assert (message.body, deaths(message)[0]["original-expiration"]) == (b"expires", "1500")


def test_dead_letters_survive_a_kill_in_one_queue_or_the_other(broker: BrokerProcess) -> None:
    """H13: never in both, never in neither."""
    published = [str(number).encode() for number in range(300)]
    with session(broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare("dead", durable=True)
        arguments = dead_lettering("dead", {"x-message-ttl": 400})
        channel.queue_declare("first", durable=True, arguments=arguments)
        confirms = confirming(connection)
        for body in published:
            confirms.basic_publish("", "first", body, PERSISTENT)
        wait_until(channel, lambda: ready(channel, "dead") > 0)
        broker.kill()
    broker.start()
    with session(broker.url) as connection:
        channel = connection.channel()
        wait_until_ready(channel, "dead", len(published))
        assert sorted(bodies(channel, "dead")) == sorted(published)


def test_a_dead_letter_outlives_its_queue_and_a_kill(broker: BrokerProcess) -> None:
    """H13: the deletion is on disk when it is answered, and so is what had left the queue."""
    with session(broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare("dead", durable=True)
        channel.queue_declare("first", durable=True, arguments=dead_lettering("dead"))
        confirming(connection).basic_publish("", "first", b"x", PERSISTENT)
        message = get_soon(channel, "first", auto_ack=False)
        channel.basic_reject(message.delivery_tag, requeue=False)
        channel.queue_delete("first")
        broker.kill()
    broker.start()
    with session(broker.url) as connection:
        channel = connection.channel()
        wait_until_ready(channel, "dead", 1)
        assert bodies(channel, "dead") == [b"x"]


def test_two_connections_may_dead_letter_to_one_queue(
    connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    """H09."""
    dead = queue(channel)
    for on in (channel, connection.channel()):
        name = queue(on, dead_lettering(dead))
        on.basic_publish("", name, b"x")
        reject(on, name)
    wait_until_ready(channel, dead, 2)


def test_a_dead_letter_reaches_a_waiting_consumer_at_once(channel: BlockingChannel) -> None:
    """H10: though nothing else happens that would wake the broker."""
    dead = queue(channel)
    name = queue(channel, dead_lettering(dead, {"x-max-length": 1}))
    inbox = Inbox(channel, dead, auto_ack=True)
    channel.basic_publish("", name, b"oldest")
    oldest = get_soon(channel, name, auto_ack=False)
    channel.basic_publish("", name, b"newest")
    wait_until_ready(channel, name, 1)
    channel.basic_nack(oldest.delivery_tag, requeue=True)
    [message] = inbox.wait_for(1)
    assert message.body == b"oldest"
