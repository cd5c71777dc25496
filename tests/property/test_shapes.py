"""Content headers of a known shape: whatever is accepted at sight would be by decoding it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from amqpstore_server.amqp.envelopes import Envelopes, PublishSlice
from amqpstore_server.broker.messages.envelope import parse_envelope
from amqpstore_server.protocol.content import (
    REPLY_TO,
    BasicProperties,
    decode_content_header,
    decode_properties,
    encode_properties,
)
from amqpstore_server.protocol.errors import FrameError, MalformedError
from amqpstore_server.protocol.events import ContentHeader, Publishes, Target, publish_header
from amqpstore_server.protocol.field_table import FieldValue, Timestamp
from amqpstore_server.protocol.frames import body_frames, header_frame, method_frame
from amqpstore_server.protocol.methods import BasicPublish
from amqpstore_server.protocol.receiver import Receiver
from amqpstore_server.protocol.shapes import Shapes
from tests.content_header import encode_content_header

SHORT = st.text(max_size=12)
VALUES = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(-(1 << 63), (1 << 63) - 1),
        st.floats(allow_nan=False),
        st.text(max_size=12),
        st.binary(max_size=12),
        st.decimals(-1000, 1000, places=2),
        st.none(),
        st.integers(0, 1 << 40).map(Timestamp),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
NAMES = st.one_of(st.text(max_size=5), st.sampled_from(["CC", "BCC", "traceparent"]))
OCTET = st.integers(0, 255)


def maybe(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.one_of(st.none(), strategy)


PROPERTIES = st.builds(
    BasicProperties,
    content_type=maybe(SHORT),
    headers=maybe(st.dictionaries(NAMES, VALUES, max_size=4)),
    delivery_mode=maybe(OCTET),
    priority=maybe(OCTET),
    correlation_id=maybe(SHORT),
    reply_to=maybe(st.one_of(SHORT, st.sampled_from([REPLY_TO, REPLY_TO.upper()]))),
    expiration=maybe(st.integers(0, 1000).map(str)),
    message_id=maybe(SHORT),
    timestamp=maybe(st.integers(0, (1 << 64) - 1)),
    user_id=maybe(SHORT),
    cluster_id=maybe(SHORT),
)


def payload_of(properties: BasicProperties) -> bytes:
    return encode_content_header(60, 5, encode_properties(properties))


def is_accepted(payload: bytes) -> bool:
    try:
        decode_content_header(payload)
    except (FrameError, MalformedError):
        return False
    return True


@settings(max_examples=300)
@given(PROPERTIES, st.data())
def test_a_header_of_a_known_shape_is_well_formed(
    properties: BasicProperties, data: st.DataObject
) -> None:
    payload = payload_of(properties)
    shapes = Shapes()
    shapes.learn(payload)
    changed = bytearray(payload)
    for _ in range(data.draw(st.integers(0, 3))):
        changed[data.draw(st.integers(0, len(payload) - 1))] = data.draw(OCTET)
    if shapes.find(bytes(changed)) is not None:
        assert is_accepted(bytes(changed))


@settings(max_examples=300)
@given(PROPERTIES)
def test_a_plain_header_says_all_that_the_broker_reads(properties: BasicProperties) -> None:
    payload = payload_of(properties)
    shapes = Shapes()
    shapes.learn(payload)
    shape = shapes.find(payload)
    texts = [properties.content_type, properties.correlation_id, properties.message_id]
    texts += [properties.reply_to, properties.user_id, properties.cluster_id]
    if shape is None:
        assert len(payload) > 512 or not all(text is None or text.isascii() for text in texts)
        return
    rare = {"CC", "BCC"} & (properties.headers or {}).keys()
    is_direct = len(properties.reply_to or "") == len(REPLY_TO)
    rare_properties = (properties.expiration, properties.user_id)
    is_plain = not rare and not is_direct and rare_properties == (None, None)
    assert (shape.plain_at is not None) == is_plain
    header = publish_header(b"read" + payload, 4, 4 + len(payload), 5, shape.plain_at)
    assert header == decode_content_header(payload)
    assert header.plain == (
        (properties.delivery_mode or 0, properties.priority or 0) if is_plain else None
    )


@given(SHORT.filter(str.isascii), st.integers(0, 1 << 60))
def test_other_values_are_of_the_same_shape(text: str, number: int) -> None:
    def header(message_id: str, timestamp: int, attempt: int) -> bytes:
        headers: dict[str, FieldValue] = {"attempt": attempt, "trace": b"x" * 10}
        return payload_of(
            BasicProperties(headers=headers, message_id=message_id, timestamp=timestamp)
        )

    shapes = Shapes()
    shapes.learn(header(text, number, 1))
    assert shapes.find(header("y" * len(text), number + 1, 2)) is not None
    assert shapes.find(header("y" * len(text) + "z", number + 1, 2)) is None


def test_text_beyond_ascii_is_always_decoded() -> None:
    shapes = Shapes()
    shapes.learn(payload_of(BasicProperties(message_id="abcd")))
    assert shapes.find(payload_of(BasicProperties(message_id="aé!"))) is None
    shapes.learn(payload_of(BasicProperties(message_id="aé")))
    assert shapes.find(payload_of(BasicProperties(message_id="aé"))) is None


def test_envelopes_with_other_values_are_equal_to_parsed_ones() -> None:
    def raw(message_id: str) -> bytes:
        return encode_properties(
            BasicProperties(delivery_mode=2, priority=3, message_id=message_id)
        )

    first = parse_envelope("e", "käse", raw("a"), decode_properties(raw("a")))
    made = first.with_values(raw("b"))
    parsed = parse_envelope("e", "käse", raw("b"), decode_properties(raw("b")))
    slots = [name for kind in type(made).__mro__ for name in getattr(kind, "__slots__", ())]
    assert {name: getattr(made, name) for name in slots} == {
        name: getattr(parsed, name) for name in slots
    }


MESSAGES = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.text(min_size=3, max_size=3), st.binary(max_size=3)),
    max_size=12,
)


def stream_of(messages: list[tuple[str, str, bytes]]) -> bytes:
    stream = b""
    for key, message_id, content in messages:
        raw = encode_properties(BasicProperties(delivery_mode=2, message_id=message_id))
        stream += method_frame(1, BasicPublish(exchange="", routing_key=key).encode())
        stream += header_frame(1, encode_content_header(60, len(content), raw))
        stream += b"".join(bytes(part) for part in body_frames(1, content, 0))
    return stream


def received(receiver: Receiver, reads: list[bytes]) -> list[tuple[str, bytes, bytes]]:
    messages = []
    for read in reads:
        for event in receiver.receive(read):
            assert isinstance(event, Publishes)
            for target, header, content in zip(
                event.targets, event.headers, event.bodies, strict=True
            ):
                assert header.body_size == len(content)
                messages.append((target.publish.routing_key, header.properties, content))
    return messages


@given(MESSAGES)
def test_a_read_says_the_same_whole_and_byte_by_byte(
    messages: list[tuple[str, str, bytes]],
) -> None:
    stream = stream_of(messages)
    whole = received(Receiver(1 << 17, 1 << 20), [stream, stream])
    pieces = [stream[place : place + 1] for place in range(len(stream))] * 2
    assert whole == received(Receiver(1 << 17, 1 << 20), pieces)
    assert len(whole) == 2 * len(messages)


def test_shapes_are_bounded() -> None:
    shapes = Shapes()
    for size in range(200):
        shapes.learn(payload_of(BasicProperties(message_id="x" * size)))
    assert shapes._count <= 64
    assert sum(map(len, shapes._by_size.values())) == shapes._count


def test_envelopes_remembered_of_plain_headers_are_bounded() -> None:
    """Delivery-mode and priority are any octets."""
    envelopes = Envelopes("guest", lambda _user: False)
    target = Target(BasicPublish(exchange="", routing_key="q"))
    for mode in range(256):
        part = PublishSlice(target)
        for priority in range(8):
            raw = encode_properties(BasicProperties(delivery_mode=mode, priority=priority))
            part.headers.append(ContentHeader(60, 1, raw, (mode, priority)))
            part.bodies.append(b"x")
        groups = list(envelopes.messages(part, target, ""))
        assert [envelope.priority for envelope, _ in groups] == list(range(8))
        assert {envelope.persistent for envelope, _ in groups} == {mode == 2}
    assert len(envelopes._plain) <= 1024
