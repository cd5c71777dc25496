"""basic.get that waits for its message (J13; the extension `x-wait`), over the wire."""

import struct
import threading
import time
from collections.abc import Callable

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.conformance.topology import queue, unique
from tests.conformance.wire_client import (
    BASIC_GET,
    BASIC_GET_EMPTY,
    BASIC_GET_OK,
    BODY,
    CHANNEL_CLOSE_OK,
    PROTOCOL_HEADER,
    QUEUE_DECLARE_OK,
    QUEUE_DELETE,
    QUEUE_DELETE_OK,
    TX_COMMIT,
    TX_COMMIT_OK,
    TX_SELECT,
    TX_SELECT_OK,
    WireClient,
    basic_get,
    channel_close,
    field,
    method,
    publish,
    queue_declare,
    short_string,
    table,
    waiting_get,
)
from tests.interop.pika_client import get, ready, wait_until

pytestmark = pytest.mark.usefixtures("ours_alone")

LONG_MS = 60_000
"""Longer than any test takes: an answer that comes only then is one too late."""

SHARED = 0
"""Bits of queue.declare for a queue that all connections can use."""


@pytest.fixture
def shared(channel: BlockingChannel) -> str:
    """A queue that every connection can use."""
    name = unique("waiting")
    channel.queue_declare(name)
    return name


def expect_message(client: WireClient, channel: int = 1) -> bytes:
    """The body of the get-ok that comes next."""
    client.expect(BASIC_GET_OK, channel)
    return client.expect_content(channel)[1]


def delete(channel: int, name: str) -> bytes:
    return method(channel, QUEUE_DELETE, bytes(2) + short_string(name) + b"\0")


def test_the_server_says_that_it_can(url: str) -> None:
    with WireClient(url) as client:
        client.send(PROTOCOL_HEADER)
        assert field("basic.get.wait", b"t", b"\1") in client.next_frame().arguments


def test_a_get_waits_for_its_message(url: str, shared: str) -> None:
    """J13."""
    with WireClient.connected(url, channels=1) as waiter, WireClient.connected(url, 1) as sender:
        waiter.send(waiting_get(1, shared, LONG_MS))
        # Whatever comes behind it is handled at once, on the same channel too.
        assert waiter.ready(shared) == 0
        sender.send(publish(1, shared, b"here"))
        assert expect_message(waiter) == b"here"


@pytest.mark.parametrize("wait_ms", [0, 1, 120])
def test_it_ends_empty_when_the_time_is_over(url: str, shared: str, wait_ms: int) -> None:
    with WireClient.connected(url, channels=1) as client:
        since = time.monotonic()
        client.send(waiting_get(1, shared, wait_ms))
        client.expect(BASIC_GET_EMPTY, 1)
        assert time.monotonic() - since >= (wait_ms - 1) / 1000  # clocks tick in ms


def test_what_is_ready_comes_at_once(url: str, shared: str) -> None:
    with WireClient.connected(url, channels=1) as client:
        client.send(publish(1, shared, b"a"), waiting_get(1, shared, LONG_MS))
        assert expect_message(client) == b"a"


@pytest.mark.parametrize(
    "value",
    [
        b"I" + struct.pack(">i", -1),
        b"l" + struct.pack(">q", 1 << 31),
        b"t\1",
        b"S" + struct.pack(">I", 1) + b"1",
        b"d" + struct.pack(">d", 10.0),
        b"V",
    ],
    ids=["negative", "2^31", "boolean", "text", "double", "nothing"],
)
def test_a_wait_that_is_none_is_406(url: str, shared: str, value: bytes) -> None:
    with WireClient.connected(url, channels=1) as client:
        arguments = bytes(2) + short_string(shared) + b"\0"
        wait = table(field("x-wait", value[:1], value[1:]))
        client.send(method(1, BASIC_GET, arguments + wait))
        assert client.expect_channel_close(1, 406).failing_method == BASIC_GET


def test_the_longest_wait_is_2_to_the_31_less_one(url: str, shared: str) -> None:
    with WireClient.connected(url, channels=1) as client:
        client.send(waiting_get(1, shared, (1 << 31) - 1), publish(1, shared, b"a"))
        assert expect_message(client) == b"a"


def test_other_arguments_are_ignored_and_an_empty_table_is_none(url: str, shared: str) -> None:
    with WireClient.connected(url, channels=1) as client:
        arguments = bytes(2) + short_string(shared) + b"\0"
        client.send(method(1, BASIC_GET, arguments + table()))
        client.expect(BASIC_GET_EMPTY, 1)
        client.send(method(1, BASIC_GET, arguments + table(field("x-other", b"t", b"\1"))))
        client.expect(BASIC_GET_EMPTY, 1)


def test_a_table_that_ends_too_early_is_502(url: str, shared: str) -> None:
    with WireClient.connected(url, channels=1) as client:
        arguments = bytes(2) + short_string(shared) + b"\0"
        client.send(method(1, BASIC_GET, arguments + b"\0\0\0\x05\1x"))
        client.expect_connection_close(502)


def test_gets_of_a_channel_are_answered_in_their_order(url: str, channel: BlockingChannel) -> None:
    first, second = unique(), unique()
    channel.queue_declare(first)
    channel.queue_declare(second)
    with WireClient.connected(url, channels=1) as client, WireClient.connected(url, 1) as sender:
        client.send(waiting_get(1, first, LONG_MS), waiting_get(1, second, 1), basic_get(1, second))
        sender.send(publish(1, second, b"c"))
        # The answer to this comes behind the publish: both gets for it wait still.
        assert sender.ready(second) == 1
        sender.send(publish(1, first, b"a"))
        assert expect_message(client) == b"a"
        assert expect_message(client) == b"c"
        client.expect(BASIC_GET_EMPTY, 1)


def test_waiters_of_several_connections_are_served_in_turn(url: str, shared: str) -> None:
    clients = [WireClient.connected(url, channels=1) for _ in range(3)]
    for client in clients:
        client.send(waiting_get(1, shared, LONG_MS))
        client.ready(shared)
    clients[0].send(*[publish(1, shared, body) for body in (b"a", b"b", b"c")])
    assert [expect_message(client) for client in clients] == [b"a", b"b", b"c"]
    for client in clients:
        client.abort()


def test_a_transacted_get_waits_for_a_commit(url: str, shared: str) -> None:
    with WireClient.connected(url, channels=1) as waiter, WireClient.connected(url, 1) as sender:
        for client in (waiter, sender):
            client.send(method(1, TX_SELECT))
            client.expect(TX_SELECT_OK, 1)
        waiter.send(waiting_get(1, shared, LONG_MS, no_ack=False))
        sender.send(publish(1, shared, b"a"))
        assert sender.ready(shared) == 0
        sender.send(method(1, TX_COMMIT))
        sender.expect(TX_COMMIT_OK, 1)
        assert expect_message(waiter) == b"a"


def test_a_channel_that_closes_takes_no_message_with_it(
    url: str, channel: BlockingChannel, shared: str
) -> None:
    with WireClient.connected(url, channels=2) as client:
        client.send(waiting_get(1, shared, LONG_MS), waiting_get(1, shared, 1), channel_close(1))
        client.expect(CHANNEL_CLOSE_OK, 1)
        client.send(publish(2, shared, b"kept"))
        assert client.ready(shared, channel=2) == 1
    assert get(channel, shared) is not None


def test_a_connection_that_is_cut_takes_no_message_with_it(
    url: str, channel: BlockingChannel, shared: str
) -> None:
    client = WireClient.connected(url, channels=1)
    client.send(waiting_get(1, shared, LONG_MS, no_ack=False))
    client.ready(shared)
    client.abort()
    channel.basic_publish("", shared, b"kept")
    deadline = time.monotonic() + 60
    # It may be delivered to the connection before the broker hears of its end, and comes back.
    while ready(channel, shared) != 1:
        assert time.monotonic() < deadline


def test_a_queue_that_is_deleted_answers_empty(url: str, shared: str) -> None:
    with WireClient.connected(url, channels=1) as waiter, WireClient.connected(url, 1) as other:
        waiter.send(waiting_get(1, shared, LONG_MS))
        waiter.ready(shared)
        other.send(delete(1, shared))
        other.expect(QUEUE_DELETE_OK, 1)
        waiter.expect(BASIC_GET_EMPTY, 1)
        waiter.send(waiting_get(1, shared, LONG_MS))
        waiter.expect_channel_close(1, 404)


def test_a_channel_may_delete_what_it_waits_for(url: str, shared: str) -> None:
    with WireClient.connected(url, channels=1) as client:
        client.send(waiting_get(1, shared, LONG_MS), delete(1, shared))
        client.expect(BASIC_GET_EMPTY, 1)
        client.expect(QUEUE_DELETE_OK, 1)


def test_an_exclusive_queue_ends_with_its_connection_and_its_gets(url: str) -> None:
    name = unique()
    with WireClient.connected(url, channels=2) as client:
        client.declare_queue(name)
        client.send(waiting_get(1, name, LONG_MS), waiting_get(2, name, LONG_MS))
        client.send(channel_close(2))
        client.expect(CHANNEL_CLOSE_OK, 2)
        client.abort()
    with WireClient.connected(url, channels=1) as client:
        client.expect_alive()


def test_an_ordinary_client_is_not_touched(channel: BlockingChannel) -> None:
    name = queue(channel)
    assert get(channel, name) is None
    channel.basic_publish("", name, b"a")
    message = get(channel, name)
    assert message is not None
    assert message.body == b"a"


class Waiter(threading.Thread):
    """A connection whose channels have always a few gets waiting, each at one of the queues; it
    notes what it gets."""

    CHANNELS = 6
    EACH = 3

    def __init__(self, url: str, names: list[str], is_done: Callable[[], bool]) -> None:
        super().__init__(daemon=True)
        self.bodies: list[bytes] = []
        self._names = names
        self._is_done = is_done
        self._client = WireClient.connected(url, channels=self.CHANNELS)

    def _ask(self, channel: int) -> None:
        name = self._names[channel % len(self._names)]
        self._client.send(waiting_get(channel, name, LONG_MS))

    def run(self) -> None:
        for channel in range(1, self.CHANNELS + 1):
            for _ in range(self.EACH):
                self._ask(channel)
        while not self._is_done():
            if not self._client.has_frame(0.05):
                continue
            received = self._client.next_frame()
            if received.frame_type == BODY:
                self.bodies.append(received.payload)
                self._ask(received.channel)
            else:
                assert received.method in (None, BASIC_GET_OK), received
        self._client.abort()


def test_many_waiters_get_every_message_once(url: str, channel: BlockingChannel) -> None:
    """Each get would wait a minute: a single wake-up that is lost leaves its message there."""
    names = [unique("stress") for _ in range(3)]
    for name in names:
        channel.queue_declare(name)
    total, senders = 3000, 3
    is_over = threading.Event()
    waiters = [Waiter(url, names, is_over.is_set) for _ in range(6)]
    for waiter in waiters:
        waiter.start()

    def send(first: int) -> None:
        with WireClient.connected(url, channels=1) as sender:
            for number in range(first, total, senders):
                sender.send(publish(1, names[number // 7 % len(names)], b"%d" % number))
            sender.send(queue_declare(1, names[0], SHARED | 1))
            sender.expect(QUEUE_DECLARE_OK, 1)

    threads = [threading.Thread(target=send, args=(first,)) for first in range(senders)]
    for thread in threads:
        thread.start()
    try:
        wait_until(channel, lambda: sum(len(waiter.bodies) for waiter in waiters) >= total)
        assert [ready(channel, name) for name in names] == [0, 0, 0]
    finally:
        is_over.set()
        for thread in [*threads, *waiters]:
            thread.join(60)
            assert not thread.is_alive()
    bodies = [int(body) for waiter in waiters for body in waiter.bodies]
    assert sorted(bodies) == list(range(total))
