"""Counting confirms, in every order and cut anywhere."""

import random
import struct
from functools import partial

import pytest

from amqpstore_tools.client import wire
from amqpstore_tools.client.confirms import ConfirmLedger
from amqpstore_tools.client.errors import PeerError


def confirm(tag: int, *, multiple: bool = False, nack: bool = False) -> bytes:
    method_id = wire.BASIC_NACK if nack else wire.BASIC_ACK
    return wire.method(1, method_id, struct.pack(">QB", tag, multiple))


def test_single_and_multiple_confirms_count_each_publish_once() -> None:
    ledger = ConfirmLedger()
    steps = [(2, False, 1), (4, False, 2), (3, True, 4), (4, True, 4), (4, False, 4), (9, True, 9)]
    for tag, multiple, expected in steps:
        ledger.received(confirm(tag, multiple=multiple))
        assert ledger.confirmed == expected


def test_every_cut_counts_the_same() -> None:
    stream = (
        confirm(1) + confirm(3) + wire.frame(8, 0, b"") + confirm(2) + confirm(7, multiple=True)
    )
    for cut in range(len(stream) + 1):
        ledger = ConfirmLedger()
        ledger.received(stream[:cut])
        ledger.received(stream[cut:])
        assert ledger.confirmed == 7
        assert ledger.unparsed() == b""


def note(seen: list[int], first: int, last: int) -> None:
    seen.extend(range(first, last + 1))


def test_any_order_settles_every_tag_exactly_once() -> None:
    chance = random.Random(7)
    for _ in range(200):
        seen: list[int] = []
        ledger = ConfirmLedger(partial(note, seen))
        tags = list(range(1, 21))
        chance.shuffle(tags)
        expected: set[int] = set()
        for tag in tags:
            multiple = chance.random() < 0.2
            expected |= set(range(1, tag + 1)) if multiple else {tag}
            ledger.received(confirm(tag, multiple=multiple) * 2)
            assert ledger.confirmed == len(expected)
            assert sorted(seen) == sorted(expected)
        assert not ledger._above, "memory grows"


def test_a_nack_is_counted_and_settles() -> None:
    ledger = ConfirmLedger()
    ledger.received(confirm(1) + confirm(4, multiple=True, nack=True))
    assert (ledger.confirmed, ledger.nacked) == (4, 3)


def test_flow_pauses_and_is_answered() -> None:
    ledger = ConfirmLedger()
    ledger.received(wire.method(1, wire.CHANNEL_FLOW, b"\0"))
    assert ledger.paused
    assert ledger.answer == wire.method(1, wire.CHANNEL_FLOW_OK, b"\0")
    ledger.received(wire.method(1, wire.CHANNEL_FLOW, b"\1"))
    assert not ledger.paused


def test_blocked_is_counted() -> None:
    ledger = ConfirmLedger()
    ledger.received(wire.method(0, wire.CONNECTION_BLOCKED, wire.short_string("disk")))
    ledger.received(wire.method(0, wire.CONNECTION_UNBLOCKED) + confirm(1))
    assert (ledger.blocked, ledger.confirmed) == (1, 1)


def test_a_return_ends_the_run() -> None:
    arguments = struct.pack(">H", 312) + wire.short_string("NO_ROUTE") + b"\0\0"
    with pytest.raises(PeerError, match="unroutable: 312 NO_ROUTE"):
        ConfirmLedger().received(confirm(1) + wire.method(1, wire.BASIC_RETURN, arguments))


def test_a_method_no_producer_expects_ends_the_run() -> None:
    with pytest.raises(PeerError, match="unexpected"):
        ConfirmLedger().received(wire.method(1, wire.QUEUE_PURGE_OK, bytes(4)))
