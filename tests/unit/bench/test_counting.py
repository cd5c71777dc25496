"""Counting deliveries in hand-built streams, cut at every position."""

import struct

import pytest

from amqpstore_tools.bench.counting import DeliveryCounter
from amqpstore_tools.client import wire
from amqpstore_tools.client.errors import PeerError

HEARTBEAT = wire.frame(wire.HEARTBEAT, 0, b"")


def delivery(tag: int, body: bytes = b"0123456789", *, frame_max: int = 131_072) -> bytes:
    arguments = wire.short_string("bench-0000") + struct.pack(">QB", tag, 0)
    arguments += wire.short_string("") + wire.short_string("some-queue")
    properties = wire.delivery_mode(persistent=True)
    content = wire.publish(1, "", "", body, properties=properties, frame_max=frame_max)
    return wire.method(1, wire.BASIC_DELIVER, arguments) + content[21 - 4 :]


def feed(counter: DeliveryCounter, octets: bytes) -> int:
    counter.room()[: len(octets)] = octets
    return counter.received(len(octets))


class Parsing(DeliveryCounter):
    """Counts how often it reads frame by frame."""

    passes = 0

    def settle(self) -> int:
        self.passes += 1
        return super().settle()


def test_the_hand_built_delivery_is_what_it_seems() -> None:
    assert delivery(1, b"").count(b"\xce") == 2
    assert delivery(1, b"x").count(b"\xce") == 3


def test_every_cut_of_a_steady_stream_counts_the_same() -> None:
    stream = b"".join(delivery(tag) for tag in range(1, 6))
    for cut in range(len(stream) + 1):
        counter = DeliveryCounter()
        assert feed(counter, stream[:cut]) + feed(counter, stream[cut:]) == 5
        assert counter.delivered == 5
        assert counter.unread() == b""


def test_octet_by_octet_counts_each_delivery_when_it_is_whole() -> None:
    counter = DeliveryCounter()
    length = len(delivery(1))
    stream = b"".join(delivery(tag) for tag in range(1, 4))
    for position in range(len(stream)):
        feed(counter, stream[position : position + 1])
        assert counter.delivered == (position + 1) // length


def test_a_steady_stream_is_not_parsed_after_the_first_chunk() -> None:
    counter = Parsing()
    feed(counter, delivery(1))
    for tag in range(2, 400, 3):
        feed(counter, delivery(tag) + delivery(tag + 1) + delivery(tag + 2))
    assert counter.passes == 1


def test_a_large_delivery_in_pieces_is_not_parsed_with_each_of_them() -> None:
    body = bytes(3 << 20)
    counter = Parsing()
    for tag in (1, 2, 3):
        octets = delivery(tag, body)
        while octets:
            piece = octets[: min(100_000, len(counter.room()))]
            feed(counter, piece)
            octets = octets[len(piece) :]
        assert counter.delivered == tag
        if tag == 1:
            first = counter.passes
    assert counter.passes == first


@pytest.mark.parametrize("foreign", [HEARTBEAT, wire.method(0, wire.CONNECTION_UNBLOCKED)])
def test_a_frame_of_channel_0_anywhere_between_frames_is_passed_over(foreign: bytes) -> None:
    one, two, three = delivery(1), delivery(2), delivery(3)
    method_end = 7 + int.from_bytes(two[3:7], "big") + 1
    for place in (0, method_end, method_end + 23):
        stream = one + two[:place] + foreign + two[place:] + three
        for cut in range(len(stream) + 1):
            counter = DeliveryCounter()
            feed(counter, stream[:cut])
            feed(counter, stream[cut:])
            assert counter.delivered == 3
            assert counter.unread() == b""


def test_messages_of_different_length_are_counted() -> None:
    counter = DeliveryCounter()
    for tag in range(1, 50):
        feed(counter, delivery(tag, b"x" * (tag * 7 % 13)))
    assert counter.delivered == 49


def test_a_body_in_several_frames_and_an_empty_body_are_one_delivery_each() -> None:
    for body, frame_max in ((b"x" * 100, 40), (b"", 4096)):
        stream = b"".join(delivery(tag, body, frame_max=frame_max) for tag in (1, 2, 3))
        for cut in range(len(stream) + 1):
            counter = DeliveryCounter()
            feed(counter, stream[:cut])
            feed(counter, stream[cut:])
            assert counter.delivered == 3


def test_a_delivery_above_the_buffer_makes_the_buffer_grow() -> None:
    counter = DeliveryCounter(capacity_bytes=64)
    stream = delivery(1, b"x" * 1000) + delivery(2, b"x" * 1000)
    while stream:
        room = counter.room()
        part, stream = stream[: len(room)], stream[len(room) :]
        room[: len(part)] = part
        counter.received(len(part))
    assert counter.delivered == 2


def test_stamps_are_the_first_8_octets_of_every_body() -> None:
    stream = b"".join(delivery(tag, struct.pack(">Q", tag * 1000) + b"rest") for tag in range(1, 7))
    for cut in range(len(stream) + 1):
        counter = DeliveryCounter(stamped=True)
        feed(counter, stream[:cut])
        feed(counter, stream[cut:])
        assert counter.stamps == [1000, 2000, 3000, 4000, 5000, 6000]


@pytest.mark.parametrize("skipped_to", [1, 2, 4, 2**40])
def test_a_delivery_tag_out_of_order_ends_the_run(skipped_to: int) -> None:
    counter = DeliveryCounter()
    feed(counter, delivery(1) + delivery(2))
    with pytest.raises(PeerError, match=f"tag {skipped_to} after 2"):
        feed(counter, delivery(skipped_to))


@pytest.mark.parametrize("hidden_in", range(3))
def test_a_wrong_octet_at_the_boundaries_ends_the_run(hidden_in: int) -> None:
    counter = DeliveryCounter()
    feed(counter, delivery(1))
    broken = bytearray(delivery(2) + delivery(3))
    broken[[len(broken) - 1, 0, len(broken) // 2][hidden_in]] ^= 0x40
    with pytest.raises(PeerError):
        feed(counter, bytes(broken))


def close(method_id: wire.MethodId, channel: int) -> bytes:
    arguments = struct.pack(">H", 320) + wire.short_string("going down") + bytes(4)
    return wire.method(channel, method_id, arguments)


@pytest.mark.parametrize(
    ("method_id", "channel"), [(wire.CONNECTION_CLOSE, 0), (wire.CHANNEL_CLOSE, 1)]
)
def test_a_close_after_whole_deliveries_ends_the_run_with_its_text(
    method_id: wire.MethodId, channel: int
) -> None:
    counter = DeliveryCounter()
    feed(counter, delivery(1) + delivery(2))
    with pytest.raises(PeerError, match="320 going down"):
        feed(counter, delivery(3) + close(method_id, channel))
        counter.settle()


def test_a_close_within_a_delivery_is_found_when_the_socket_falls_silent() -> None:
    counter = DeliveryCounter()
    feed(counter, delivery(1))
    method_end = 7 + int.from_bytes(delivery(2)[3:7], "big") + 1
    with pytest.raises(PeerError, match="320 going down"):
        feed(counter, delivery(2)[:method_end] + close(wire.CONNECTION_CLOSE, 0))
        counter.settle()


def test_a_consumer_cancel_ends_the_run() -> None:
    counter = DeliveryCounter()
    with pytest.raises(PeerError, match="cancelled the consumer"):
        feed(counter, wire.method(1, wire.BASIC_CANCEL, wire.short_string("bench-0000") + b"\1"))
