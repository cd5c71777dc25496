"""One record: what is written is read back, and nothing else is a record."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpstore import Envelope, Message
from amqpstore.format.message import encode_head
from amqpstore.format.records import (
    COMPRESSED,
    HEADER,
    MAGIC,
    Gap,
    Kind,
    MessageDecoder,
    Operation,
    OperationKind,
    Record,
    decode_message,
    decode_transaction,
    encode_messages,
    encode_record,
    encode_segment_header,
    encode_transaction,
    record_at,
)

SEGMENT = 7
SEED = 12345
BODY = b"a body" * 5
PAYLOAD = encode_head("ex", "key", b"\x10\x00\x02") + BODY
RECORD = encode_record(Kind.MESSAGE, 42, SEGMENT, PAYLOAD, seed=SEED, batch=5)

short_texts = st.text(max_size=60)
operations = st.builds(
    Operation,
    st.sampled_from([int(kind) for kind in OperationKind]),
    st.integers(1, 2**32 - 1),
    st.integers(1, 2**64 - 1),
    st.integers(1, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 255),
)


def decoder(envelopes: dict[bytes, Envelope]) -> MessageDecoder:
    """Return a decoder of messages whose bodies are not compressed."""
    return MessageDecoder(envelopes, lambda body: body)


def test_a_record_is_found_where_it_was_written() -> None:
    content = b"before" + RECORD + b"behind"
    found = record_at(content, 6, SEGMENT, SEED)
    assert found == Record(Kind.MESSAGE, 5, 42, 6, 6 + HEADER.size, 6 + len(RECORD))


@given(short_texts, short_texts, st.binary(max_size=40), st.binary(max_size=200))
def test_a_message_is_read_back_as_it_was_written(
    exchange: str, routing_key: str, properties: bytes, body: bytes
) -> None:
    buffers: list[bytes] = []
    lengths: list[int] = []
    envelope = Envelope(exchange, routing_key, properties)
    encode_messages(
        [Message(envelope, body)], 9, SEGMENT, buffers, lengths, seed=SEED, batch=0x10002
    )
    content = b"".join(buffers)
    assert lengths == [len(content)]
    payload = encode_head(exchange, routing_key, properties) + body
    assert content == encode_record(Kind.MESSAGE, 9, SEGMENT, payload, seed=SEED, batch=2)
    record = record_at(content, 0, SEGMENT, SEED)
    assert isinstance(record, Record)
    read = decode_message(content[record.payload_offset : record.end], 0, decoder({}))
    assert (record.number, read.body) == (9, body)
    assert read.envelope.exchange == exchange
    assert read.envelope.routing_key == routing_key
    assert read.envelope.properties == properties
    assert read.envelope.persistent


@given(st.lists(operations, max_size=5), st.integers(0, 2**64 - 1))
def test_a_transaction_is_read_back_as_it_was_written(
    written: list[Operation], time_ms: int
) -> None:
    content = encode_transaction(written, 3, SEGMENT, time_ms, seed=SEED)
    found = record_at(content, 0, SEGMENT, SEED)
    assert isinstance(found, Record)
    assert (found.kind, found.number) == (Kind.TRANSACTION, 3)
    assert decode_transaction(content[found.payload_offset : found.end], 1 << 80) == (
        time_ms,
        written,
    )


def test_messages_that_say_the_same_share_an_envelope() -> None:
    payload = encode_head("ex", "key", b"")
    envelopes: dict[bytes, Envelope] = {}
    one = decode_message(payload + b"one", 0, decoder(envelopes))
    two = decode_message(payload + b"two", 0, decoder(envelopes))
    assert one.envelope is two.envelope


@pytest.mark.parametrize("size", range(len(RECORD)))
def test_a_record_cut_anywhere_is_no_record(size: int) -> None:
    assert isinstance(record_at(RECORD[:size], 0, SEGMENT, SEED), Gap)


@pytest.mark.parametrize("offset", range(len(RECORD)))
def test_every_single_flipped_bit_is_noticed(offset: int) -> None:
    for bit in range(8):
        content = bytearray(RECORD)
        content[offset] ^= 1 << bit
        assert isinstance(record_at(bytes(content), 0, SEGMENT, SEED), Gap)


def test_a_sound_record_of_another_segment_is_refused() -> None:
    found = record_at(RECORD, 0, SEGMENT + 1, SEED)
    assert found == Gap(0, len(RECORD), f"the record was written for segment {SEGMENT}")


def test_a_sound_record_of_another_store_is_refused() -> None:
    found = record_at(RECORD, 0, SEGMENT, SEED + 1)
    assert found == Gap(0, 0, "the header's checksum does not match")


def test_a_payload_under_another_records_header_is_refused() -> None:
    other = encode_record(Kind.MESSAGE, 43, SEGMENT, bytes(len(RECORD) - HEADER.size), seed=SEED)
    swapped = other[: HEADER.size] + RECORD[HEADER.size :]
    # Not even with the payload's own checksum, which goes on from its own header.
    with_checksum = swapped[:28] + RECORD[28:32] + swapped[32:]
    assert isinstance(record_at(swapped, 0, SEGMENT, SEED), Gap)
    assert isinstance(record_at(with_checksum, 0, SEGMENT, SEED), Gap)


@pytest.mark.parametrize("kind", [0, 5, 255])
def test_a_kind_that_is_not_known_is_refused(kind: int) -> None:
    # encode_record packs any number; only the annotation says Kind.
    content = encode_record(kind, 1, SEGMENT, b"", seed=0 if kind == 1 else SEED)  # type: ignore[arg-type]
    found = record_at(content, 0, SEGMENT, SEED)
    assert found == Gap(0, len(content), f"kind {kind} with flags 0x0 is of a newer format")


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        (Kind.MESSAGE, 2),
        (Kind.MESSAGE, 0x81),
        (Kind.SEGMENT, 1),
        (Kind.TRANSACTION, 1),
        (Kind.INDEX, 1),
    ],
)
def test_flags_that_are_not_known_are_refused(kind: Kind, flags: int) -> None:
    seed = 0 if kind == Kind.SEGMENT else SEED
    content = encode_record(kind, 1, SEGMENT, b"", seed=seed, flags=flags)
    found = record_at(content, 0, SEGMENT, SEED)
    reason = f"kind {kind} with flags {flags:#x} is of a newer format"
    assert found == Gap(0, len(content), reason)


def test_the_flag_of_a_compressed_body_is_part_of_the_record() -> None:
    content = encode_record(Kind.MESSAGE, 1, SEGMENT, b"", seed=SEED, flags=COMPRESSED)
    found = record_at(content, 0, SEGMENT, SEED)
    assert isinstance(found, Record)
    assert found.flags == COMPRESSED


@given(st.integers(0, 4096))
@settings(max_examples=20)
def test_zeros_hold_no_record(size: int) -> None:
    content = bytes(size)
    for offset in range(0, size, 16):
        assert isinstance(record_at(content, offset, 0, SEED), Gap)


@given(st.binary(min_size=32, max_size=300), st.integers(0, 2**32 - 1))
def test_random_bytes_hold_no_record(content: bytes, segment: int) -> None:
    assert isinstance(record_at(content, 0, segment, SEED), Gap)
    assert isinstance(record_at(MAGIC + content, 0, segment, SEED), Gap)


def test_the_length_of_a_damaged_header_is_not_trusted() -> None:
    content = bytearray(RECORD)
    content[20:24] = (0xFFFFFFFF).to_bytes(4, "big")
    found = record_at(bytes(content), 0, SEGMENT, SEED)
    assert found == Gap(0, 0, "the header's checksum does not match")


@pytest.mark.parametrize("size", range(len(encode_head("ex", "key", b"properties"))))
def test_a_message_whose_lengths_do_not_fit_is_refused(size: int) -> None:
    with pytest.raises(ValueError):
        decode_message(encode_head("ex", "key", b"properties")[:size], 0, decoder({}))


def test_a_routing_key_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(ValueError):
        decode_message(b"\x00\x01\x00\x00\x00\x00\xff", 0, decoder({}))


@pytest.mark.parametrize("size", [0, 7, 9, 39, 41])
def test_a_transaction_of_no_whole_number_of_operations_is_refused(size: int) -> None:
    with pytest.raises(ValueError):
        decode_transaction(bytes(size), 1 << 30)


@pytest.mark.parametrize("text", ["x" * 256, "ü" * 128])
def test_a_name_longer_than_255_bytes_is_refused(text: str) -> None:
    for exchange, routing_key in ((text, ""), ("", text)):
        with pytest.raises(ValueError):
            Envelope(exchange, routing_key)


def test_a_segments_header_carries_its_number_twice() -> None:
    content = encode_segment_header(5, 1, bytes(16), 0)
    found = record_at(content, 0, 5, SEED)
    assert isinstance(found, Record)
    assert (found.kind, found.number) == (Kind.SEGMENT, 5)
    assert isinstance(record_at(content, 0, 6, SEED), Gap)
