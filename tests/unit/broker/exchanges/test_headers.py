"""The headers exchange: the modes, reserved names, presence, types; and a naive model of it all."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpstore_server.amqp.arguments import plain
from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.exchanges import headers as headers_module
from amqpstore_server.broker.exchanges.base import Binding
from amqpstore_server.broker.exchanges.headers import HeadersExchange
from amqpstore_server.protocol.content import BasicProperties
from amqpstore_server.protocol.field_table import FieldValue, Timestamp
from tests.unit.broker.exchanges.made import bind, destination, made, routed
from tests.unit.protocol.strategies import field_values

names = st.sampled_from(["a", "b", "x-a", "x-b", "x-match"])
values = st.sampled_from([None, 0, 1, True, False, "", "1", 1.0, b"1", [1], [True], {"a": 1}])


def matches(arguments: dict[str, Any], headers: dict[str, Any] | None) -> bool:
    exchange = made(HeadersExchange)
    bind(exchange, destination("there"), "", plain(arguments))
    return routed(exchange, "any key", BasicProperties(headers=headers)) == ["there"]


MODES = ["all", "any", "all-with-x", "any-with-x"]
BOTH = {"a": 1, "b": "two"}


@pytest.mark.parametrize(
    ("headers", "by_all", "by_any"),
    [
        ({"a": 1, "b": "two", "c": 3}, True, True),
        ({"a": 1}, False, True),
        ({"a": 2, "b": "two"}, False, True),
        ({"a": 2, "b": "three"}, False, False),
        ({}, False, False),
        (None, False, False),
    ],
)
def test_all_wants_every_pair_and_any_one(
    headers: dict[str, Any] | None, by_all: bool, by_any: bool
) -> None:
    """C13, C14: all is what an absent x-match means."""
    assert matches(BOTH, headers) is by_all
    assert matches({"x-match": "all", **BOTH}, headers) is by_all
    assert matches({"x-match": "any", **BOTH}, headers) is by_any


@pytest.mark.parametrize("headers", [None, {}, {"a": 1}])
def test_nothing_to_look_for_is_found_by_all_and_not_by_any(headers: dict[str, Any] | None) -> None:
    assert matches({}, headers)
    assert matches({"x-match": "all"}, headers)
    assert matches({"x-match": "all-with-x"}, headers)
    assert not matches({"x-match": "any"}, headers)
    assert not matches({"x-match": "any-with-x"}, headers)


def test_a_reserved_name_counts_only_in_the_modes_that_say_so() -> None:
    """C16: names that start with "x-" are ignored; x-match itself always is."""
    arguments = {"a": 1, "x-b": 2}
    assert matches({"x-match": "all", **arguments}, {"a": 1})
    assert not matches({"x-match": "all-with-x", **arguments}, {"a": 1})
    assert matches({"x-match": "all-with-x", **arguments}, {"a": 1, "x-b": 2})
    assert not matches({"x-match": "any", **arguments}, {"x-b": 2})
    assert matches({"x-match": "any-with-x", **arguments}, {"x-b": 2})
    assert not matches({"x-match": "any-with-x", **arguments}, {"x-match": "any-with-x"})


@pytest.mark.parametrize("mode", ["", "ALL", "none", "all ", 1, True, None, b"all", ["all"]])
def test_another_mode_is_refused_and_nothing_bound(mode: Any) -> None:
    """C14."""
    exchange = made(HeadersExchange)
    with pytest.raises(PreconditionFailedError, match="x-match"):
        bind(exchange, destination("there"), "", {"x-match": mode})
    assert exchange.bindings == []
    assert routed(exchange) == []


@pytest.mark.parametrize("value", [None, 0, "", False, "anything", [], {}])
def test_an_argument_without_a_value_asks_for_presence(value: Any) -> None:
    """C15."""
    assert matches({"a": None}, {"a": value})
    assert not matches({"a": None}, {"b": value})


@pytest.mark.parametrize(
    ("argument", "header"),
    [
        (1, True),
        (0, False),
        (True, 1),
        (False, 0),
        (1, 1.5),
        (1, "1"),
        ("1", 1),
        (b"1", 1),
        ("a", b"b"),
        (0, None),
        ("", None),
        ([1], [True]),
        ([1], [1, 1]),
        ([1], 1),
        ({"in": 1}, {"in": True}),
        ({"in": 1}, {"in": 1, "more": 1}),
        ({"in": 1}, {"other": 1}),
        (Decimal("1.5"), 1.5),
        (Decimal("1.5"), Decimal("1.50")),
        (1, Decimal(1)),
    ],
)
def test_values_of_different_types_are_not_equal(argument: Any, header: Any) -> None:
    """C15."""
    assert not matches({"a": argument}, {"a": header})
    assert matches({"a": argument}, {"a": argument})
    assert header is None or matches({"a": header}, {"a": header})


@pytest.mark.parametrize(
    ("argument", "header"),
    [
        (1, 1.0),
        (2.0, 2),
        ("ä", "ä".encode()),
        (b"a", "a"),
        ([1, "a"], [1.0, b"a"]),
        ({"in": {"in": 1}}, {"in": {"in": 1.0}}),
    ],
)
def test_a_client_may_send_another_type_for_the_same_value(argument: Any, header: Any) -> None:
    """C15: as in RabbitMQ. JavaScript has one type of numbers, and Go sends text as octets."""
    assert matches({"a": argument}, {"a": header})
    assert matches({"a": header}, {"a": argument})


def test_a_timestamp_is_equal_to_itself_though_arguments_are_kept_as_plain_values() -> None:
    assert matches({"a": Timestamp(5)}, {"a": Timestamp(5)})
    assert not matches({"a": Timestamp(5)}, {"a": Timestamp(6)})


@given(value=field_values())
def test_every_value_equals_itself(value: FieldValue) -> None:
    """C15: values may have any type that a table can hold."""
    assert matches({"a": value}, {"a": value})


def shown(value: Any) -> str:
    """Equal for equal values."""
    if isinstance(value, (bytes, list)):
        return shown(value.decode()) if isinstance(value, bytes) else str([*map(shown, value)])
    return repr(int(value) if isinstance(value, float) else value)


@given(
    arguments=st.dictionaries(names.filter(lambda name: name != "x-match"), values),
    mode=st.sampled_from([None, "all", "any", "all-with-x", "any-with-x"]),
    headers=st.dictionaries(names, values),
)
def test_a_naive_model_agrees(
    arguments: dict[str, Any], mode: str | None, headers: dict[str, Any]
) -> None:
    """C14, C15, C16."""
    found = []
    for name, value in arguments.items():
        if name.startswith("x-") and mode not in ("all-with-x", "any-with-x"):
            continue
        same = name in headers and shown(headers[name]) == shown(value)
        found.append(same or (value is None and name in headers))
    expected = any(found) if mode in ("any", "any-with-x") else all(found)
    assert matches(arguments | ({"x-match": mode} if mode else {}), headers) is expected


def test_unbinding_takes_away_one_rule() -> None:
    exchange = made(HeadersExchange)
    to = destination("there")
    bind(exchange, to, "", {"a": 1})
    second = bind(exchange, to, "", {"b": 1})
    assert exchange.unbind(second)
    assert routed(exchange, "", BasicProperties(headers={"b": 1})) == []
    assert routed(exchange, "", BasicProperties(headers={"a": 1})) == ["there"]
    for key, binding in exchange.unbind_deleted(to).items():
        exchange.drop(key, binding)
    assert routed(exchange, "", BasicProperties(headers={"a": 1})) == []


@given(st.data())
def test_many_rules_find_what_each_of_them_matches(data: st.DataObject) -> None:
    modes = st.sampled_from([*MODES, None])
    tables = st.dictionaries(names, values | st.sampled_from([Decimal(1), "two"]), max_size=3)
    exchange = made(HeadersExchange)
    bound = {}
    for number in range(data.draw(st.integers(0, 8))):
        mode = data.draw(modes)
        drawn = {key: value for key, value in data.draw(tables).items() if key != "x-match"}
        arguments = plain(drawn | ({"x-match": mode} if mode else {}))
        if arguments.get("x-match", "all") in MODES:
            bound[f"to {number}"] = bind(exchange, destination(f"to {number}"), "", arguments)
    gone = [exchange.unbind(bound.pop(name)) for name in list(bound)[::3]]
    assert all(gone)
    headers: dict[str, Any] = data.draw(tables)
    expected = [name for name, one in bound.items() if matches(one.arguments, headers)]
    assert routed(exchange, "", BasicProperties(headers=headers)) == sorted(expected)


@pytest.mark.parametrize("mode", ["all", "any"])
def test_a_message_is_compared_with_few_of_many_bindings(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []

    def is_equal(header: object, argument: object) -> bool:
        compared.append(argument)
        return header == argument

    monkeypatch.setattr(headers_module, "_is_equal", is_equal)
    exchange = made(HeadersExchange)
    for number in range(1000):
        arguments = {"x-match": mode, "format": "pdf", "number": str(number)}
        bind(exchange, destination(f"to {number}"), "", arguments)
    found = routed(exchange, "", BasicProperties(headers={"format": "doc", "number": "7"}))
    assert found == (["to 7"] if mode == "any" else [])
    assert len(compared) <= 4


@pytest.mark.parametrize("mode", MODES)
def test_the_key_of_a_binding_is_made_once_however_many_arguments_it_has(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """A key made anew for each argument would hold up all clients for a minute."""
    arguments = {"x-match": mode, **{f"{number}": number for number in range(64)}}
    exchange = made(HeadersExchange)
    made_keys = []
    key_of = Binding.key.fget  # type: ignore[attr-defined]

    def key(binding: Binding) -> Any:
        made_keys.append(binding)
        return key_of(binding)

    monkeypatch.setattr(Binding, "key", property(key))
    binding = bind(exchange, destination("there"), "", arguments)
    assert exchange.unbind(binding)
    assert len(made_keys) == 2
