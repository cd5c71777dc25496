"""Decoding ends in a value or in an AmqpError, whatever the bytes are."""

import contextlib
import struct
from collections.abc import Callable

from hypothesis import example, given
from hypothesis import strategies as st

from amqpstore_server.protocol.content import (
    decode_content_header,
    encode_properties,
)
from amqpstore_server.protocol.errors import AmqpError
from amqpstore_server.protocol.field_table import decode_table, encode_table
from amqpstore_server.protocol.methods import METHODS, decode_method
from tests.content_header import encode_content_header
from tests.unit.protocol import strategies

garbage = st.binary(max_size=200)
table_garbage = st.lists(
    st.one_of(
        st.sampled_from([bytes([tag]) for tag in b"tbBsuUIilLfdDSATFVx"]),
        st.binary(max_size=3),
        st.integers(0, 40).map(lambda size: struct.pack(">I", size)),
        st.just(b"\x01a"),
    ),
    max_size=60,
).map(b"".join)


def tolerate(decode: Callable[[bytes], object], payload: bytes) -> None:
    with contextlib.suppress(AmqpError):
        decode(payload)


def mutated(encoded: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Well-formed bytes with one stretch of them replaced."""

    def replace(whole: bytes, offset: int, size: int, by: bytes) -> bytes:
        start = offset % (len(whole) + 1)
        return whole[:start] + by + whole[start + size :]

    return st.builds(
        replace, encoded, st.integers(0, 1000), st.integers(0, 5), st.binary(max_size=5)
    )


@given(garbage | mutated(strategies.methods.map(lambda method: method.encode())))
def test_garbage_as_method(payload: bytes) -> None:
    tolerate(decode_method, payload)


@given(st.sampled_from(sorted(METHODS)), garbage)
def test_garbage_as_arguments(ids: tuple[int, int], arguments: bytes) -> None:
    tolerate(decode_method, struct.pack(">HH", *ids) + arguments)


@given(garbage | mutated(strategies.properties().map(encode_properties)))
def test_garbage_as_properties(raw: bytes) -> None:
    tolerate(decode_content_header, raw)
    tolerate(decode_content_header, encode_content_header(60, 1, raw))


@given(garbage | mutated(strategies.tables().map(encode_table)), st.integers(0, 10))
@example(b"\x00" * 4, 10)
def test_garbage_as_table(encoded: bytes, offset: int) -> None:
    tolerate(lambda buffer: decode_table(buffer, offset), encoded)


@given(table_garbage)
def test_tags_and_lengths_at_random_as_table(entries: bytes) -> None:
    encoded = struct.pack(">I", len(entries)) + entries
    tolerate(lambda buffer: decode_table(buffer, 0), encoded)
