"""Content headers and the fourteen properties of class basic."""

import pytest
from hypothesis import given

from amqpstore_server.protocol.content import (
    REPLY_TO,
    BasicProperties,
    decode_content_header,
    decode_properties,
    encode_properties,
)
from amqpstore_server.protocol.errors import FrameError, MalformedError
from amqpstore_server.protocol.events import ContentHeader
from tests.content_header import encode_content_header
from tests.unit.protocol import strategies

ALL = BasicProperties(
    content_type="a",
    content_encoding="b",
    headers={"h": True},
    delivery_mode=2,
    priority=9,
    correlation_id="c",
    reply_to="d",
    expiration="60000",
    message_id="e",
    timestamp=1,
    type="f",
    user_id="g",
    app_id="h",
    cluster_id="i",
)
EXAMPLES = [
    (b"\x00\x00", BasicProperties()),
    (b"\x80\x00\x0atext/plain", BasicProperties(content_type="text/plain")),
    (b"\x10\x00\x02", BasicProperties(delivery_mode=2)),
    (b"\x00\x04\x00", BasicProperties(cluster_id="")),
    (b"\x02\x00\x01d", BasicProperties(reply_to="d")),
    (b"\x20\x00\x00\x00\x00\x03\x01kV", BasicProperties(headers={"k": None})),
    (
        bytes.fromhex(
            "fffc 0161 0162 00000004 0168 7401 02 09 0163 0164 05 3630303030 0165"
            "0000000000000001 0166 0167 0168 0169"
        ),
        ALL,
    ),
]
every_example = pytest.mark.parametrize(("raw", "properties"), EXAMPLES)


def header(raw: bytes, weight: int = 0) -> bytes:
    return b"\x00\x3c" + weight.to_bytes(2, "big") + b"\x00\x00\x00\x00\x00\x00\x00\x05" + raw


@every_example
def test_properties_are_read_and_written(raw: bytes, properties: BasicProperties) -> None:
    assert decode_properties(raw) == properties
    assert encode_properties(properties) == raw


@every_example
def test_a_header_is_plain_if_nothing_else_in_it_concerns_the_broker(
    raw: bytes, properties: BasicProperties
) -> None:
    concerns = {properties.expiration, properties.user_id} != {None}
    plain = properties.delivery_mode or 0, properties.priority or 0
    assert decode_content_header(header(raw)).plain == (None if concerns else plain)


@pytest.mark.parametrize("reply_to", [REPLY_TO, REPLY_TO.upper()])
def test_a_header_that_may_ask_for_direct_replies_is_not_plain(reply_to: str) -> None:
    raw = encode_properties(BasicProperties(reply_to=reply_to))
    assert decode_content_header(header(raw)).plain is None


@pytest.mark.parametrize("name", ["CC", "BCC"])
def test_a_header_with_further_routing_keys_is_not_plain(name: str) -> None:
    raw = encode_properties(BasicProperties(headers={name: ["elsewhere"]}))
    assert decode_content_header(header(raw)).plain is None


@every_example
def test_a_header_keeps_the_properties_as_they_came(
    raw: bytes, properties: BasicProperties
) -> None:
    found = decode_content_header(header(raw))
    assert found == ContentHeader(60, 5, raw, found.plain)


@every_example
def test_every_truncation_is_an_error(raw: bytes, properties: BasicProperties) -> None:
    for size in range(len(raw)):
        with pytest.raises(MalformedError):
            decode_properties(raw[:size])
    whole = header(raw)
    for size in range(len(whole)):
        with pytest.raises(FrameError if size < 12 else MalformedError):
            decode_content_header(whole[:size])


@every_example
def test_bytes_behind_the_last_property_are_malformed(
    raw: bytes, properties: BasicProperties
) -> None:
    with pytest.raises(MalformedError, match="behind the last property"):
        decode_properties(raw + b"\0")
    with pytest.raises(MalformedError, match="behind the last property"):
        decode_content_header(header(raw + b"\0"))


@pytest.mark.parametrize("weight", [1, 65535])
def test_a_weight_is_a_frame_error(weight: int) -> None:
    with pytest.raises(FrameError, match="weight"):
        decode_content_header(header(b"\0\0", weight))


def test_body_sizes_have_64_bits() -> None:
    payload = encode_content_header(60, (1 << 64) - 1, b"\0\0")
    assert decode_content_header(payload).body_size == (1 << 64) - 1


@pytest.mark.parametrize("raw", [b"\x10\x01\x00\x00\x02", b"\x10\x01\x00\x01\x00\x00\x02"])
def test_flags_may_go_on_in_further_words_that_are_empty(raw: bytes) -> None:
    assert decode_properties(raw) == BasicProperties(delivery_mode=2)
    assert decode_content_header(header(raw)).properties == raw


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x01",
        b"\x00\x01\x00",
        b"\x00\x01\x80\x00\x01a",
        b"\x00\x01\x00\x02",
        b"\x00\x01\x00\x01",
        b"\x00\x02",
        b"\x80\x00\x01\xff",
        b"\x20\x00\x00\x00\x00\x03\x01k?",
    ],
)
def test_malformed_properties(raw: bytes) -> None:
    with pytest.raises(MalformedError):
        decode_properties(raw)
    with pytest.raises(MalformedError):
        decode_content_header(header(raw))


@pytest.mark.parametrize(
    "properties",
    [
        BasicProperties(content_type="x" * 256),
        BasicProperties(delivery_mode=256),
        BasicProperties(timestamp=-1),
        BasicProperties(headers={"k": 1 << 64}),
    ],
)
def test_a_value_that_does_not_fit_is_this_sides_mistake(properties: BasicProperties) -> None:
    with pytest.raises(ValueError):
        encode_properties(properties)


@given(strategies.properties())
def test_what_is_written_is_read(properties: BasicProperties) -> None:
    raw = encode_properties(properties)
    assert decode_properties(raw) == properties
    assert decode_content_header(header(raw)).properties == raw
    for size in range(len(raw)):
        with pytest.raises(MalformedError):
            decode_properties(raw[:size])
