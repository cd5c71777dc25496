"""JSON is counted as it is decoded, and before it is."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amqpstore_server.protocol.bounds import (
    MAX_ARGUMENTS_DEPTH,
    MAX_ENTRIES,
    TooLargeError,
    check_fields,
    counting_json,
)

VALUES = st.recursive(
    st.none() | st.integers() | st.text() | st.sampled_from(["[,{", "\\", '"', '\\\\"]']),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def entries(value: Any) -> int:
    """Return how many entries all objects and arrays of a value have."""
    if not isinstance(value, list | dict):
        return 0
    inside = value if isinstance(value, list) else value.values()
    return len(value) + sum(map(entries, inside))


def steps(content: bytes, most: int) -> int:
    return sum(1 for _ in counting_json("it", content, most))


@example(value="[,{", indent=None)
@given(value=VALUES, indent=st.sampled_from([None, 0, 2]))
def test_what_is_counted_is_what_there_is(value: Any, indent: int | None) -> None:
    content = json.dumps(value, indent=indent, ensure_ascii=False).encode(errors="replace")
    count = entries(value)
    steps(content, count)
    if count:
        with pytest.raises(TooLargeError, match=f"it has more than {count - 1} entries"):
            steps(content, count - 1)


@given(
    content=st.binary() | st.text(alphabet='[]{},:"\\ a').map(str.encode), most=st.integers(0, 9)
)
def test_what_is_not_json_ends_as_well(content: bytes, most: int) -> None:
    with contextlib.suppress(TooLargeError):
        steps(content, most)


@pytest.mark.parametrize(
    ("content", "most_steps"),
    [
        (b'{"x":"' + b"," * 5_000_000 + b'"}', 50),
        (b'{"x":"' + rb"\"," * 1_000_000 + b'"}', 600),
        (b'{"x":"' + b"," * 100 + b"\\" * 2_000_000 + b'"}', 50),
        (b'"",' * 20 + b'""' * 1_000_000, 30),
    ],
    ids=["text", "quotes", "slashes", "strings"],
)
def test_no_step_is_long_and_no_content_takes_very_many(content: bytes, most_steps: int) -> None:
    """Each step looks at some 100 KiB, or at some thousands of marks."""
    with contextlib.suppress(TooLargeError):
        assert 0 < steps(content, 50) < most_steps


def test_too_many_entries_are_found_early() -> None:
    found = counting_json("it", b"[" + b"[1],[]," * 1_000_000 + b"1]", MAX_ENTRIES)
    with pytest.raises(TooLargeError):
        for number, _ in enumerate(found):
            assert number < 100


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


def test_a_table_is_measured_as_one_of_amqp() -> None:
    check_fields("arguments", dict.fromkeys(map(str, range(MAX_ENTRIES)), 1))
    check_fields("arguments", {"a": {"b": [1] * (MAX_ENTRIES - 2)}})
    check_fields("arguments", nested(MAX_ARGUMENTS_DEPTH))
    for wrong, reason in (
        (dict.fromkeys(map(str, range(MAX_ENTRIES + 1)), 1), "`arguments` has more than 16384"),
        ({"a": {"b": [1] * (MAX_ENTRIES - 1)}}, "`arguments` has more than 16384 entries"),
        (nested(MAX_ARGUMENTS_DEPTH + 1), "`arguments` is nested more than 126 deep"),
    ):
        with pytest.raises(TooLargeError, match=reason):
            check_fields("arguments", wrong)
