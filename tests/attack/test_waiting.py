"""Messages that wait in queues are bounded in memory, bodies and properties alike, and none is
lost.
"""

import os
import struct

import pytest

from tests.attack.attacker import MIB, forget_peak, peak_bytes
from tests.broker_process import BrokerProcess
from tests.conformance.wire_client import (
    BASIC_ACK,
    BASIC_GET_OK,
    CONFIRM_SELECT_OK,
    QUEUE_DECLARE_OK,
    WireClient,
    basic_get,
    confirm_select,
    header,
    publish_method,
    queue_declare,
)

BOUND = 384 * MIB
"""The budget (`memory_bytes`), what is on the way to the disk, and the allocator: far less than all
of them take, which is about 540 MiB."""

CONFIRMED_AT_ONCE = 100
"""Messages published before the next wait for confirms, so that a slow disk has no more to
write.
"""

DURABLE = 0b00010
COUNT = 4000


def properties(number: int, junk: bytes, delivery_mode: int) -> bytes:
    """Flags, headers of one field that is as large as `junk` and another for each number, mode."""
    value = struct.pack(">I", number) + junk
    field = b"\x01hS" + struct.pack(">I", len(value)) + value
    return struct.pack(">HI", 0x3000, len(field)) + field + bytes([delivery_mode])


def wait_for_confirm(client: WireClient, tag: int) -> None:
    """Return once everything up to a tag is confirmed."""
    while int.from_bytes(client.expect(BASIC_ACK, 1).arguments[:8]) < tag:
        pass


@pytest.mark.parametrize(("bits", "delivery_mode"), [(DURABLE, 2), (0, 1)])
def test_properties_of_empty_messages(broker: BrokerProcess, bits: int, delivery_mode: int) -> None:
    junk = os.urandom(60_000)
    with WireClient.connected(broker.url, channels=1) as client:
        client.send(queue_declare(1, "q", bits))
        client.expect(QUEUE_DECLARE_OK, 1)
        before = forget_peak(broker)
        client.send(confirm_select(1))
        client.expect(CONFIRM_SELECT_OK, 1)
        for number in range(COUNT):
            client.send(
                publish_method(1, "q"), header(1, 0, properties(number, junk, delivery_mode))
            )
            if number % CONFIRMED_AT_ONCE == CONFIRMED_AT_ONCE - 1:
                wait_for_confirm(client, number + 1)
        assert client.ready("q") == COUNT
        assert peak_bytes(broker) - before < BOUND
        for number in range(COUNT):
            client.send(basic_get(1, "q", no_ack=True))
            client.expect(BASIC_GET_OK, 1)
            received, _ = client.expect_content()
            assert received == properties(number, junk, delivery_mode)
        assert peak_bytes(broker) - before < BOUND
