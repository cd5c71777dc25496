"""Each kind of thing that comes and goes in a broker's days, made and removed several times
over.
"""

import itertools
import struct
from collections.abc import Callable

from tests.conformance.wire_client import (
    BASIC_CANCEL_OK,
    BASIC_CONSUME_OK,
    BASIC_DELIVER,
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    EXCHANGE_DECLARE,
    EXCHANGE_DELETE,
    EXCHANGE_DELETE_OK,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    QUEUE_DELETE,
    QUEUE_DELETE_OK,
    TX_COMMIT,
    TX_COMMIT_OK,
    TX_SELECT,
    TX_SELECT_OK,
    WireClient,
    basic_cancel,
    basic_consume,
    basic_get,
    channel_close,
    connection_close,
    field,
    long_string,
    method,
    publish,
    queue_bind,
    short_string,
    table,
)

TIMES = 10
NUMBERS = itertools.count()
DURABLE, EXCLUSIVE, AUTO_DELETE = 0b10, 0b100, 0b1000
DECLARE_OK, BIND_OK = (40, 11), (50, 21)

Churn = Callable[[str, WireClient], None]
"""Given the URL of a broker, and a client of it."""


def number(name: str, value: int) -> bytes:
    return field(name, b"I", struct.pack(">i", value))


def declared(client: WireClient, queue: str, bits: int = 0, *arguments: bytes) -> None:
    named = struct.pack(">H", 0) + short_string(queue) + bytes([bits])
    client.send(method(1, QUEUE_DECLARE, named + table(*arguments)))
    client.expect(QUEUE_DECLARE_OK, 1)


def deleted(client: WireClient, queue: str) -> None:
    client.send(method(1, QUEUE_DELETE, struct.pack(">H", 0) + short_string(queue) + b"\0"))
    client.expect(QUEUE_DELETE_OK, 1)


def filled(client: WireClient, queue: str, count: int = 20) -> None:
    client.send(publish(1, queue, b"x" * 100) * count)
    client.ready(queue)


def connections_with_queues(url: str, client: WireClient) -> None:
    for which in range(TIMES):
        with WireClient.connected(url, channels=1) as other:
            # A name of its own: that the last connection has gone may not be noticed yet.
            own = f"own {next(NUMBERS)}"
            declared(other, own, EXCLUSIVE)
            filled(other, own)
            if which % 2:
                other.send(connection_close())
                other.expect_close_ok()


def connections_with_unacked_messages(url: str, client: WireClient) -> None:
    for which in range(TIMES):
        with WireClient.connected(url, channels=1) as other:
            queue = f"unacked {next(NUMBERS)}"
            declared(other, queue, AUTO_DELETE)
            filled(other, queue)
            other.send(basic_consume(1, queue, "c", no_ack=False))
            other.expect(BASIC_CONSUME_OK, 1)
            for _ in range(20):
                other.expect(BASIC_DELIVER, 1)
                other.expect_content()
            if which % 2:
                other.send(basic_cancel(1, "c"))
                other.expect(BASIC_CANCEL_OK, 1)


def channels(url: str, client: WireClient) -> None:
    for which in range(TIMES):
        client.open_channel(2)
        if which % 2:
            client.send(basic_get(2, "missing"))
            client.expect(CHANNEL_CLOSE, 2)
            client.send(method(2, CHANNEL_CLOSE_OK))
        else:
            client.send(channel_close(2))
            client.expect(CHANNEL_CLOSE_OK, 2)


def transactions(url: str, client: WireClient) -> None:
    declared(client, "committed")
    for which in range(TIMES):
        client.open_channel(2)
        client.send(method(2, TX_SELECT), publish(2, "committed", b"x") * 5)
        client.expect(TX_SELECT_OK, 2)
        if which % 2:
            client.send(method(2, TX_COMMIT))
            client.expect(TX_COMMIT_OK, 2)
        client.send(channel_close(2))
        client.expect(CHANNEL_CLOSE_OK, 2)
    deleted(client, "committed")


def exchanges(url: str, client: WireClient) -> None:
    for kind in ("direct", "topic", "headers", "fanout"):
        for which in range(TIMES):
            name = struct.pack(">H", 0) + short_string("x")
            client.send(
                method(1, EXCHANGE_DECLARE, name + short_string(kind) + bytes([DURABLE]) + table())
            )
            client.expect(DECLARE_OK, 1)
            declared(client, "bound", DURABLE)
            client.send(queue_bind(1, "bound", "x", "a.#"))
            client.expect(BIND_OK, 1)
            if which % 2:
                deleted(client, "bound")
            client.send(method(1, EXCHANGE_DELETE, name + b"\0"))
            client.expect(EXCHANGE_DELETE_OK, 1)
    deleted(client, "bound")


def expired_queues(url: str, client: WireClient) -> None:
    letters = field("x-dead-letter-exchange", b"S", long_string("amq.fanout"))
    for _ in range(TIMES):
        queue = f"expires {next(NUMBERS)}"
        # Later than a machine that stands still for a while takes to fill it.
        times = (number("x-message-ttl", 100), number("x-expires", 15_000))
        declared(client, queue, DURABLE, *times, letters)
        filled(client, queue)


def queues_with_consumers(url: str, client: WireClient) -> None:
    """Deleted while their messages are unacked."""
    for which in range(TIMES):
        queue = f"consumed {which}"
        declared(client, queue)
        filled(client, queue)
        client.send(basic_consume(1, queue, queue, no_ack=False))
        client.expect(BASIC_CONSUME_OK, 1)
        for _ in range(20):
            client.expect(BASIC_DELIVER, 1)
            client.expect_content()
        deleted(client, queue)


ARGUMENTS = {
    "plain": (),
    "durable": (),
    "x-max-length": (number("x-max-length", 3),),
    "x-history-length": (number("x-history-length", 3),),
    "x-max-priority": (number("x-max-priority", 5),),
    "x-queue-type": (field("x-queue-type", b"S", long_string("quorum")),),
}


def queues(kind: str) -> Churn:
    def churn(url: str, client: WireClient) -> None:
        bits = DURABLE if kind in ("durable", "x-queue-type") else 0
        for which in range(TIMES):
            declared(client, f"q{which}", bits, *ARGUMENTS[kind])
            filled(client, f"q{which}")
            deleted(client, f"q{which}")

    churn.__name__ = f"queues, {kind}"
    return churn


CHURN: list[Churn] = [
    connections_with_queues,
    connections_with_unacked_messages,
    channels,
    transactions,
    exchanges,
    expired_queues,
    queues_with_consumers,
    *map(queues, ARGUMENTS),
]
