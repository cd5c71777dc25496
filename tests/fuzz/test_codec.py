"""Any bytes into the codec: a value or the one right kind of error comes out, nothing else."""

import itertools
import struct
from collections.abc import Sequence
from unittest.mock import ANY

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpstore_server.protocol.content import (
    BasicProperties,
    decode_content_header,
    decode_properties,
    edit_properties,
    encode_properties,
)
from amqpstore_server.protocol.errors import (
    AmqpError,
    ConnectionException,
    ContentTooLarge,
    FatalFramingError,
    FrameError,
    UnexpectedFrame,
)
from amqpstore_server.protocol.events import (
    Acks,
    Event,
    Failed,
    MoreFrames,
    Publishes,
    ReceivedMethod,
)
from amqpstore_server.protocol.field_table import decode_table, encode_table
from amqpstore_server.protocol.methods import (
    METHODS,
    BasicAck,
    BasicPublish,
    BasicReject,
    decode_method,
)
from amqpstore_server.protocol.receiver import Receiver
from tests.content_header import encode_content_header
from tests.unit.protocol import strategies

MAX_MESSAGE_BYTES = 10_000
FRAME_MAX = 4096

quick = settings(max_examples=300)
at_length = settings(quick, max_examples=5_000)


def frame(frame_type: int, channel: int, payload: bytes, end: int = 0xCE) -> bytes:
    return struct.pack(">BHI", frame_type, channel, len(payload)) + payload + bytes([end])


channels = st.sampled_from([0, 1, 1, 1, 2, 3, 65535])
headers = st.builds(
    encode_content_header,
    st.sampled_from([60, 60, 60, 60, 50, 0]),
    st.integers(0, 40) | st.just(MAX_MESSAGE_BYTES + 1) | st.just((1 << 64) - 1),
    strategies.properties().map(encode_properties),
)
publishes = strategies.methods_of(METHODS[60, 40])
acks = strategies.methods_of(METHODS[60, 80])


@st.composite
def whole_contents(draw: st.DrawFn) -> bytes:
    """A publish with its body in some frames."""
    channel = draw(st.sampled_from([1, 1, 2]))
    parts = draw(st.lists(st.binary(max_size=20), max_size=4))
    header = encode_content_header(60, sum(map(len, parts)), b"\0\0")
    payloads = [(1, draw(publishes).encode()), (2, header), *((3, part) for part in parts)]
    return b"".join(frame(kind, channel, payload) for kind, payload in payloads)


contents = whole_contents()
frames = st.one_of(
    st.builds(frame, st.just(1), channels, strategies.methods.map(lambda method: method.encode())),
    st.builds(frame, st.just(1), channels, publishes.map(lambda method: method.encode())),
    st.builds(frame, st.just(1), channels, acks.map(lambda method: method.encode())),
    st.builds(frame, st.just(2), channels, headers),
    st.builds(frame, st.just(3), channels, st.binary(max_size=40)),
    st.just(frame(8, 0, b"")),
    contents,
    st.builds(
        frame,
        st.sampled_from([1, 2, 3, 8, 0, 4, 255]),
        channels,
        st.binary(max_size=60),
        st.sampled_from([0xCE, 0xCE, 0xCE, 0xCE, 0x00]),
    ),
)


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Bytes of which some are other ones, missing, or there twice."""
    octets = bytearray(draw(whole))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, max(0, len(octets) - 1)))
        kind = draw(st.sampled_from(["flip", "cut", "insert", "repeat"]))
        if kind == "flip" and octets:
            octets[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del octets[at : at + draw(st.integers(1, 8))]
        elif kind == "insert":
            octets[at:at] = draw(st.binary(min_size=1, max_size=8))
        else:
            octets[at:at] = octets[max(0, at - 16) : at]
    return bytes(octets)


streams = damaged(st.lists(frames, max_size=12).map(b"".join)) | st.binary(max_size=300)


def check(event: Event | MoreFrames) -> None:
    """Check that the receiver returns one of the answers that it may give to any bytes."""
    if isinstance(event, Failed):
        assert isinstance(event.error, AmqpError | FatalFramingError)
        if isinstance(event.error, AmqpError):
            assert event.error.reply_code
            assert len(event.error.reply_text.encode()) <= 255
    elif isinstance(event, Publishes):
        assert len(event.targets) == len(event.headers) == len(event.bodies)
        assert event.is_mixed == (len(set(event.targets)) > 1)
        for header, body in zip(event.headers, event.bodies, strict=True):
            assert header.body_size == len(body) <= MAX_MESSAGE_BYTES
    elif isinstance(event, Acks):
        assert event.first <= event.last
    else:
        assert isinstance(event, ReceivedMethod)


def receive(
    stream: bytes, cuts: list[int], large_bytes: int = FRAME_MAX
) -> list[Event | MoreFrames]:
    """Return what comes of the bytes in the reads that the cuts make of them."""
    receiver = Receiver(FRAME_MAX, MAX_MESSAGE_BYTES, large_bytes)
    events: list[Event | MoreFrames] = []
    places = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    for start, end in itertools.pairwise(places):
        events += receiver.receive(stream[start:end])
    for event in events:
        check(event)
    return events


def said(events: Sequence[Event | MoreFrames]) -> list[object]:
    """The events in a form in which the bounds of the reads do not show."""
    flat: list[object] = []
    for event in events:
        if isinstance(event, Publishes):
            flat += [
                (event.channel, target.publish, header.properties, body)
                for target, header, body in zip(
                    event.targets, event.headers, event.bodies, strict=True
                )
            ]
        elif isinstance(event, Acks):
            flat += [
                (event.channel, tag, event.multiple) for tag in range(event.first, event.last + 1)
            ]
        elif isinstance(event, Failed):
            flat.append((event.channel, type(event.error), str(event.error)))
        else:
            flat.append(event)
    return flat


def fuzz_receiver(stream: bytes, cuts: list[int]) -> None:
    expected = said(receive(stream, []))
    assert said(receive(stream, cuts)) == expected
    assert said(receive(stream, cuts, large_bytes=1)) == expected


some_cuts = st.lists(st.integers(0, 2000), max_size=6)


@quick
@given(streams, some_cuts)
def test_any_stream_is_received_alike_however_it_is_read(stream: bytes, cuts: list[int]) -> None:
    fuzz_receiver(stream, cuts)


def published(number: int, body: bytes = b"body") -> bytes:
    """A publish that differs from others in its values alone, and now and then in its target."""
    properties = BasicProperties(
        headers={"number": number}, delivery_mode=2, message_id=f"m{number}", timestamp=number
    )
    header = encode_content_header(60, len(body), encode_properties(properties))
    method = BasicPublish(exchange="", routing_key="ab"[number % 3 == 0])
    return frame(1, 1, method.encode()) + frame(2, 1, header) + frame(3, 1, body)


def test_no_bit_is_overlooked_in_a_publish_of_a_known_shape() -> None:
    """Read whole, it is recognised by one comparison; read by the byte, frame by frame."""
    before = b"".join(map(published, range(5)))
    last = published(5)
    for place in range(8 * len(last)):
        octets = bytearray(last)
        octets[place // 8] ^= 1 << place % 8
        stream = before + bytes(octets) + published(6)
        bytewise = range(len(before), len(stream))
        assert said(receive(stream, [])) == said(receive(stream, list(bytewise))), place


def ack(tag: int, *, channel: int = 1, multiple: int = 0, end: int = 0xCE) -> bytes:
    return frame(1, channel, BasicAck(delivery_tag=tag).encode()[:-1] + bytes([multiple]), end)


def test_acks_that_follow_each_other_are_taken_together() -> None:
    tags = [1, 2, 3, 5, 6]
    found = said(receive(b"".join(map(ack, tags)) + published(1) + ack(7), []))
    assert found[:5] == [(1, tag, False) for tag in tags]
    assert found[6] == (1, 7, False)
    stream = ack(1) + ack(2, multiple=1) + ack(3) + ack(4, channel=2) + ack(5, channel=2)
    events = receive(stream, [])
    assert len(events) == 4
    assert said(events) == [
        (1, 1, False),
        (1, 2, True),
        (1, 3, False),
        (2, 4, False),
        (2, 5, False),
    ]


def test_whatever_is_no_plain_ack_among_acks_is_handled_as_such() -> None:
    """The bits beside `multiple` mean nothing."""
    events = receive(ack(1) + ack(2, multiple=3) + ack(3), [])
    assert said(events) == [(1, 1, False), (1, 2, True), (1, 3, False)]
    *before, lost = said(receive(ack(1) + ack(2, end=0xCF) + ack(3), []))
    assert before == [(1, 1, False)]
    assert lost == (0, FatalFramingError, ANY)
    reject = BasicReject(delivery_tag=2, requeue=True)  # it has the size and the layout of an ack
    assert said(receive(ack(1) + frame(1, 1, reject.encode()) + ack(3), [])) == [
        (1, 1, False),
        ReceivedMethod(1, reject),
        (1, 3, False),
    ]
    wrong_kind = b"\x02" + ack(2)[1:]
    *before, refused = said(receive(ack(1) + wrong_kind, []))
    assert before == [(1, 1, False)]
    assert refused == (1, UnexpectedFrame, ANY)
    method = frame(1, 1, BasicPublish(exchange="", routing_key="a").encode())
    assert said(receive(method + ack(1, channel=2) + ack(1), [])) == [
        (2, 1, False),
        (1, UnexpectedFrame, ANY),
    ]


@pytest.mark.parametrize(
    ("frame_max", "max_message_bytes", "error"),
    [(4096, 100, ContentTooLarge), (100, 4096, FrameError)],
)
def test_a_publish_of_a_known_shape_is_refused_beyond_the_limits(
    frame_max: int, max_message_bytes: int, error: type[AmqpError]
) -> None:
    receiver = Receiver(frame_max, max_message_bytes)
    stream = published(1, bytes(100)) + published(2, bytes(100)) + published(4, bytes(101))
    *kept, refused = said(receiver.receive(stream))
    assert len(kept) == 2
    assert refused == (1 if error is ContentTooLarge else 0, error, ANY)


def test_publishes_of_a_known_shape_are_mixed_if_their_targets_differ() -> None:
    receiver = Receiver(FRAME_MAX, MAX_MESSAGE_BYTES)
    both = published(2) + published(3)
    for stream, is_mixed in ((both, True), (both, True), (published(4) + published(5), False)):
        events = receiver.receive(stream)
        assert [event.is_mixed for event in events if isinstance(event, Publishes)] == [is_mixed]


@pytest.mark.long
@at_length
@given(streams, some_cuts)
def test_any_stream_is_received_alike_at_length(stream: bytes, cuts: list[int]) -> None:
    fuzz_receiver(stream, cuts)


def fuzz_method(payload: bytes) -> None:
    try:
        method = decode_method(payload)
    except ConnectionException:
        return
    assert decode_method(method.encode()) == method


some_methods = damaged(strategies.methods.map(lambda method: method.encode())) | st.binary(
    max_size=60
)


@quick
@given(some_methods)
def test_a_method_is_a_value_or_closes_the_connection(payload: bytes) -> None:
    fuzz_method(payload)


@pytest.mark.long
@at_length
@given(some_methods)
def test_a_method_is_a_value_or_closes_the_connection_at_length(payload: bytes) -> None:
    fuzz_method(payload)


def fuzz_table(octets: bytes) -> None:
    try:
        table, end = decode_table(octets, 0)
    except ConnectionException:
        return
    assert 4 <= end <= len(octets)
    encoded = encode_table(table)
    again = decode_table(encoded, 0)
    # repr: a NaN is not equal to itself.
    assert repr(again) == repr((table, len(encoded)))


some_tables = damaged(strategies.tables().map(encode_table)) | st.binary(max_size=80).map(
    lambda entries: struct.pack(">I", len(entries)) + entries
)


@quick
@given(some_tables)
def test_a_field_table_is_a_value_or_closes_the_connection(octets: bytes) -> None:
    fuzz_table(octets)


@pytest.mark.long
@at_length
@given(some_tables)
def test_a_field_table_is_a_value_or_closes_the_connection_at_length(octets: bytes) -> None:
    fuzz_table(octets)


def fuzz_header(payload: bytes) -> None:
    try:
        header = decode_content_header(payload)
        properties = decode_properties(header.properties)
    except ConnectionException:
        return
    encoded = encode_properties(properties)
    assert repr(decode_properties(encoded)) == repr(properties)
    again = decode_content_header(encode_content_header(header.class_id, header.body_size, encoded))
    assert (again.class_id, again.body_size) == (header.class_id, header.body_size)


some_headers = damaged(headers) | st.binary(max_size=60)


@quick
@given(some_headers)
def test_a_content_header_is_a_value_or_closes_the_connection(payload: bytes) -> None:
    fuzz_header(payload)


@pytest.mark.long
@at_length
@given(some_headers)
def test_a_content_header_is_a_value_or_closes_the_connection_at_length(payload: bytes) -> None:
    fuzz_header(payload)


some_properties = strategies.properties().map(encode_properties)
names = st.sampled_from(["CC", "BCC", "x-death", "a", "", "x" * 255])


@quick
@given(
    some_properties,
    st.dictionaries(names, strategies.field_values(), max_size=3),
    st.lists(names, max_size=2),
    st.none() | strategies.shortstrs,
)
def test_edited_properties_are_the_same_but_for_what_was_edited(
    raw: bytes, headers: dict[str, object], without: list[str], expiration: str | None
) -> None:
    edited = decode_properties(
        edit_properties(raw, headers=headers, without_headers=without, expiration=expiration)  # type: ignore[arg-type]
    )
    expected = decode_properties(raw)
    expected.expiration = expiration
    if headers or without:
        table = {**(expected.headers or {}), **headers}
        expected.headers = {name: table[name] for name in table if name not in without}  # type: ignore[misc]
    assert repr(edited) == repr(expected)
