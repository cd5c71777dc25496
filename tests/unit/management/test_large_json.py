"""JSON with much in it is decoded in pieces, to what it would be otherwise."""

import json
from typing import Any

import msgspec
import pytest

from amqpstore_server.administration.large_json import json_of
from amqpstore_server.management.bodies import NoBody, decoded
from amqpstore_server.management.errors import HttpError
from amqpstore_server.protocol.bounds import MAX_BODY_ENTRIES
from tests.unit.management.turns import others

ROOM = " " * (64 << 10)


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"queues": [{"name": "q", "arguments": {"a": [1, [2.5, None]]}}], "x": True, "": "\u20ac"},
        {"a": [], "b": [[]], "c": {"d": [{}]}, "e": 1 << 70, "f": "[1,2"},
        [1, {"a": 2}],
        "text",
        None,
    ],
)
@pytest.mark.parametrize("indent", [None, 3])
def test_it_is_the_same_in_pieces(value: Any, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    assert json_of((text + ROOM).encode()) == json_of(text.encode()) == value


def test_of_equal_names_the_last_counts() -> None:
    assert json_of(('{"a": [1], "a": [2]}' + ROOM).encode()) == {"a": [2]}


@pytest.mark.parametrize(
    "wrong", ["{", '{"a": [1, 2}', '{"a": [1 2]}', '{"a": [{"b": tru}]}', "{} {}", '{"a": [1,]}']
)
def test_what_is_wrong_is_found_in_pieces_too(wrong: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        json_of((wrong + ROOM).encode())
    with pytest.raises((msgspec.DecodeError, RecursionError)):
        json_of(b'{"a": ' + b"[" * 100_000)


@pytest.mark.trio
async def test_others_have_their_turn_while_entries_are_counted() -> None:
    async with others() as turns:
        with pytest.raises(HttpError, match="entries"):
            await decoded(b'{"a":[' + b"[1]," * 2_000_000 + b"1]}", NoBody)
        assert turns.count > 20


@pytest.mark.trio
async def test_the_body_holds_as_many_entries_as_it_may() -> None:
    for count, expected in ((MAX_BODY_ENTRIES - 1, ""), (MAX_BODY_ENTRIES, "entries")):
        reason = ""
        try:
            await decoded(json.dumps({"a": [1] * count}).encode(), NoBody)
        except HttpError as error:
            reason = error.reason
        assert expected in reason
        assert bool(reason) is bool(expected)
