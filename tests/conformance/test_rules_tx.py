"""Local transactions (rules I; class tx)."""

import struct

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.broker_process import BrokerProcess
from tests.conformance.topology import (
    bodies,
    bound,
    confirming,
    exchange,
    queue,
    session,
    texts,
    unique,
)
from tests.conformance.wire_client import (
    BASIC_RETURN,
    TX_COMMIT,
    TX_COMMIT_OK,
    TX_ROLLBACK,
    TX_ROLLBACK_OK,
    TX_SELECT,
    TX_SELECT_OK,
    WireClient,
    body,
    header,
    method,
    publish,
    publish_method,
)
from tests.interop.pika_client import (
    PERSISTENT,
    Inbox,
    Received,
    channel_closed_with,
    connect,
    get,
    ready,
    settle,
    wait_until_ready,
)


@pytest.fixture
def tx(connection: pika.BlockingConnection) -> BlockingChannel:
    """A transacted channel of the same connection as `channel`."""
    made = connection.channel()
    made.tx_select()
    return made


def take(channel: BlockingChannel, name: str, count: int) -> list[Received]:
    """Get messages without acking them."""
    messages = [get(channel, name) for _ in range(count)]
    return [message for message in messages if message is not None]


def publish_texts(channel: BlockingChannel, name: str, *messages: str) -> None:
    for text in messages:
        channel.basic_publish("", name, text.encode(), PERSISTENT)


@pytest.mark.parametrize("what", [TX_COMMIT, TX_ROLLBACK], ids=["commit", "rollback"])
def test_a_channel_that_is_not_transacted_has_nothing_to_end(
    url: str, what: tuple[int, int]
) -> None:
    """I01, C114, C115: 406."""
    with WireClient.connected(url, channels=1) as client:
        client.send(method(1, what))
        client.expect_channel_close(1, 406)


def test_select_may_be_repeated_and_commit_of_nothing_succeeds(tx: BlockingChannel) -> None:
    """I01."""
    tx.tx_select()
    tx.tx_commit()
    tx.tx_rollback()
    tx.tx_commit()


def test_a_publish_is_invisible_until_commit(channel: BlockingChannel, tx: BlockingChannel) -> None:
    """I08, I13: and then there, in order."""
    name = queue(channel)
    inbox = Inbox(channel, name, auto_ack=True)
    publish_texts(tx, name, "a", "b", "c")
    settle(tx)
    assert not inbox.received
    tx.tx_commit()
    inbox.wait_for(3)
    assert inbox.bodies == [b"a", b"b", b"c"]


def test_commit_ok_means_that_effects_are_visible(
    channel: BlockingChannel, tx: BlockingChannel
) -> None:
    """I13, C158: to every other channel."""
    name = queue(channel)
    for count in range(1, 11):
        publish_texts(tx, name, "x")
        tx.tx_commit()
        assert ready(channel, name) == count


def test_a_rollback_forgets_publishes(channel: BlockingChannel, tx: BlockingChannel) -> None:
    """I02, I08: what follows is a new transaction."""
    name = queue(channel)
    publish_texts(tx, name, "forgotten")
    tx.tx_rollback()
    publish_texts(tx, name, "kept")
    tx.tx_commit()
    assert texts(channel, name) == ["kept"]


@pytest.mark.parametrize("multiple", [False, True], ids=["each", "multiple"])
def test_acks_count_from_the_commit(
    channel: BlockingChannel, tx: BlockingChannel, multiple: bool
) -> None:
    """I02: until then the channel holds the messages."""
    name = queue(channel)
    publish_texts(channel, name, "a", "b", "c")
    wait_until_ready(channel, name, 3)
    messages = take(tx, name, 3)
    if multiple:
        tx.basic_ack(messages[1].delivery_tag, multiple=True)
    else:
        tx.basic_ack(messages[0].delivery_tag)
        tx.basic_ack(messages[1].delivery_tag)
    tx.tx_commit()
    tx.close()
    assert texts(channel, name) == ["c"]


def test_a_rollback_of_acks_leaves_the_messages_with_the_client(
    channel: BlockingChannel, tx: BlockingChannel
) -> None:
    """I06, I07: not requeued, and to be acked, rejected or recovered later."""
    name = queue(channel)
    publish_texts(channel, name, "a", "b", "c")
    wait_until_ready(channel, name, 3)
    messages = take(tx, name, 3)
    for message in messages:
        tx.basic_ack(message.delivery_tag)
    tx.tx_rollback()
    assert ready(channel, name) == 0
    tx.basic_ack(messages[0].delivery_tag)
    tx.basic_reject(messages[1].delivery_tag, requeue=True)
    tx.tx_commit()
    assert texts(channel, name) == ["b"]
    tx.basic_recover(requeue=True)
    wait_until_ready(channel, name, 1)
    assert texts(channel, name) == ["c"]


@pytest.mark.parametrize("how", ["reject", "nack"])
@pytest.mark.parametrize("requeue", [True, False], ids=["requeue", "drop"])
def test_rejects_count_from_the_commit(
    channel: BlockingChannel, tx: BlockingChannel, how: str, requeue: bool
) -> None:
    """I03."""
    dead = queue(channel)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    name = queue(channel, arguments)
    publish_texts(channel, name, "x")
    wait_until_ready(channel, name, 1)
    [message] = take(tx, name, 1)
    refuse = tx.basic_reject if how == "reject" else tx.basic_nack
    refuse(message.delivery_tag, requeue=requeue)
    settle(tx)
    assert ready(channel, name) + ready(channel, dead) == 0
    tx.tx_rollback()
    assert ready(channel, name) + ready(channel, dead) == 0
    refuse(message.delivery_tag, requeue=requeue)
    tx.tx_commit()
    wait_until_ready(channel, name if requeue else dead, 1)


def test_acking_twice_in_one_transaction_is_406_at_once(
    channel: BlockingChannel, tx: BlockingChannel
) -> None:
    """C104: it is not left to the commit; and the message is not lost."""
    name = queue(channel)
    publish_texts(channel, name, "x")
    wait_until_ready(channel, name, 1)
    [message] = take(tx, name, 1)
    tx.basic_ack(message.delivery_tag)
    with channel_closed_with(406):
        tx.basic_ack(message.delivery_tag)
        settle(tx)
    wait_until_ready(channel, name, 1)


def test_declares_binds_and_gets_are_not_in_the_transaction(
    channel: BlockingChannel, tx: BlockingChannel
) -> None:
    """I04: they are visible at once, and no rollback takes them back."""
    name, source = unique(), unique()
    tx.queue_declare(name, exclusive=True)
    tx.exchange_declare(source, "fanout", auto_delete=True)
    tx.queue_bind(name, source)
    tx.tx_rollback()
    channel.basic_publish(source, "", b"x")
    wait_until_ready(channel, name, 1)
    assert get(tx, name, auto_ack=True) is not None
    tx.tx_rollback()
    assert ready(channel, name) == 0


def test_routing_is_decided_when_a_message_is_published(
    channel: BlockingChannel, tx: BlockingChannel
) -> None:
    """I05, I09: a binding that goes or comes before the commit changes nothing."""
    source = exchange(channel, "direct")
    early = bound(channel, source, "key")
    tx.basic_publish(source, "key", b"x")
    settle(tx)
    channel.queue_unbind(early, source, "key")
    late = bound(channel, source, "key")
    tx.tx_commit()
    assert bodies(channel, early) == [b"x"]
    assert bodies(channel, late) == []


def test_a_queue_deleted_before_the_commit_gets_nothing_and_the_rest_commits(
    channel: BlockingChannel, tx: BlockingChannel
) -> None:
    """I05."""
    deleted, kept = queue(channel), queue(channel)
    publish_texts(tx, deleted, "nobody's")
    publish_texts(tx, kept, "kept")
    settle(tx)
    channel.queue_delete(deleted)
    tx.tx_commit()
    assert texts(channel, kept) == ["kept"]


def test_an_unknown_exchange_is_found_at_once(
    channel: BlockingChannel, tx: BlockingChannel
) -> None:
    """I10, I11, I20: 404 closes the channel, and nothing of the transaction happens."""
    name = queue(channel)
    publish_texts(tx, name, "uncommitted")
    with channel_closed_with(404):
        tx.basic_publish(unique(), "key", b"x")
        settle(tx)
    assert bodies(channel, name) == []


def test_returns_come_before_commit_ok(url: str, name: str) -> None:
    """I12, E04: during the commit, and the rest of the transaction holds."""
    with WireClient.connected(url, channels=1) as client:
        client.declare_queue(name)
        client.send(method(1, TX_SELECT))
        client.expect(TX_SELECT_OK, 1)
        for key in (name, f"{name}.missing", name):
            client.send(publish_method(1, key, mandatory=True), header(1, 1), body(1, b"x"))
        assert client.ready(name) == 0
        client.send(method(1, TX_COMMIT))
        returned = client.expect(BASIC_RETURN, 1).arguments
        assert struct.unpack_from(">H", returned) == (312,)
        client.expect_content()
        client.expect(TX_COMMIT_OK, 1)
        assert client.ready(name) == 2


def test_a_rolled_back_publish_is_not_returned(url: str, name: str) -> None:
    """I12."""
    with WireClient.connected(url, channels=1) as client:
        client.send(method(1, TX_SELECT))
        client.expect(TX_SELECT_OK, 1)
        client.send(publish_method(1, name, mandatory=True), header(1, 1), body(1, b"x"))
        client.send(method(1, TX_ROLLBACK))
        client.expect(TX_ROLLBACK_OK, 1)
        client.send(method(1, TX_COMMIT))
        client.expect(TX_COMMIT_OK, 1)


@pytest.mark.parametrize("end", ["channel", "connection"])
def test_what_is_not_committed_goes_with_its_channel(
    channel: BlockingChannel, url: str, end: str
) -> None:
    """I20: publishes and acks; the messages are ready again, flagged."""
    name = queue(channel)
    shared = unique()
    channel.queue_declare(shared, auto_delete=True)
    channel.basic_publish("", shared, b"acked, not committed")
    other = connect(url)
    tx = other.channel()
    tx.tx_select()
    [message] = take(tx, shared, 1)
    tx.basic_ack(message.delivery_tag)
    publish_texts(tx, name, "uncommitted")
    settle(tx)
    if end == "channel":
        tx.close()
    other.close()
    wait_until_ready(channel, shared, 1)
    again = get(channel, shared, auto_ack=True)
    assert again is not None
    assert again.redelivered
    assert bodies(channel, name) == []
    channel.queue_delete(shared)


def test_consume_process_publish_commits_or_comes_again(
    channel: BlockingChannel, tx: BlockingChannel
) -> None:
    """I19."""
    source, target = queue(channel), queue(channel)
    publish_texts(channel, source, *map(str, range(6)))
    inbox = Inbox(tx, source)
    for count in range(1, 7):
        message = inbox.wait_for(count)[count - 1]
        tx.basic_publish("", target, message.body)
        tx.basic_ack(message.delivery_tag)
        if int(message.body) % 2:
            tx.tx_commit()
        else:
            tx.tx_rollback()
    tx.close()
    assert texts(channel, target) == ["1", "3", "5"]
    wait_until_ready(channel, source, 3)
    assert texts(channel, source) == ["0", "2", "4"]


def test_transactions_of_two_channels_know_nothing_of_each_other(
    channel: BlockingChannel, connection: pika.BlockingConnection, tx: BlockingChannel
) -> None:
    """I01, I13."""
    name = queue(channel)
    other = connection.channel()
    other.tx_select()
    publish_texts(tx, name, "first")
    publish_texts(other, name, "second")
    settle(tx)
    other.tx_commit()
    tx.tx_rollback()
    assert texts(channel, name) == ["second"]


@pytest.mark.usefixtures("ours_alone")
@pytest.mark.parametrize("together", [True, False], ids=["in one read", "one by one"])
def test_a_queue_that_rejects_a_publish_undoes_the_transaction(
    channel: BlockingChannel, tx: BlockingChannel, together: bool
) -> None:
    """E11, I15, H14: 406 instead of a nack, and nothing of it happens in any queue."""
    full = queue(channel, {"x-max-length": 1, "x-overflow": "reject-publish"})
    roomy = queue(channel)
    publish_texts(tx, roomy, "undone")
    for text in ("fits", "does not fit"):
        publish_texts(tx, full, text)
        if not together:
            settle(tx)
    with channel_closed_with(406):
        tx.tx_commit()
    assert ready(channel, full) == ready(channel, roomy) == 0


def test_a_committed_transaction_survives_a_kill(broker: BrokerProcess) -> None:
    """I13 to I18: publishes to several queues, and acks that cannot come back."""
    with session(broker.url) as connection:
        channel = connection.channel()
        for name in ("source", "a", "b"):
            channel.queue_declare(name, durable=True)
        confirms = confirming(connection)
        for number in range(100):
            confirms.basic_publish("", "source", str(number).encode(), PERSISTENT)
        tx = connection.channel()
        tx.tx_select()
        for message in take(tx, "source", 60):
            tx.basic_publish("", "a", message.body, PERSISTENT)
            tx.basic_publish("", "b", message.body, PERSISTENT)
            tx.basic_ack(message.delivery_tag)
        tx.tx_commit()
        for message in take(tx, "source", 20):
            tx.basic_publish("", "a", message.body, PERSISTENT)
            tx.basic_ack(message.delivery_tag)
        settle(tx)
        broker.kill()
    broker.start()
    with session(broker.url) as connection:
        channel = connection.channel()
        moved = [str(number) for number in range(60)]
        assert texts(channel, "a") == texts(channel, "b") == moved
        assert texts(channel, "source") == [str(number) for number in range(60, 100)]


def test_a_killed_broker_has_all_of_each_transaction_or_nothing(broker: BrokerProcess) -> None:
    """I16, I17, I18: killed with a commit under way."""
    names = ["a", "b", "c"]
    with session(broker.url) as connection:
        for name in names:
            connection.channel().queue_declare(name, durable=True)
    with WireClient.connected(broker.url, channels=1) as client:
        client.send(method(1, TX_SELECT))
        client.expect(TX_SELECT_OK, 1)
        for number in range(30):
            for key in names * 5:
                client.send(publish(1, key, str(number).encode(), b"\x10\x00\x02"))
            client.send(method(1, TX_COMMIT))
            if number < 29:
                client.expect(TX_COMMIT_OK, 1)
        broker.kill()
    broker.start()
    with session(broker.url) as connection:
        seen = [texts(connection.channel(), name) for name in names]
    assert seen[0] == seen[1] == seen[2]
    whole = [str(number) for number in range(30) for _ in range(5)]
    assert seen[0] in (whole[:-5], whole)
