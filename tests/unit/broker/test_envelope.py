"""Envelopes: what the broker has to know of a message, read from its properties once."""

from typing import Any

import pytest

from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.messages.envelope import (
    ParsedEnvelope,
    expiration_ms,
    more_keys,
    parse_envelope,
    visible,
)
from amqpstore_server.protocol.content import BasicProperties, decode_properties, encode_properties


def labelled(**properties: Any) -> ParsedEnvelope:
    of_all = BasicProperties(**properties)
    return parse_envelope("exchange", "key", encode_properties(of_all), of_all)


def test_what_says_nothing_is_transient_and_of_priority_0() -> None:
    found = labelled()
    assert not found.persistent
    assert found.priority == 0
    assert found.expiration_ms is None
    assert found.address == ("exchange", ("key",))


@pytest.mark.parametrize("mode", [None, 0, 1, 2, 3, 255])
def test_only_delivery_mode_2_is_persistent(mode: int | None) -> None:
    assert labelled(delivery_mode=mode).persistent == (mode == 2)


def test_cc_and_bcc_are_routing_keys_behind_its_own() -> None:
    found = labelled(headers={"BCC": ["b", "key"], "CC": ["c1", "c2"]})
    assert found.address == ("exchange", ("key", "c1", "c2", "b", "key"))


@pytest.mark.parametrize("name", ["CC", "BCC"])
@pytest.mark.parametrize("value", ["a", 5, None, {"a": 1}, [1], ["a", 5], ["a", None], [["a"]]])
def test_keys_that_are_no_array_of_strings_are_refused(name: str, value: Any) -> None:
    with pytest.raises(PreconditionFailedError, match=f"unacceptable type in the header {name}"):
        labelled(headers={name: value})


def test_a_key_that_is_too_long_for_the_wire_is_refused() -> None:
    assert labelled(headers={"CC": ["k" * 255]}).address[1][1] == "k" * 255
    for key in ("k" * 256, "ö" * 128):
        with pytest.raises(PreconditionFailedError, match="has over 255 bytes"):
            labelled(headers={"CC": [key]})


def test_no_keys_at_all() -> None:
    assert more_keys(None, ("CC", "BCC")) == ()
    assert more_keys({}, ("CC", "BCC")) == ()
    assert more_keys({"CC": []}, ("CC",)) == ()
    assert more_keys({"CC": ["a"], "BCC": ["b"]}, ["CC"]) == ("a",)


@pytest.mark.parametrize(
    ("text", "ms"), [(None, None), ("0", 0), ("007", 7), ("60000", 60_000), (str(2**52), 2**52)]
)
def test_an_expiration_is_a_number_of_ms(text: str | None, ms: int | None) -> None:
    assert expiration_ms(text) == ms


@pytest.mark.parametrize(
    "text",
    ["", " ", "1 ", "-1", "+1", "1.5", "1e3", "0x1", "²", "٣", "a", str(2**52 + 1), "9" * 255],
)
def test_an_expiration_that_is_no_number_of_ms_is_refused(text: str) -> None:
    with pytest.raises(PreconditionFailedError, match="invalid expiration"):
        expiration_ms(text)


def test_alike_is_what_is_handled_in_one_go() -> None:
    one = labelled(delivery_mode=2, message_id="1", headers={"a": 1})
    assert one.alike == labelled(delivery_mode=2, message_id="2").alike
    others: list[dict[str, Any]] = [
        {},
        {"priority": 1},
        {"expiration": "5"},
        {"headers": {"CC": ["a"]}},
        {"headers": {"BCC": ["a"]}},
    ]
    alike = {labelled(delivery_mode=2, **other).alike for other in others[1:]}
    assert one.alike not in alike
    assert labelled().alike != one.alike


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("value", [{"BCC": "mark", "deaths": 1}, {"BCC": "m"}, 5, "text", [1, 2]])
@pytest.mark.parametrize("more", [{}, {"BCC": ["b"]}, {"text": "\x03BCC"}])
def test_a_landmark_is_shown_to_nobody_wherever_it_is(
    value: Any, more: dict[str, Any], *, first: bool
) -> None:
    """One that a client has written may be of any type."""
    others = {"a": 1, **more, "z": {"x-death-landmark": 1}}
    marked = {"x-death-landmark": value}
    headers = {**marked, **others} if first else {**others, **marked}
    raw = encode_properties(BasicProperties(headers=headers, message_id="m"))
    seen = visible(raw)
    if b"\x03BCC" in raw:
        assert decode_properties(seen) == BasicProperties(
            headers={name: one for name, one in others.items() if name != "BCC"}, message_id="m"
        )
    else:
        assert seen is raw


def test_bcc_is_shown_to_nobody() -> None:
    raw = encode_properties(BasicProperties(headers={"CC": ["c"], "BCC": ["b"], "x": 1}))
    assert decode_properties(visible(raw)).headers == {"CC": ["c"], "x": 1}
    harmless = encode_properties(BasicProperties(headers={"other": "\x03BCC"}))
    assert decode_properties(visible(harmless)).headers == {"other": "\x03BCC"}
    plain = encode_properties(BasicProperties(message_id="m"))
    assert visible(plain) is plain
