"""kombu: declarative entities, producers and consumers, SimpleQueue, mixins, mailboxes."""

import socket
import threading
from collections.abc import Callable, Generator
from queue import Empty
from typing import Any

import kombu
import pytest
from kombu.common import Broadcast, eventloop
from kombu.mixins import ConsumerMixin, ConsumerProducerMixin
from kombu.pidbox import Mailbox
from kombu.pools import producers, reset

from tests.interop.pika_client import WAIT_S
from tests.interop.relay import Relay

# The published stubs are stricter than kombu about entities and callbacks.
Connection = Any
Message = Any


@pytest.fixture
def kombu_connection(url: str) -> Generator[Connection]:
    with kombu.Connection(url) as connection:
        yield connection


ACCEPTED = ["json", "pickle", "text/plain", "application/data"]


def drain(connection: Connection, queue: Any) -> list[Any]:
    """Get all that is in the queue, on the channel that published it. Returns the bodies."""
    bound = queue(connection.default_channel)
    bodies = []
    while message := bound.get(no_ack=True, accept=ACCEPTED):
        bodies.append(message.payload)
    return bodies


def consume(connection: Connection, queue: kombu.Queue, count: int) -> list[Any]:
    """Consume `count` messages and acknowledge each. Returns the bodies."""
    bodies: list[Any] = []

    def on_message(body: object, message: Message) -> None:
        bodies.append(body)
        message.ack()

    with connection.Consumer([queue], callbacks=[on_message], accept=ACCEPTED):
        while len(bodies) < count:
            connection.drain_events(timeout=WAIT_S)
    return bodies


def test_direct_routing(kombu_connection: Connection, name: str) -> None:
    exchange = kombu.Exchange(name, "direct", durable=False, auto_delete=True)
    images = kombu.Queue(f"{name}.images", exchange, "image", exclusive=True)
    videos = kombu.Queue(f"{name}.videos", exchange, "video", exclusive=True)
    producer = kombu_connection.Producer(serializer="json")
    for kind in ("image", "video", "image"):
        producer.publish(
            {"kind": kind}, exchange=exchange, routing_key=kind, declare=[images, videos]
        )
    assert drain(kombu_connection, images) == [{"kind": "image"}] * 2
    assert drain(kombu_connection, videos) == [{"kind": "video"}]


def test_topic_routing(kombu_connection: Connection, name: str) -> None:
    exchange = kombu.Exchange(name, "topic", durable=False, auto_delete=True)
    patterns = {"one": "stock.*", "many": "stock.#", "end": "#.nyse", "all": "#"}
    queues = {
        kind: kombu.Queue(f"{name}.{kind}", exchange, pattern, exclusive=True)
        for kind, pattern in patterns.items()
    }
    producer = kombu_connection.Producer()
    for queue in queues.values():
        queue(kombu_connection.default_channel).declare()
    for key in ("stock", "stock.usd", "stock.usd.nyse", "bond.nyse", "nyse"):
        producer.publish(key, exchange=exchange, routing_key=key)
    expected = {
        "one": ["stock.usd"],
        "many": ["stock", "stock.usd", "stock.usd.nyse"],
        "end": ["stock.usd.nyse", "bond.nyse", "nyse"],
        "all": ["stock", "stock.usd", "stock.usd.nyse", "bond.nyse", "nyse"],
    }
    for kind, keys in expected.items():
        assert drain(kombu_connection, queues[kind]) == keys


def test_fanout_routing_with_broadcast_queues(url: str, name: str) -> None:
    """Each connection's broadcast queue gets every message."""
    with kombu.Connection(url) as one, kombu.Connection(url) as other:
        exchange = kombu.Exchange(name, "fanout", durable=False, auto_delete=True)
        inboxes: list[tuple[Connection, Any]] = []
        for connection in (one, other):
            queue = Broadcast(exchange=exchange, exclusive=True)
            queue(connection.default_channel).declare()
            inboxes.append((connection, queue))
        one.Producer().publish("news", exchange=exchange, routing_key="ignored")
        for connection, queue in inboxes:
            assert drain(connection, queue) == ["news"]


def test_headers_routing(kombu_connection: Connection, name: str) -> None:
    exchange = kombu.Exchange(name, "headers", durable=False, auto_delete=True)
    wanted = {"x-match": "all", "type": "report", "format": "pdf"}
    queue = kombu.Queue(name, exchange, binding_arguments=wanted, exclusive=True)
    producer = kombu_connection.Producer()
    for format_ in ("pdf", "zip"):
        headers = {"type": "report", "format": format_}
        producer.publish(format_, exchange=exchange, headers=headers, declare=[queue])
    assert drain(kombu_connection, queue) == ["pdf"]


def test_exchanges_bound_to_exchanges(kombu_connection: Connection, name: str) -> None:
    channel = kombu_connection.default_channel
    source: Any = kombu.Exchange(f"{name}.in", "topic", durable=False, auto_delete=True)(channel)
    target: Any = kombu.Exchange(f"{name}.out", "fanout", durable=False, auto_delete=True)(channel)
    source.declare()
    target.declare()
    queue = kombu.Queue(name, kombu.Exchange(f"{name}.out", "fanout", passive=True), exclusive=True)
    queue(channel).declare()
    target.bind_to(source, "to.#")
    producer = kombu_connection.Producer()
    producer.publish("through", exchange=source, routing_key="to.there")
    producer.publish("past", exchange=source, routing_key="from.there")
    assert drain(kombu_connection, queue) == ["through"]


def test_an_alternate_exchange_gets_what_is_not_routed(
    kombu_connection: Connection, name: str
) -> None:
    spare = kombu.Exchange(f"{name}.spare", "fanout", durable=False, auto_delete=True)
    exchange = kombu.Exchange(
        name,
        "direct",
        durable=False,
        auto_delete=True,
        arguments={"alternate-exchange": f"{name}.spare"},
    )
    lost = kombu.Queue(f"{name}.lost", spare, exclusive=True)
    found = kombu.Queue(f"{name}.found", exchange, "known", exclusive=True)
    producer = kombu_connection.Producer()
    for key in ("known", "unknown"):
        producer.publish(key, exchange=exchange, routing_key=key, declare=[lost, found])
    assert drain(kombu_connection, found) == ["known"]
    assert drain(kombu_connection, lost) == ["unknown"]


@pytest.mark.parametrize(
    ("serializer", "compression"),
    [("json", None), ("json", "zlib"), ("pickle", None), ("pickle", "zlib"), ("raw", None)],
)
def test_serializers_and_compression(
    kombu_connection: Connection, name: str, serializer: str, compression: str | None
) -> None:
    queue = kombu.Queue(name, exclusive=True)
    body: Any = b"\x00\xff" * 500 if serializer == "raw" else {"values": list(range(500))}
    kombu_connection.Producer(serializer=serializer).publish(
        body, routing_key=name, declare=[queue], compression=compression
    )
    assert consume(kombu_connection, queue, 1) == [body]


def test_priorities_go_first(kombu_connection: Connection, name: str) -> None:
    queue = kombu.Queue(name, exclusive=True, max_priority=10)
    producer = kombu_connection.Producer()
    for number, priority in enumerate([0, 5, 9, 5, 0, 12]):
        # Above the queue's highest counts as the highest: 12 as 10.
        producer.publish(number, routing_key=name, priority=priority, declare=[queue])
    assert consume(kombu_connection, queue, 6) == [5, 2, 1, 3, 0, 4]


def test_a_message_expires_and_is_dead_lettered(kombu_connection: Connection, name: str) -> None:
    """`expiration` is in seconds in kombu; x-death says where the message died and why."""
    dead = kombu.Queue(f"{name}.dead", exclusive=True)
    queue = kombu.Queue(
        name,
        exclusive=True,
        queue_arguments={
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": f"{name}.dead",
        },
    )
    kombu_connection.Producer().publish(
        "late", routing_key=name, expiration=0.05, declare=[dead, queue]
    )
    deaths: list[dict[str, Any]] = []

    def on_message(_body: object, message: Message) -> None:
        deaths.extend(message.headers["x-death"])
        message.ack()

    with kombu_connection.Consumer([dead], callbacks=[on_message]):
        while not deaths:
            kombu_connection.drain_events(timeout=WAIT_S)
    assert [(death["queue"], death["reason"], death["count"]) for death in deaths] == [
        (name, "expired", 1)
    ]
    assert deaths[0]["original-expiration"] == "50"


def test_queue_limits_given_by_name(kombu_connection: Connection, name: str) -> None:
    """`max_length` drops the oldest; `message_ttl` and `expires` are taken, in seconds."""
    queue = kombu.Queue(name, exclusive=True, max_length=2, message_ttl=600.0, expires=600.0)
    producer = kombu_connection.Producer()
    for number in range(4):
        producer.publish(number, routing_key=name, declare=[queue])
    assert drain(kombu_connection, queue) == [2, 3]


def test_simple_queue(kombu_connection: Connection, name: str) -> None:
    options = {"durable": False, "auto_delete": True}
    with kombu_connection.SimpleQueue(
        name, queue_opts=options, exchange_opts=options, serializer="json"
    ) as queue:
        for number in range(3):
            queue.put({"number": number})
        first = queue.get(timeout=WAIT_S)
        assert first.payload == {"number": 0}
        first.requeue()
        received = [queue.get(timeout=WAIT_S) for _ in range(3)]
        assert sorted(message.payload["number"] for message in received) == [0, 1, 2]
        assert [m.delivery_info["redelivered"] for m in received if m.payload["number"] == 0] == [
            True
        ]
        received[0].ack()
        received[1].reject()
        received[2].ack()
        with pytest.raises(Empty):
            queue.get(timeout=0.1)
        assert queue.qsize() == 0
        queue.put("cleared")
        queue.clear()


def test_simple_buffer(kombu_connection: Connection, name: str) -> None:
    """SimpleBuffer: transient, automatic acknowledgement."""
    with kombu_connection.SimpleBuffer(name) as buffer:
        buffer.put("quick")
        assert buffer.get(timeout=WAIT_S).payload == "quick"


class Worker(ConsumerMixin):
    """Collects bodies up to the last one, across reconnections.

    It does not count them: a message whose ack a lost connection took along comes again.
    """

    def __init__(self, connection: Connection, queue: kombu.Queue, last: Any) -> None:
        self.connection = connection
        self.bodies: list[Any] = []
        self.consuming = threading.Event()
        self.revived = 0
        self._queue = queue
        self._last = last

    def get_consumers(self, Consumer: Any, channel: Any) -> list[Any]:  # noqa: N803
        return [Consumer([self._queue], callbacks=[self.on_task], prefetch_count=10)]

    def on_consume_ready(self, *_arguments: Any, **_keywords: Any) -> None:
        self.consuming.set()

    def on_connection_revived(self) -> None:
        self.revived += 1

    def on_task(self, body: Any, message: Message) -> None:
        message.ack()
        self.bodies.append(body)
        if body == self._last:
            self.should_stop = True


@pytest.fixture
def run_in_thread() -> Generator[Callable[[Any], threading.Thread]]:
    """Run a mixin in a thread that ends with the test."""
    started: list[tuple[Any, threading.Thread]] = []

    def run(worker: Any) -> threading.Thread:
        thread = threading.Thread(target=worker.run, name="kombu worker")
        started.append((worker, thread))
        thread.start()
        return thread

    yield run
    for worker, thread in started:
        worker.should_stop = True
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_a_consumer_mixin_consumes_until_it_is_told_to_stop(
    url: str,
    kombu_connection: Connection,
    name: str,
    run_in_thread: Callable[[Any], threading.Thread],
) -> None:
    queue = kombu.Queue(name, durable=False, auto_delete=True)
    with kombu.Connection(url) as connection:
        worker = Worker(connection, queue, last=99)
        thread = run_in_thread(worker)
        assert worker.consuming.wait(WAIT_S)
        producer = kombu_connection.Producer()
        for number in range(100):
            producer.publish(number, routing_key=name)
        thread.join(WAIT_S)
        assert worker.bodies == list(range(100))


def test_a_consumer_mixin_survives_a_lost_connection(
    url: str,
    kombu_connection: Connection,
    name: str,
    run_in_thread: Callable[[Any], threading.Thread],
) -> None:
    """The consumer connects again, declares again and goes on."""
    queue = kombu.Queue(name, durable=True)
    producer = kombu_connection.Producer()
    with Relay(url) as relay, kombu.Connection(relay.url) as connection:
        worker = Worker(connection, queue, last="after")
        thread = run_in_thread(worker)
        assert worker.consuming.wait(WAIT_S)
        producer.publish("before", routing_key=name)
        worker.consuming.clear()
        relay.cut()
        assert worker.consuming.wait(WAIT_S)
        producer.publish("after", routing_key=name)
        thread.join(WAIT_S)
        assert worker.revived >= 2
        assert [body for body in worker.bodies if body == "after"] == ["after"]
        assert worker.bodies[0] == "before"
    queue(kombu_connection.default_channel).delete()


class Doubler(ConsumerProducerMixin):
    """A server of remote calls that answers on a connection of its own."""

    def __init__(self, connection: Connection, queue: kombu.Queue) -> None:
        self.connection = connection
        self.consuming = threading.Event()
        self._queue = queue

    def get_consumers(self, Consumer: Any, channel: Any) -> list[Any]:  # noqa: N803
        return [Consumer([self._queue], on_message=self.on_request, accept=["json"])]

    def on_consume_ready(self, *_arguments: Any, **_keywords: Any) -> None:
        self.consuming.set()

    def on_request(self, message: Message) -> None:
        self.producer.publish(
            {"result": message.payload["number"] * 2},
            exchange="",
            routing_key=message.properties["reply_to"],
            correlation_id=message.properties["correlation_id"],
        )
        message.ack()


def test_remote_calls(
    url: str,
    kombu_connection: Connection,
    name: str,
    run_in_thread: Callable[[Any], threading.Thread],
) -> None:
    queue = kombu.Queue(name, durable=False, auto_delete=True)
    replies = kombu.Queue(kombu.uuid(), exclusive=True, auto_delete=True)
    with kombu.Connection(url) as connection:
        server = Doubler(connection, queue)
        run_in_thread(server)
        assert server.consuming.wait(WAIT_S)
        results: dict[str, int] = {}

        def on_reply(body: Any, message: Message) -> None:
            results[message.properties["correlation_id"]] = body["result"]

        with kombu_connection.Consumer([replies], callbacks=[on_reply], no_ack=True):
            producer = kombu_connection.Producer()
            for number in range(10):
                producer.publish(
                    {"number": number},
                    routing_key=name,
                    reply_to=replies.name,
                    correlation_id=str(number),
                )
            while len(results) < 10:
                kombu_connection.drain_events(timeout=WAIT_S)
        assert results == {str(number): number * 2 for number in range(10)}
        server.should_stop = True


def test_a_mailbox_asks_every_node(url: str, kombu_connection: Connection, name: str) -> None:
    """pidbox, Celery's remote control: a fanout exchange asks, a direct one brings the answers."""
    with kombu.Connection(url) as connection:
        mailbox: Any = Mailbox(name, type="fanout", accept=["json"])
        node = mailbox(connection).Node("one", channel=connection.default_channel)
        node.handlers["add"] = lambda _state, x, y: x + y
        node.listen(callback=node.handle_message)
        stop = threading.Event()

        def serve() -> None:
            while not stop.is_set():
                for _ in eventloop(connection, limit=1, timeout=0.1, ignore_timeouts=True):
                    pass

        thread = threading.Thread(target=serve, name="mailbox node")
        thread.start()
        try:
            replies = mailbox(kombu_connection).multi_call(
                "add", {"x": 2, "y": 3}, timeout=WAIT_S, limit=1
            )
        finally:
            stop.set()
            thread.join()
    assert replies == [{"one": 5}]
    for exchange in (mailbox.exchange, mailbox.reply_exchange):
        exchange(kombu_connection.default_channel).delete()


def test_a_pooled_producer_publishes_again_after_a_cut(
    url: str, kombu_connection: Connection, name: str
) -> None:
    """`retry` connects again; with confirms the message is in the queue when it returns."""
    queue = kombu.Queue(name, durable=True)
    queue(kombu_connection.default_channel).declare()
    with Relay(url) as relay:
        connection = kombu.Connection(relay.url, transport_options={"confirm_publish": True})
        try:
            with producers[connection].acquire(block=True) as producer:
                producer.publish("before", routing_key=name, retry=True)
                relay.cut()
                producer.publish("after", routing_key=name, retry=True)
        finally:
            reset()
            connection.release()
        assert relay.accepted == 2
    assert consume(kombu_connection, queue, 2) == ["before", "after"]
    queue(kombu_connection.default_channel).delete()


def test_returned_messages_reach_on_return(kombu_connection: Connection, name: str) -> None:
    returned: list[tuple[str, str]] = []

    def on_return(_error: Exception, exchange: str, routing_key: str, _message: Message) -> None:
        returned.append((exchange, routing_key))

    producer = kombu_connection.Producer(on_return=on_return)
    producer.publish("nobody", exchange="amq.direct", routing_key=name, mandatory=True)
    while not returned:
        kombu_connection.drain_events(timeout=WAIT_S)
    assert returned == [("amq.direct", name)]


def test_a_consumer_is_told_that_its_queue_was_deleted(
    url: str, kombu_connection: Connection, name: str
) -> None:
    queue: Any = kombu.Queue(name, durable=False)(kombu_connection.default_channel)
    queue.declare()
    cancelled: list[str] = []
    queue.consume("tag", callback=lambda _message: None, on_cancel=cancelled.append)
    with kombu.Connection(url) as other:
        queue(other.default_channel).delete()
    while not cancelled:
        kombu_connection.drain_events(timeout=WAIT_S)
    assert cancelled == ["tag"]


def test_drain_events_times_out_when_nothing_comes(kombu_connection: Connection) -> None:
    assert kombu_connection.connect().connected
    with pytest.raises(socket.timeout):
        kombu_connection.drain_events(timeout=0.05)
