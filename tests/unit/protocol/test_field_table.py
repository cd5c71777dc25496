"""Field tables: every tag's bytes, what is no table, and what is read is what was written."""

import struct
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpstore_server.protocol.bounds import MAX_DEPTH, MAX_ENTRIES
from amqpstore_server.protocol.errors import MalformedError, PreconditionFailed
from amqpstore_server.protocol.field_table import (
    OWN_HEADERS,
    FieldValue,
    Timestamp,
    check_table,
    count_entries,
    decode_table,
    encode_name,
    encode_table,
    without_fields,
)
from tests.unit.protocol import strategies


def table(entries: bytes) -> bytes:
    return struct.pack(">I", len(entries)) + entries


def entry(tagged: bytes, name: bytes = b"k") -> bytes:
    return bytes([len(name)]) + name + tagged


def typed(value: FieldValue) -> Any:
    """The value with its types, as True == 1 == Timestamp(1) == Decimal(1) hides them."""
    if isinstance(value, dict):
        return {key: typed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [typed(inner) for inner in value]
    return type(value), str(value) if isinstance(value, (float, Decimal)) else value


# (bytes of the value with its tag, the value, whether it encodes to the same bytes again)
VALUES: list[tuple[bytes, FieldValue, bool]] = [
    (b"t\x00", False, True),
    (b"t\x01", True, True),
    (b"t\xff", True, False),
    (b"b\xff", -1, False),
    (b"B\xff", 255, False),
    (b"s\xff\xfe", -2, False),
    (b"U\xff\xfe", -2, False),
    (b"u\xff\xfe", 65534, False),
    (b"I\x80\x00\x00\x00", -(1 << 31), True),
    (b"I\x7f\xff\xff\xff", (1 << 31) - 1, True),
    (b"i\x80\x00\x00\x00", 1 << 31, False),
    (b"l\x00\x00\x00\x00\x80\x00\x00\x00", 1 << 31, True),
    (b"l\x80\x00\x00\x00\x00\x00\x00\x00", -(1 << 63), True),
    (b"L\xff\xff\xff\xff\xff\xff\xff\xff", -1, False),
    (b"f\x3f\xc0\x00\x00", 1.5, False),
    (b"d\x3f\xf8\x00\x00\x00\x00\x00\x00", 1.5, True),
    (b"d\xff\xf0\x00\x00\x00\x00\x00\x00", float("-inf"), True),
    (b"D\x02\x00\x00\x01\x3b", Decimal("3.15"), True),
    (b"D\x00\xff\xff\xff\xff", Decimal(-1), True),
    (b"D\xff\x7f\xff\xff\xff", Decimal("2147483647E-255"), True),
    (b"S\x00\x00\x00\x02\xc3\xa9", "é", True),
    (b"S\x00\x00\x00\x00", "", True),
    (b"S\x00\x00\x00\x01\xff", b"\xff", False),
    (b"x\x00\x00\x00\x02\xc3\xa9", b"\xc3\xa9", True),
    (b"T\xff\xff\xff\xff\xff\xff\xff\xff", Timestamp((1 << 64) - 1), True),
    (b"V", None, True),
    (b"A\x00\x00\x00\x00", [], True),
    (b"A\x00\x00\x00\x03t\x01V", [True, None], True),
    (b"F\x00\x00\x00\x00", {}, True),
    (b"F\x00\x00\x00\x04\x01at\x01", {"a": True}, True),
]


@pytest.mark.parametrize(("tagged", "value", "is_kept"), VALUES)
def test_a_value_is_read_whole(tagged: bytes, value: FieldValue, is_kept: bool) -> None:
    encoded = table(entry(tagged))
    decoded, offset = decode_table(encoded, 0)
    assert (typed(decoded), offset) == (typed({"k": value}), len(encoded))
    assert (encode_table({"k": value}) == encoded) is is_kept


@pytest.mark.parametrize(("tagged", "value", "_is_kept"), VALUES)
def test_every_truncation_is_malformed(tagged: bytes, value: FieldValue, _is_kept: bool) -> None:
    whole = entry(tagged)
    for size in range(1, len(whole)):
        with pytest.raises(MalformedError):
            decode_table(table(whole[:size]), 0)
    for size in range(len(whole) + 4):
        with pytest.raises(MalformedError):
            decode_table(table(whole)[:size], 0)


@pytest.mark.parametrize(("tagged", "_value", "_is_kept"), VALUES)
def test_a_value_that_runs_past_its_table_is_malformed(
    tagged: bytes, _value: FieldValue, _is_kept: bool
) -> None:
    """The bytes are there, but they belong to what comes after the table."""
    whole = entry(tagged)
    with pytest.raises(MalformedError, match="past"):
        decode_table(struct.pack(">I", len(whole) - 1) + whole + bytes(300), 0)


def test_a_table_starts_and_ends_where_it_says() -> None:
    encoded = b"abc" + table(entry(b"V")) + b"xyz"
    assert decode_table(encoded, 3) == ({"k": None}, len(encoded) - 3)


def test_of_equal_names_the_last_counts() -> None:
    assert decode_table(table(entry(b"t\x00") + entry(b"V")), 0)[0] == {"k": None}


@pytest.mark.parametrize(
    "entries",
    [
        entry(b"z\x00"),
        entry(b"\x00"),
        entry(b"A\x00\x00\x00\x05t\x01"),
        entry(b"A\x00\x00\x00\x01t\x01"),
        entry(b"F\x00\x00\x00\x05\x01at\x01"),
        entry(b"F\xff\xff\xff\xff\x01at\x01"),
        entry(b"S\xff\xff\xff\xff"),
        entry(b"V", name=b"\xff"),
    ],
)
def test_malformed_entries(entries: bytes) -> None:
    with pytest.raises(MalformedError):
        decode_table(table(entries), 0)


def nested(depth: int, tag: bytes) -> bytes:
    """A table with arrays or tables in it, `depth` in all."""
    inner = b""
    for _ in range(depth - 1):
        inner = tag + table(inner) if tag == b"A" else entry(tag + table(inner))
    return table(entry(inner) if tag == b"A" and inner else inner)


@pytest.mark.parametrize("tag", [b"A", b"F"])
def test_nesting_has_a_limit(tag: bytes) -> None:
    decode_table(nested(MAX_DEPTH, tag), 0)
    for depth in (MAX_DEPTH + 1, 5000):
        with pytest.raises(PreconditionFailed, match="nested"):
            decode_table(nested(depth, tag), 0)


def test_entries_have_a_limit_however_deep() -> None:
    array = b"V" * (MAX_ENTRIES - 1)
    decoded, _ = decode_table(table(entry(b"A" + table(array))), 0)
    assert decoded == {"k": [None] * (MAX_ENTRIES - 1)}
    with pytest.raises(PreconditionFailed, match="entries"):
        decode_table(table(entry(b"A" + table(array + b"V"))), 0)
    with pytest.raises(PreconditionFailed, match="entries"):
        decode_table(table(entry(b"A" + table(array)) + entry(b"V", name=b"l")), 0)


@pytest.mark.parametrize(
    "value",
    [
        1 << 63,
        -(1 << 63) - 1,
        Timestamp(-1),
        Timestamp(1 << 64),
        Decimal(1 << 31),
        Decimal("1E+999999"),
        Decimal("1E-256"),
        Decimal("NaN"),
        Decimal("-Infinity"),
        "\ud800",
    ],
)
def test_a_value_that_no_tag_can_hold_is_a_value_error(value: FieldValue) -> None:
    with pytest.raises(ValueError):
        encode_table({"k": value})


def test_a_type_without_a_tag_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        encode_table({"k": 1j})  # type: ignore[dict-item]


def test_a_name_longer_than_255_bytes_is_a_value_error() -> None:
    with pytest.raises(ValueError):
        encode_table({"é" * 128: None})


def test_a_subclass_is_encoded_as_its_base() -> None:
    class Text(str):
        __slots__ = ()

    assert encode_table({"k": Text("a")}) == encode_table({"k": "a"})
    assert encode_table({"k": bytearray(b"a")}) == encode_table({"k": b"a"})
    assert encode_table({"k": Decimal("2E+3")}) == encode_table({"k": Decimal(2000)})


@given(strategies.tables())
def test_what_is_written_is_read(values: dict[str, FieldValue]) -> None:
    encoded = encode_table(values)
    decoded, offset = decode_table(encoded, 0)
    assert (typed(decoded), offset) == (typed(values), len(encoded))
    assert encode_table(decoded) == encoded


def test_a_table_may_have_the_size_of_a_frame() -> None:
    size = 16 << 20
    value = b"\x01kx" + struct.pack(">I", size) + bytes(size)
    table, _ = decode_table(struct.pack(">I", len(value)) + value, 0)
    assert table == {"k": bytes(size)}


def test_the_headers_of_the_broker_itself_do_not_count_as_entries() -> None:
    own: dict[str, FieldValue] = dict.fromkeys(sorted(OWN_HEADERS))
    others: dict[str, FieldValue] = {f"{number}": None for number in range(MAX_ENTRIES)}
    decode_table(encode_table({**own, **others}), 0)
    with pytest.raises(PreconditionFailed):
        decode_table(encode_table({**own, **others, "one more": None}), 0)
    with pytest.raises(PreconditionFailed):
        decode_table(encode_table({**others, "one more": None}), 0)


@given(strategies.tables())
def test_entries_are_counted_without_being_decoded(values: dict[str, FieldValue]) -> None:
    def count(value: FieldValue) -> int:
        if isinstance(value, dict):
            value = list(value.values())
        return sum(1 + count(one) for one in value) if isinstance(value, list) else 0

    assert count_entries(encode_table(values)) == count(values)


def verdict(encoded: bytes) -> Any:
    """Return where `check_table` says that a table ends, or what is wrong with it."""
    try:
        return check_table(encoded, 0)[1]
    except (MalformedError, PreconditionFailed) as error:
        return type(error), str(error)


def verdict_of_reading(encoded: bytes) -> Any:
    try:
        return decode_table(encoded, 0)[1]
    except (MalformedError, PreconditionFailed) as error:
        return type(error), str(error)


@given(strategies.tables())
def test_a_check_counts_what_is_read(values: dict[str, FieldValue]) -> None:
    encoded = encode_table(values)
    assert check_table(encoded + b"more", 0) == (count_entries(encoded), len(encoded))


@given(strategies.tables(), st.data())
def test_a_check_refuses_what_is_not_read(
    values: dict[str, FieldValue], data: st.DataObject
) -> None:
    """The check says what the read says if one octet of a table is wrong, or the table is cut."""
    encoded = bytearray(encode_table(values))
    place = data.draw(st.integers(0, len(encoded) - 1))
    encoded[place] = data.draw(st.integers(0, 255))
    for one in (bytes(encoded), bytes(encoded[:place]), bytes(encoded) + b"\0\0"):
        assert verdict(one) == verdict_of_reading(one)


@pytest.mark.parametrize("tag", [b"A", b"F"])
def test_a_check_has_the_same_limits(tag: bytes) -> None:
    for count in (MAX_ENTRIES - 1, MAX_ENTRIES, MAX_ENTRIES + 1, MAX_ENTRIES + len(OWN_HEADERS)):
        flat = table(entry(b"V", b"") * count)
        own = table(b"".join(entry(b"V", name.encode()) for name in OWN_HEADERS) + flat[4:])
        for one in (flat, own):
            assert verdict(one) == verdict_of_reading(one)
    for depth in (MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1):
        nested = b"V"
        for _ in range(depth - 1):
            nested = tag + table(nested if tag == b"A" else entry(nested))
        assert verdict(table(entry(nested))) == verdict_of_reading(table(entry(nested)))


@given(strategies.tables(), strategies.tables(), st.lists(strategies.field_values(), max_size=2))
def test_fields_are_left_out_wherever_they_are(
    before: dict[str, FieldValue], after: dict[str, FieldValue], values: list[FieldValue]
) -> None:
    """Names may also stand in values, and there they stay."""
    names = [f"left{number}" for number in range(len(values))]
    kept: dict[str, FieldValue] = {
        **before,
        "text": "\x05left0\x05left1",
        "tables": [{"left0": 1}],
        **after,
    }
    gone = dict(zip(names, values, strict=True))
    encoded = [encode_name(name) for name in names]
    for one in ({**gone, **kept}, {**kept, **gone}, {**before, **gone, **kept}):
        found = without_fields(encode_table(one), encoded)
        left = {name: value for name, value in one.items() if name not in gone}
        assert typed(decode_table(found, 0)[0]) == typed(left)
    assert without_fields(encode_table(kept), encoded) == encode_table(kept)
