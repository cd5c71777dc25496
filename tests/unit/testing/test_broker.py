"""The broker in the test's process: crashes, virtual time, and what is left when it ends."""

import errno
import itertools
import logging
import os
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import suppress

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError
from pika.spec import Basic

from amqpstore_server.broker.errors import NotFoundError
from amqpstore_tools.testing.broker import BrokerFailedError, MemoryBroker

Open = Callable[..., BlockingChannel]


@pytest.fixture
def open_channel() -> Generator[Open]:
    """Connect to a broker, and open a channel; the connection is closed with the test."""
    connections: list[pika.BlockingConnection] = []

    def opener(broker: MemoryBroker, options: str = "") -> BlockingChannel:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url + options))
        connections.append(connection)
        return connection.channel()

    yield opener
    for connection in connections:
        # Many of them were lost, and do not know it yet.
        with suppress(AMQPError):
            connection.close()


def publish(channel: BlockingChannel, queue: str, body: bytes = b"one") -> None:
    channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))


def tag_of(method: Basic.GetOk | None) -> int:
    """The delivery tag of what `basic_get` returned."""
    assert method is not None
    assert method.delivery_tag is not None
    return method.delivery_tag


def test_a_confirmed_message_survives_crash_and_reopen(
    amqp_broker: MemoryBroker, open_channel: Open
) -> None:
    channel = open_channel(amqp_broker)
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True)
    publish(channel, "orders")
    url = amqp_broker.url
    amqp_broker.crash()
    with pytest.raises(AMQPError):
        channel.queue_declare("orders", passive=True)
    with pytest.raises(AMQPError):
        open_channel(amqp_broker)
    amqp_broker.reopen()
    assert amqp_broker.url == url
    assert amqp_broker.bodies("orders") == [b"one"]
    method, _, body = open_channel(amqp_broker).basic_get("orders")
    assert method is not None
    assert (body, method.redelivered) == (b"one", False)


def test_what_was_not_synced_is_gone_after_a_crash(
    amqp_broker: MemoryBroker, open_channel: Open
) -> None:
    channel = open_channel(amqp_broker)
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True)
    publish(channel, "orders", b"confirmed")
    amqp_broker.crash_at_next_sync()
    with pytest.raises(AMQPError):
        publish(channel, "orders", b"not confirmed")
    amqp_broker.reopen()
    assert amqp_broker.bodies("orders") == [b"confirmed"]
    assert amqp_broker.survived == "nothing unsynced"


def test_what_was_not_synced_may_survive_as_the_seed_says(
    amqp_broker_factory: Callable[..., MemoryBroker], open_channel: Open
) -> None:
    def survivors(seed: int) -> tuple[bytes, ...]:
        broker = amqp_broker_factory()
        channel = open_channel(broker)
        channel.confirm_delivery()
        channel.queue_declare("orders", durable=True)
        publish(channel, "orders", b"confirmed")
        broker.crash_at_next_sync(seed)
        with pytest.raises(AMQPError):
            publish(channel, "orders", b"not confirmed")
        broker.reopen()
        assert broker.survived
        found = tuple(broker.bodies("orders"))
        broker.close()
        return found

    seeds = range(8)
    first = [survivors(seed) for seed in seeds]
    assert set(first) == {(b"confirmed",), (b"confirmed", b"not confirmed")}
    assert [survivors(seed) for seed in seeds] == first


def test_what_was_confirmed_under_load_survives_every_crash(amqp_broker: MemoryBroker) -> None:
    confirmed: set[bytes] = set()
    has_confirmed = threading.Event()

    def publish_until_lost(client: int) -> None:
        with suppress(AMQPError):
            channel = pika.BlockingConnection(pika.URLParameters(amqp_broker.url)).channel()
            channel.confirm_delivery()
            channel.queue_declare("orders", durable=True)
            for place in itertools.count():
                body = f"{crash}.{client}.{place}".encode()
                publish(channel, "orders", body)
                confirmed.add(body)
                has_confirmed.set()

    for crash in range(6):
        clients = [threading.Thread(target=publish_until_lost, args=(number,)) for number in (1, 2)]
        for client in clients:
            client.start()
        assert has_confirmed.wait(20)
        has_confirmed.clear()
        if crash % 2:
            amqp_broker.crash(seed=crash)
        else:
            amqp_broker.crash_at_next_sync(seed=crash)
        for client in clients:
            client.join(20)
            assert not client.is_alive()
        amqp_broker.reopen()
        assert confirmed <= set(amqp_broker.bodies("orders"))


def test_a_transaction_that_was_not_committed_is_gone(
    amqp_broker: MemoryBroker, open_channel: Open
) -> None:
    channel = open_channel(amqp_broker)
    channel.queue_declare("orders", durable=True)
    channel.tx_select()
    publish(channel, "orders", b"committed")
    channel.tx_commit()
    publish(channel, "orders", b"not committed")
    amqp_broker.crash()
    amqp_broker.reopen()
    assert amqp_broker.bodies("orders") == [b"committed"]


def test_an_ack_may_be_undone_until_time_has_passed(
    amqp_broker: MemoryBroker, open_channel: Open
) -> None:
    channel = open_channel(amqp_broker)
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True)
    for body in (b"one", b"two"):
        publish(channel, "orders", body)
    method, _, _ = channel.basic_get("orders")
    channel.basic_ack(tag_of(method))
    amqp_broker.advance(0.1)
    method, _, _ = channel.basic_get("orders", auto_ack=True)
    assert method is not None
    assert amqp_broker.messages("orders") == 0
    amqp_broker.crash()
    amqp_broker.reopen()
    assert amqp_broker.bodies("orders") == [b"two"]


def test_messages_expire_by_advance_and_become_dead_letters(
    amqp_broker: MemoryBroker, open_channel: Open
) -> None:
    channel = open_channel(amqp_broker)
    channel.queue_declare("dead", durable=True)
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    week_ms = 7 * 86_400_000
    arguments = {"x-message-ttl": week_ms, **to_dead}
    channel.queue_declare("orders", durable=True, arguments=arguments)
    publish(channel, "orders")
    amqp_broker.advance(week_ms / 1000 - 0.001)
    assert (amqp_broker.messages("orders"), amqp_broker.messages("dead")) == (1, 0)
    amqp_broker.advance(0.001)
    assert (amqp_broker.messages("orders"), amqp_broker.messages("dead")) == (0, 1)
    amqp_broker.crash()
    amqp_broker.reopen()
    assert (amqp_broker.messages("orders"), amqp_broker.messages("dead")) == (0, 1)
    _, properties, _ = open_channel(amqp_broker).basic_get("dead")
    assert properties is not None
    assert properties.headers is not None
    assert "'reason': 'expired'" in str(properties.headers["x-death"])


def test_time_goes_from_one_thing_that_is_due_to_the_next(
    amqp_broker: MemoryBroker, open_channel: Open
) -> None:
    """A message that goes around twenty queues, an hour in each, in one advance."""
    channel = open_channel(amqp_broker)
    for place in range(20):
        arguments = {
            "x-message-ttl": 3_600_000,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": f"hour{place + 1}",
        }
        channel.queue_declare(f"hour{place}", durable=True, arguments=arguments)
    channel.queue_declare("hour20", durable=True)
    publish(channel, "hour0")
    before = amqp_broker.now
    amqp_broker.advance(19.5 * 3600)
    assert amqp_broker.messages("hour19") == 1
    amqp_broker.advance(0.5 * 3600)
    assert amqp_broker.messages("hour20") == 1
    assert amqp_broker.now - before == pytest.approx(20 * 3600)


@pytest.mark.parametrize("ms", [1, 7, 100, 1100, 1300, 3333, 86_399_999])
def test_what_is_due_at_the_end_of_an_advance_is_done(
    ms: int, amqp_broker: MemoryBroker, open_channel: Open
) -> None:
    channel = open_channel(amqp_broker)
    channel.queue_declare("orders", durable=True, arguments={"x-message-ttl": ms})
    for _ in range(20):
        publish(channel, "orders")
        assert amqp_broker.messages("orders") == 1
        amqp_broker.advance(ms / 1000)
        assert amqp_broker.messages("orders") == 0


def test_a_delayed_message_is_delivered_when_it_is_due(
    amqp_broker: MemoryBroker, open_channel: Open
) -> None:
    channel = open_channel(amqp_broker)
    delayed = {"x-delayed-type": "direct"}
    channel.exchange_declare("later", "x-delayed-message", durable=True, arguments=delayed)
    channel.queue_declare("orders", durable=True)
    channel.queue_bind("orders", "later", "key")
    properties = pika.BasicProperties(delivery_mode=2, headers={"x-delay": 30_000})
    channel.basic_publish("later", "key", b"one", properties)
    amqp_broker.advance(29.999)
    assert amqp_broker.messages("orders") == 0
    amqp_broker.advance(0.001)
    assert amqp_broker.bodies("orders") == [b"one"]


def test_a_queue_that_nobody_uses_expires(amqp_broker: MemoryBroker, open_channel: Open) -> None:
    open_channel(amqp_broker).queue_declare("orders", arguments={"x-expires": 60_000})
    amqp_broker.advance(59.9)
    assert amqp_broker.queues() == ["orders"]
    amqp_broker.advance(0.1)
    assert amqp_broker.queues() == []
    with pytest.raises(NotFoundError):
        amqp_broker.messages("orders")


def test_time_passes_while_the_power_is_off(amqp_broker: MemoryBroker, open_channel: Open) -> None:
    channel = open_channel(amqp_broker)
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True, arguments={"x-message-ttl": 60_000})
    publish(channel, "orders")
    amqp_broker.crash()
    amqp_broker.advance(30)
    amqp_broker.reopen()
    assert amqp_broker.messages("orders") == 1
    amqp_broker.crash()
    amqp_broker.advance(30)
    amqp_broker.reopen()
    assert amqp_broker.messages("orders") == 0


def test_clients_get_heartbeats_and_count_as_alive(amqp_broker: MemoryBroker) -> None:
    with socket.create_connection(("127.0.0.1", amqp_broker.port), timeout=20) as client:
        # Protocol header; start-ok, tune-ok with heartbeats of 10 s, and open, section 4.2.2.
        frames = client.makefile("rwb")
        frames.write(b"AMQP\0\0\x09\x01")
        for payload in (
            b"\0\x0a\0\x0b" + bytes(4) + b"\x05PLAIN" + b"\0\0\0\x0c\0guest\0guest" + b"\x05en_US",
            b"\0\x0a\0\x1f\x07\xff\0\x02\0\0\0\x0a",
            b"\0\x0a\0\x28\x01/\0\0",
        ):
            frames.write(b"\x01\0\0" + len(payload).to_bytes(4, "big") + payload + b"\xce")
        frames.flush()

        def next_frame() -> bytes:
            header = frames.read(7)
            return bytes(header + frames.read(int.from_bytes(header[3:], "big") + 1))

        while not next_frame()[7:].startswith(b"\0\x0a\0\x29"):
            pass  # open-ok is the last of the handshake
        for _ in range(3):
            amqp_broker.advance(3600)
            assert next_frame() == b"\x08\0\0\0\0\0\0\xce"
        frames.close()


def test_an_idle_connection_outlives_a_day(amqp_broker: MemoryBroker, open_channel: Open) -> None:
    channel = open_channel(amqp_broker, "?heartbeat=5")
    for _ in range(3):
        amqp_broker.advance(86_400)
    channel.queue_declare("orders")
    assert amqp_broker.queues() == ["orders"]


def test_what_is_delivered_to_a_consumer_is_not_counted(
    amqp_broker: MemoryBroker, open_channel: Open
) -> None:
    channel = open_channel(amqp_broker)
    channel.queue_declare("orders")
    publish(channel, "orders", b"one")
    publish(channel, "orders", b"two")
    method, _, _ = channel.basic_get("orders")
    assert amqp_broker.messages("orders") == 1
    assert amqp_broker.bodies("orders") == [b"two"]
    channel.basic_nack(tag_of(method))
    assert amqp_broker.bodies("orders") == [b"one", b"two"]
    assert amqp_broker.bodies("orders") == [b"one", b"two"]


def test_two_brokers_at_once_know_nothing_of_each_other(
    amqp_broker: MemoryBroker,
    amqp_broker_factory: Callable[..., MemoryBroker],
    open_channel: Open,
) -> None:
    other = amqp_broker_factory()
    for broker, body in ((amqp_broker, b"here"), (other, b"there")):
        channel = open_channel(broker)
        channel.confirm_delivery()
        channel.queue_declare("orders", durable=True, arguments={"x-message-ttl": 1000})
        publish(channel, "orders", body)
    other.crash()
    assert amqp_broker.bodies("orders") == [b"here"]
    amqp_broker.advance(1)
    other.reopen()
    assert amqp_broker.bodies("orders") == []
    assert other.bodies("orders") == [b"there"]
    assert "connection accepted" in other.log


def test_settings_are_those_of_the_configuration(
    amqp_broker_factory: Callable[..., MemoryBroker], open_channel: Open
) -> None:
    broker = amqp_broker_factory(max_message_bytes=10)
    channel = open_channel(broker)
    channel.confirm_delivery()
    with pytest.raises(AMQPError, match=r"311|larger|max"):
        publish(channel, "orders", bytes(11))


def test_nothing_is_left_when_it_ends() -> None:
    MemoryBroker().close()  # what is made once a process is there from now on
    threads_before = set(threading.enumerate())
    descriptors_before = os.listdir("/proc/self/fd")
    with MemoryBroker() as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("orders", durable=True)
        publish(channel, "orders")
        broker.crash()
        broker.reopen()
        silent = socket.create_connection(("127.0.0.1", broker.port), timeout=20)
    with pytest.raises(AMQPError):
        channel.queue_declare("orders")
    with silent:
        assert silent.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", broker.port), timeout=20)
    assert len(os.listdir("/proc/self/fd")) == len(descriptors_before)
    left = set(threading.enumerate()) - threads_before
    # trio keeps its idle workers for ten seconds, for the next use of one.
    assert [thread.name for thread in left if not thread.name.startswith("Trio")] == []


def test_publishers_wait_while_the_disk_is_nearly_full_as_anywhere(
    amqp_broker: MemoryBroker, open_channel: Open
) -> None:
    notices: list[str] = []
    connection = pika.BlockingConnection(pika.URLParameters(amqp_broker.url))
    connection.add_on_connection_blocked_callback(
        lambda _, method: notices.append(method.method.reason)
    )
    connection.add_on_connection_unblocked_callback(lambda *_: notices.append("go on"))
    publisher = connection.channel()
    publisher.queue_declare("orders", durable=True)
    publish(publisher, "orders", bytes(100_000))
    consumer = open_channel(amqp_broker)
    amqp_broker.disk.capacity_bytes = 1_000_000
    assert amqp_broker.messages("orders") == 1
    used = 1_000_000 - amqp_broker.disk.free_bytes("/")
    amqp_broker.disk.capacity_bytes = used * 100 // 92  # 8 % are free
    publish(publisher, "orders", b"it waits")
    while not notices:
        connection.process_data_events(0.1)
    assert "disk" in notices[0]
    assert amqp_broker.bodies("orders") == [bytes(100_000)]
    amqp_broker.disk.capacity_bytes = 1_000_000
    while notices[-1] != "go on":
        connection.process_data_events(0.1)
    assert amqp_broker.messages("orders") == 2
    method, _, _ = consumer.basic_get("orders", auto_ack=True)
    assert method is not None
    connection.close()


def test_a_disk_that_gets_full_blocks_publishers_before_it_is(
    amqp_broker: MemoryBroker, open_channel: Open
) -> None:
    publisher = open_channel(amqp_broker, "?blocked_connection_timeout=1")
    publisher.confirm_delivery()
    publisher.queue_declare("orders", durable=True)
    amqp_broker.disk.capacity_bytes = 300_000
    with pytest.raises(AMQPError):  # it was blocked for a second
        for _ in range(1000):
            publish(publisher, "orders", bytes(500))
    assert "publishers are blocked: the disk is nearly full" in amqp_broker.log
    amqp_broker.crash()
    amqp_broker.reopen()
    assert amqp_broker.disk.capacity_bytes == 300_000
    consumer = open_channel(amqp_broker)
    taken = 0
    while consumer.basic_get("orders", auto_ack=True)[0]:
        taken += 1
    assert 400 < taken < 600


def fail(*_: object) -> None:
    raise OSError(errno.EIO, "broken")


def test_a_disk_that_fails_fails_the_test_and_shows_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = MemoryBroker()
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True)
    monkeypatch.setattr(broker.disk, "sync_file", fail)
    with pytest.raises(AMQPError):
        publish(channel, "orders")
    with pytest.raises(BrokerFailedError, match=r"(?s)DurabilityError.*connection accepted"):
        broker.messages("orders")
    with pytest.raises(BrokerFailedError):
        broker.crash()
    with pytest.raises(BrokerFailedError):
        broker.close()


def test_an_applications_log_has_none_of_the_brokers_lines() -> None:
    found: list[logging.LogRecord] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record)

    logger = logging.getLogger("amqpstore_server")
    before = logger.level, logger.propagate, logger.handlers[:]
    handler = Handler()
    logging.getLogger().addHandler(handler)
    try:
        with MemoryBroker() as broker, MemoryBroker():
            pika.BlockingConnection(pika.URLParameters(broker.url)).close()
            assert broker.queues() == []
            assert "connection accepted" in broker.log
    finally:
        logging.getLogger().removeHandler(handler)
    assert [one for one in found if one.name.startswith("amqpstore")] == []
    assert (logger.level, logger.propagate, logger.handlers) == before


def test_a_fault_in_the_log_fails_the_test(amqp_broker: MemoryBroker) -> None:
    broker = MemoryBroker()

    def fail() -> int:
        raise ZeroDivisionError("a fault of ours")

    broker._app.users.is_known = lambda *_: fail() == 0  # type: ignore[method-assign]
    with pytest.raises(AMQPError):
        pika.BlockingConnection(pika.URLParameters(broker.url))
    assert amqp_broker.queues() == broker.queues() == []
    with pytest.raises(BrokerFailedError, match=r"(?s)had an internal error.*a fault of ours"):
        broker.close()


def test_what_cannot_be_done_now_is_refused(amqp_broker: MemoryBroker) -> None:
    with pytest.raises(RuntimeError, match="crash it first"):
        amqp_broker.reopen()
    with pytest.raises(ValueError, match="time moves forward"):
        amqp_broker.advance(-1)
    amqp_broker.crash()
    for call in (amqp_broker.crash, amqp_broker.queues, amqp_broker.crash_at_next_sync):
        with pytest.raises(RuntimeError, match="reopen it first"):
            call()
