"""Every field type comes back as the same bytes, through JSON and through msgpack."""

import re
import struct
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpstore_tools.transfer.fields import FieldError, decode_table, encode_table
from amqpstore_tools.transfer.properties import decode_properties, encode_properties

README = Path(__file__).parents[3] / "tools" / "README.md"

EXAMPLES: list[tuple[bytes, Any]] = [
    (b"t\0", False),
    (b"t\1", True),
    (b"t\7", {"bool": 7}),
    (b"b\xff", {"int8": -1}),
    (b"B\xff", {"uint8": 255}),
    (b"s\xff\xfe", {"int16": -2}),
    (b"U\xff\xfe", {"int16-U": -2}),
    (b"u\xff\xfe", {"uint16": 65534}),
    (b"I\xff\xff\xff\xff", -1),
    (b"i\xff\xff\xff\xff", {"uint32": 4294967295}),
    (b"l" + b"\xff" * 8, {"int64": -1}),
    (b"L" + b"\x7f" + b"\xff" * 7, {"int64-L": 9223372036854775807}),
    (b"f" + struct.pack(">f", 0.1), {"float": struct.unpack(">f", struct.pack(">f", 0.1))[0]}),
    (b"f\x7f\xc0\0\1", {"float": {"bits": b"\x7f\xc0\0\1"}}),
    (b"d" + struct.pack(">d", 1.0), {"double": 1.0}),
    (b"d" + struct.pack(">d", -0.0), {"double": -0.0}),
    (b"d" + struct.pack(">d", float("-inf")), {"double": {"bits": b"\xff\xf0" + bytes(6)}}),
    (b"D\x02\xff\xff\xff\x85", {"decimal": {"scale": 2, "unscaled": -123}}),
    (b"S\0\0\0\2\xc3\xa9", "é"),
    (b"S\0\0\0\1\xff", {"string": b"\xff"}),
    (b"T" + b"\xff" * 8, {"timestamp": (1 << 64) - 1}),
    (b"V", None),
    (b"x\0\0\0\1\xff", {"bytes": b"\xff"}),
    (b"A\0\0\0\2VV", [None, None]),
    (b"F\0\0\0\0", {"table": {}}),
    (b"F\0\0\0\3\1aV", {"table": {"a": None}}),
    (b"F\0\0\0\6\1aV\1aV", {"table": [["a", None], ["a", None]]}),
    (b"F\0\0\0\3\1\xffV", {"table": [[{"string": b"\xff"}, None]]}),
]


def through_json(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def through_msgpack(value: Any) -> Any:
    return msgpack.unpackb(msgpack.packb(value))


def table_of(*fields: bytes) -> bytes:
    content = b"".join(b"\1%c" % (97 + place) + field for place, field in enumerate(fields))
    return struct.pack(">I", len(content)) + content


@pytest.mark.parametrize(("field", "expected"), EXAMPLES)
def test_each_type(field: bytes, expected: Any) -> None:
    raw = table_of(field)
    table, end = decode_table(raw, 0)
    assert (table, end) == ({"a": expected}, len(raw))
    assert encode_table(through_json(table)) == raw
    assert encode_table(through_msgpack(table)) == raw


def test_the_readme_has_every_type() -> None:
    rows = re.findall(r"^\| `(.)` \|[^|]*\| (.*) \|$", README.read_text("utf-8"), re.MULTILINE)
    assert {tag for tag, _ in rows} == {chr(field[0]) for field, _ in EXAMPLES}
    for tag, examples in rows:
        for example in re.findall(r"`([^`]+)`", examples):
            encoded = encode_table({"x": msgspec.json.decode(example)})
            assert chr(encoded[6]) == tag, example


FIXED = {"b": 1, "B": 1, "s": 2, "U": 2, "u": 2, "I": 4, "i": 4, "l": 8, "L": 8, "T": 8, "f": 4}
FIXED |= {"d": 8, "D": 5, "t": 1, "V": 0}
LENGTH = struct.Struct(">I")


def counted(content: bytes) -> bytes:
    return LENGTH.pack(len(content)) + content


def fixed_fields() -> st.SearchStrategy[bytes]:
    return st.sampled_from(sorted(FIXED)).flatmap(
        lambda tag: st.binary(min_size=FIXED[tag], max_size=FIXED[tag]).map(
            lambda content: tag.encode() + content
        )
    )


def named(fields: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    names = st.binary(max_size=9) | st.text(max_size=3).map(str.encode)
    return st.tuples(names, fields).map(lambda pair: bytes([len(pair[0])]) + pair[0] + pair[1])


strings = st.tuples(st.sampled_from([b"S", b"x"]), st.binary(max_size=9)).map(
    lambda pair: pair[0] + counted(pair[1])
)
any_field = st.recursive(
    fixed_fields() | strings,
    lambda fields: (
        st.lists(fields, max_size=4).map(lambda parts: b"A" + counted(b"".join(parts)))
        | st.lists(named(fields), max_size=4).map(lambda parts: b"F" + counted(b"".join(parts)))
    ),
    max_leaves=12,
)
any_table = st.lists(named(any_field), max_size=5).map(lambda parts: counted(b"".join(parts)))


@given(any_table)
def test_any_table_comes_back(raw: bytes) -> None:
    table, end = decode_table(raw, 0)
    assert end == len(raw)
    assert encode_table(through_json(table)) == raw
    assert encode_table(through_msgpack(table)) == raw


@given(st.binary(max_size=60) | any_table.map(lambda table: b"\x20\0" + table))
def test_any_bytes_come_back_as_properties(raw: bytes) -> None:
    properties = decode_properties(raw)
    assert encode_properties(through_json(properties)) == raw
    assert encode_properties(through_msgpack(properties)) == raw


def test_properties_are_named() -> None:
    raw = b"\xff\xfc\1a\1b\0\0\0\0\2\4\1c\1d\1e\1f" + bytes(7) + b"\x07\1g\1h\1i\1\xff"
    found = decode_properties(raw)
    assert list(found)[:4] == ["content_type", "content_encoding", "headers", "delivery_mode"]
    assert found["timestamp"] == 7
    assert found["cluster_id"] == {"string": b"\xff"}
    assert encode_properties(found) == raw


@pytest.mark.parametrize("raw", [b"", b"\0", b"\0\1\0\0", b"\0\2", b"\x80\0", b"\x20\0\0\0\0\5a"])
def test_what_is_ill_formed_is_kept_as_it_is(raw: bytes) -> None:
    assert decode_properties(raw) == {"raw": raw}


@pytest.mark.parametrize(
    "value",
    [
        1 << 31,
        1.5,
        {},
        {"int8": 128},
        {"int8": True},
        {"int8": "1"},
        {"no type": 1},
        {"int8": 1, "int16": 1},
        {"decimal": 5},
        {"decimal": {"scale": 256, "unscaled": 0}},
        {"float": 1e300},
        {"float": {"bits": "AAA="}},
        {"bytes": "no base64!"},
        {"table": 5},
        {"table": [["a"]]},
        {"table": {"a" * 256: 1}},
        "\ud800",
    ],
)
def test_what_stands_for_no_field_is_refused(value: Any) -> None:
    with pytest.raises((FieldError, UnicodeEncodeError)):
        encode_table({"a": value})


def test_nesting_has_an_end() -> None:
    raw = b"V"
    for _ in range(5000):
        raw = b"A" + counted(raw)
    with pytest.raises(FieldError, match="nested"):
        decode_table(table_of(raw), 0)
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(FieldError, match="nested"):
        encode_table({"a": deep})


def test_names_that_occur_twice_in_nested_tables_take_no_longer() -> None:
    field = b"V"
    for _ in range(100):
        content = b"\1a" + field + b"\1aV"
        field = b"F" + struct.pack(">I", len(content)) + content
    table, end = decode_table(field, 1)
    assert end == len(field)
    assert encode_table(table) == field[1:]
