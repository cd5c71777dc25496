"""Bindings that come and go, no two alike, leave nothing behind, whatever the exchange."""

import gc
import logging
import struct
import sys
from itertools import pairwise

import pytest

from amqpstore_tools.testing.broker import MemoryBroker
from tests.conformance.wire_client import (
    EXCHANGE_DECLARE,
    QUEUE_BIND,
    QUEUE_DECLARE,
    WireClient,
    field,
    header,
    long_string,
    method,
    publish_method,
    short_string,
    table,
)

BIND_OK, UNBIND, UNBIND_OK = (50, 21), (50, 50), (50, 51)
BIND_EXCHANGE, UNBIND_EXCHANGE = (40, 30), (40, 40)
BIND_EXCHANGE_OK, UNBIND_EXCHANGE_OK = (40, 31), (40, 51)
KINDS = ["direct", "fanout", "topic", "headers", "x-consistent-hash", "x-random"]
COUNT = 200


def come_and_go(client: WireClient, kind: str, round_number: int) -> None:
    """Bind a queue and another exchange, publish a little, and unbind them."""
    names = short_string("q") + short_string(kind)
    exchanges = short_string("other") + short_string(kind)
    for number in range(COUNT):
        key = "7" if "hash" in kind else f"{round_number}.{number}.*.#"
        arguments = table(field("k", b"S", long_string(f"{round_number} {number}".encode())))
        rest = short_string(key) + b"\0" + arguments
        # Unbind has no bit for no-wait where a queue is concerned.
        of_queue = short_string(key) + arguments
        client.send(
            method(1, QUEUE_BIND, bytes(2) + names + rest),
            method(1, BIND_EXCHANGE, bytes(2) + exchanges + rest),
            publish_method(1, f"{round_number}.{number}.a.b", kind) + header(1, 0),
            method(1, UNBIND, bytes(2) + names + of_queue),
            method(1, UNBIND_EXCHANGE, bytes(2) + exchanges + rest),
        )
    for _ in range(COUNT):
        for answer in (BIND_OK, BIND_EXCHANGE_OK, UNBIND_OK, UNBIND_EXCHANGE_OK):
            client.expect(answer, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_bindings_that_come_and_go_leave_nothing_behind(kind: str) -> None:
    """Counted in blocks of memory, of which a binding that is kept takes several.

    Other threads of this process allocate too, so one round may grow; a leak grows in every round.
    """
    with MemoryBroker() as broker:

        def blocks() -> int:
            broker._app._free_caches()
            gc.collect()
            return sys.getallocatedblocks()

        logging.disable()  # pytest keeps all of it
        try:
            with WireClient.connected(broker.url, channels=1) as client:
                for name, of_kind in (("other", "fanout"), (kind, kind)):
                    declared = short_string(name) + short_string(of_kind)
                    client.send(method(1, EXCHANGE_DECLARE, bytes(2) + declared + bytes(5)))
                limits = table(field("x-max-length", b"I", struct.pack(">I", 1)))
                declared = short_string("q") + b"\x04" + limits
                client.send(method(1, QUEUE_DECLARE, bytes(2) + declared))
                client.expect((40, 11), 1)
                client.expect((40, 11), 1)
                client.expect((50, 11), 1)
                counts = []
                for round_number in range(5):
                    come_and_go(client, kind, round_number)
                    counts.append(broker._look(blocks))
        finally:
            logging.disable(logging.NOTSET)
        assert min(b - a for a, b in pairwise(counts)) < COUNT // 2, counts
