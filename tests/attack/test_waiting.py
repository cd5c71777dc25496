"""What waits in queues is bounded in memory, bodies and properties alike, and is all there."""

import os
import struct

import pytest

from tests.attack.attacker import MIB, forget_peak, peak_bytes, push
from tests.broker_process import BrokerProcess
from tests.conformance.wire_client import (
    BASIC_GET_OK,
    QUEUE_DECLARE_OK,
    WireClient,
    basic_get,
    header,
    publish_method,
    queue_declare,
)

BOUND = 384 * MIB
"""The budget (`memory_bytes`), what is on the way to the disk, and the allocator: far less than all
of them take, which is about 900 MiB."""

DURABLE = 0b00010
COUNT = 4000


def properties(number: int, junk: bytes, delivery_mode: int) -> bytes:
    """Flags, headers of one field that is as large as `junk` and another for each number, mode."""
    value = struct.pack(">I", number) + junk
    field = b"\x01hS" + struct.pack(">I", len(value)) + value
    return struct.pack(">HI", 0x3000, len(field)) + field + bytes([delivery_mode])


@pytest.mark.parametrize(("bits", "delivery_mode"), [(DURABLE, 2), (0, 1)])
def test_properties_of_empty_messages(broker: BrokerProcess, bits: int, delivery_mode: int) -> None:
    junk = os.urandom(100_000)
    with WireClient.connected(broker.url, channels=1) as client:
        client.send(queue_declare(1, "q", bits))
        client.expect(QUEUE_DECLARE_OK, 1)
        before = forget_peak(broker)
        sent = (
            publish_method(1, "q") + header(1, 0, properties(number, junk, delivery_mode))
            for number in range(COUNT)
        )
        push(client, sent, quiet_s=30)
        client.socket.settimeout(60)
        assert client.ready("q") == COUNT
        assert peak_bytes(broker) - before < BOUND
        for number in range(COUNT):
            client.send(basic_get(1, "q", no_ack=True))
            client.expect(BASIC_GET_OK, 1)
            found, _ = client.expect_content()
            assert found == properties(number, junk, delivery_mode)
        assert peak_bytes(broker) - before < BOUND
