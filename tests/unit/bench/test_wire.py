"""The generator's encoders, byte by byte."""

import pytest

from amqpstore_tools.client import frames, wire
from amqpstore_tools.client.errors import PeerError

PERSISTENT = wire.delivery_mode(persistent=True)
TRANSIENT = wire.delivery_mode(persistent=False)


def test_a_frame_is_type_channel_length_payload_and_end_octet() -> None:
    assert wire.frame(wire.HEARTBEAT, 0, b"") == bytes.fromhex("08 0000 00000000 ce")
    assert wire.frame(wire.BODY, 258, b"ab") == bytes.fromhex("03 0102 00000002 6162 ce")


def test_ack_is_21_octets_with_the_multiple_bit() -> None:
    assert wire.ack(1, 0x0102) == bytes.fromhex("01 0001 0000000d 003c 0050 0000000000000102 01 ce")


def test_publish_is_method_header_and_body_frame() -> None:
    assert wire.publish(
        1, "", "q1", b"hello", properties=PERSISTENT, frame_max=4096
    ) == bytes.fromhex(
        "01 0001 0000000b 003c 0028 0000 00 02 7131 00 ce"
        "02 0001 0000000f 003c 0000 0000000000000005 1000 02 ce"
        "03 0001 00000005 68656c6c6f ce"
    )


def test_a_transient_publish_has_delivery_mode_1() -> None:
    octets = wire.publish(1, "e", "", b"", properties=TRANSIENT, frame_max=4096)
    assert octets == bytes.fromhex(
        "01 0001 0000000a 003c 0028 0000 01 65 00 00 ce"
        "02 0001 0000000f 003c 0000 0000000000000000 1000 01 ce"
    )


def test_a_body_above_the_frame_limit_is_split() -> None:
    octets = wire.publish(1, "", "q", b"x" * 25, properties=PERSISTENT, frame_max=18)
    parts = [frame for frame in frames.whole_frames(octets, 0, len(octets)) if frame.kind == 3]
    assert [frame.end - frame.start for frame in parts] == [18, 18, 13]


def test_a_field_table_holds_strings_booleans_numbers_and_tables() -> None:
    assert wire.table({"s": "ab", "t": True, "i": -2, "f": {}}) == bytes.fromhex(
        "0000001b01 73 53 00000002 616201 74 74 0101 69 49 fffffffe01 66 46 00000000"
    )


def test_strings_of_a_table_are_read_past_other_fields() -> None:
    octets = wire.table({"capabilities": {"a": True}, "n": 7, "product": "Rabbit", "b": False})
    octets += b"after"
    assert wire.read_strings_of_table(octets, 0) == {"product": "Rabbit"}


def test_strings_of_a_table_end_at_a_field_of_unknown_type() -> None:
    fields = b"\x01aS\0\0\0\x01x" + b"\x01bD\0\0\0\0\0" + b"\x01cS\0\0\0\x01y"
    assert wire.read_strings_of_table(wire.long_string(fields), 0) == {"a": "x"}


def test_frames_stop_at_a_cut_off_frame() -> None:
    octets = wire.frame(8, 0, b"") + wire.ack(1, 1)
    for cut in range(len(octets)):
        found = list(frames.whole_frames(octets, 0, cut))
        assert len(found) == (0 if cut < 8 else 1)


@pytest.mark.parametrize("octets", [b"\x08\0\0\0\0\0\0\xcd", b"\x09\0\0\0\0\0\0\xce", b"HTTP/1.1"])
def test_what_is_not_a_frame_ends_the_run(octets: bytes) -> None:
    with pytest.raises(PeerError):
        list(frames.whole_frames(octets, 0, len(octets)))
