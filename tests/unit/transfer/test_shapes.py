"""Properties whose shape is known have the same JSON as those that are decoded field by field."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from amqpstore_tools.transfer import shapes
from amqpstore_tools.transfer.properties import decode_properties, encode_properties
from amqpstore_tools.transfer.shapes import PropertyShapes

encode_lines = msgspec.json.Encoder().encode_lines

TEXTS = ["", "eu", "é", "%d %b %", 'say "no"', "a\\b", "\n\0", "x" * 300, "\x7f", "日本語"]
NAMES = ["a", "b", "trace", "100%", 'quo"ted', "back\\slash", "é", "nul\0", ""]
PLAIN = ["content_type", "correlation_id", "reply_to", "message_id", "type", "app_id"]


def value(rng: random.Random, depth: int = 0) -> Any:
    """A value of a field table, of any type."""
    kind = rng.randrange(18)
    if kind < 6:
        return rng.choice(TEXTS)
    if kind < 9:
        return rng.randrange(-(1 << 31), 1 << 31)
    if kind == 9:
        return rng.choice([True, False, None])
    if kind == 10:
        return {"int64": rng.randrange(-(1 << 63), 1 << 63)}
    if kind == 11:
        return {"timestamp": rng.randrange(1 << 64)}
    if kind == 12:
        return rng.choice([{"int8": -5}, {"uint8": 200}, {"int16": -300}, {"uint32": 1 << 31}])
    if kind == 13:
        return rng.choice([{"double": rng.random()}, {"float": 0.5}, {"bytes": b"\xff\0"}])
    if kind == 14:
        return rng.choice([{"string": b"\xff"}, {"decimal": {"scale": 1, "unscaled": 5}}])
    if depth > 3:
        return rng.choice(TEXTS)
    if kind == 15:
        return [value(rng, depth + 1) for _ in range(rng.randrange(3))]
    return {"table": table(rng, depth + 1)}


def table(rng: random.Random, depth: int = 0) -> Any:
    pairs = [[name, value(rng, depth)] for name in rng.sample(NAMES, rng.randrange(4))]
    if rng.randrange(20) == 0:
        return [*pairs, ["twice", 1], ["twice", 2]]
    return dict(pairs)


def example(rng: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: rng.choice(TEXTS)[:80] for name in PLAIN if rng.randrange(3) == 0
    }
    if rng.randrange(2):
        found["headers"] = table(rng)
    if rng.randrange(2):
        found["delivery_mode"] = rng.randrange(256)
        found["timestamp"] = rng.randrange(1 << 64)
    return found


def others_of_a_shape(rng: random.Random, raw: bytes) -> Iterator[bytes]:
    """Properties with other bytes in some places: most of them have the same shape."""
    for _ in range(12):
        changed = bytearray(raw)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(raw))] = rng.choice(
                b'09azAZ "\\\n%\x7f\x80\xc3\xa9\0\1\2\xff'
            )
        yield bytes(changed)


def field_by_field(column: Sequence[bytes]) -> bytes:
    return encode_lines([decode_properties(raw) for raw in column])


@pytest.mark.parametrize("seed", range(10))
def test_any_properties(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "_MAX_FAILED", 1 << 30)
    monkeypatch.setattr(shapes, "_ROUND", 1 << 30)
    rng = random.Random(seed)
    firsts = [encode_properties(example(rng)) for _ in range(40)]
    known = PropertyShapes()
    encoded = 0
    for _ in range(6):
        column = [*firsts, *(one for raw in firsts for one in others_of_a_shape(rng, raw))]
        rng.shuffle(column)
        for start in range(0, len(column), 50):
            part = column[start : start + 50]
            values = known.json_values(part)
            encoded += sum(are_encoded(values))
            for raw, one in zip(part, values, strict=True):
                assert encode_lines([one]) == field_by_field([raw]), raw
    assert encoded > 200


def with_headers(**headers: Any) -> bytes:
    return encode_properties({"headers": headers, "delivery_mode": 2, "message_id": f"{5:032x}"})


def are_encoded(values: list[Any]) -> list[bool]:
    return [isinstance(one, msgspec.Raw) for one in values]


def test_texts_that_json_escapes_are_decoded_and_those_beside_them_are_not() -> None:
    known = PropertyShapes()
    known.json_values([with_headers(a="12345", n=1)])
    texts = ["abcde", 'ab"cd', "ab\\cd", "ab\ncd", "abc\u00e9", "\u65e5de"]
    column = [with_headers(a=text, n=place) for place, text in enumerate(texts)]
    # Not UTF-8; and bytes that are UTF-8 only together with those of the next.
    column.append(column[0].replace(b"abcde", b"abcd\xc3"))
    column.append(column[0].replace(b"abcde", b"\xa9bcde"))
    values = known.json_values(column)
    assert are_encoded(values) == [True, False, False, False, True, True, False, False]
    assert encode_lines(values) == field_by_field(column)


def test_properties_that_have_no_shape_are_tried_a_few_times_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[bytes] = []

    def no_shape(raw: bytes) -> None:
        tried.append(raw)

    monkeypatch.setattr(shapes, "_shape_of", no_shape)
    known = PropertyShapes()
    for _ in range(5):
        known.json_values([with_headers(n={"double": 0.5})] * 200)
    assert len(tried) == shapes._MAX_FAILED


def test_shapes_are_given_up_where_each_is_another_and_looked_for_again() -> None:
    known = PropertyShapes()
    rng = random.Random(1)
    alike = [with_headers(n=number) for number in range(256)]

    def unlike() -> list[bytes]:
        return [with_headers(**{f"{rng.getrandbits(40):x}": 1}) for _ in range(256)]

    for _ in range(shapes._ROUND // 256):
        known.json_values(unlike())
    assert not any(are_encoded(known.json_values(alike * 2)))
    for _ in range(shapes._PAUSE // 256 - 2):
        known.json_values(unlike())
    assert not any(are_encoded(known.json_values(alike)))
    assert all(are_encoded(known.json_values(alike)))
    for _ in range(shapes._ROUND // 256):
        known.json_values(alike)
    assert all(are_encoded(known.json_values(alike)))


def test_no_more_shapes_are_remembered_than_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "_MAX_SHAPES", 5)
    known = PropertyShapes()
    column = [with_headers(**{"n" * size: 1}) for size in range(1, 10)]
    known.json_values(column)
    assert sum(are_encoded(known.json_values(column))) == 5


def test_long_properties_and_deep_ones_are_decoded() -> None:
    known = PropertyShapes()
    deep: Any = "x"
    for _ in range(50):
        deep = {"table": {"a": deep}}
    column = [with_headers(a="x" * 2000), with_headers(a=deep)] * 2
    for _ in range(2):
        values = known.json_values(column)
        assert not any(are_encoded(values))
        assert encode_lines(values) == field_by_field(column)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0",
        b"\0\0",
        b"\0\3",
        b"\x80\0\x05ab",
        b"\0\0more",
        b"\x20\0\0\0\0\x06\x01aS\0\0\0\x05hello",
        b"\x20\0\0\0\0\x0c\x01aA\0\0\0\x04I\0\0\0\1",
    ],
)
def test_properties_that_are_none(raw: bytes) -> None:
    known = PropertyShapes()
    for _ in range(2):
        assert encode_lines(known.json_values([raw])) == field_by_field([raw])
