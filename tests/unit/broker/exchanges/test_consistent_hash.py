"""The consistent-hash exchange: shares by weight, places that stay, and any value hashed."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given

from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.exchanges.base import Exchange
from amqpstore_server.broker.exchanges.consistent_hash import ConsistentHashExchange
from amqpstore_server.protocol.content import BasicProperties
from amqpstore_server.protocol.field_table import FieldValue
from tests.unit.broker.exchanges.made import NO_PROPERTIES, bind, destination, made, routed
from tests.unit.protocol.strategies import field_values

KEYS = [f"key {number}" for number in range(20_000)]


def bound(weights: dict[str, int], **arguments: Any) -> ConsistentHashExchange:
    exchange = made(ConsistentHashExchange, **arguments)
    for name, weight in weights.items():
        bind(exchange, destination(name), str(weight))
    return exchange


def destinations(exchange: Exchange) -> dict[str, str]:
    """Return where each key goes."""
    return {key: one.name for key in KEYS for one in exchange.route(key, NO_PROPERTIES)}


def test_nothing_bound_is_no_route() -> None:
    assert routed(made(ConsistentHashExchange), "key") == []


def test_a_key_goes_to_one_destination_and_always_the_same() -> None:
    """A22."""
    exchange = bound({"a": 1, "b": 1, "c": 1})
    placement = destinations(exchange)
    assert len(placement) == len(KEYS)
    assert destinations(exchange) == placement


def test_equal_weights_get_equal_shares() -> None:
    counts = Counter(destinations(bound({f"queue {number}": 1 for number in range(10)})).values())
    assert len(counts) == 10
    for count in counts.values():
        assert count == pytest.approx(len(KEYS) / 10, rel=0.08)


def test_shares_are_in_proportion_to_weights() -> None:
    counts = Counter(destinations(bound({"a": 1, "b": 2, "c": 5})).values())
    for name, weight in (("a", 1), ("b", 2), ("c", 5)):
        assert counts[name] == pytest.approx(len(KEYS) * weight / 8, rel=0.06)


def test_a_destination_that_comes_takes_its_share_and_moves_nothing_else() -> None:
    weights = {f"queue {number}": 1 for number in range(9)}
    before = destinations(bound(weights))
    after = destinations(bound({**weights, "new": 1}))
    moved = [key for key in KEYS if before[key] != after[key]]
    assert {after[key] for key in moved} == {"new"}
    assert len(moved) == pytest.approx(len(KEYS) / 10, rel=0.08)


def test_a_destination_that_goes_leaves_the_others_what_they_had() -> None:
    exchange = bound({f"queue {number}": 1 for number in range(5)})
    before = destinations(exchange)
    exchange.unbind(exchange.bindings[2])
    after = destinations(exchange)
    assert "queue 2" not in after.values()
    assert all(after[key] == before[key] for key in KEYS if before[key] != "queue 2")


def test_a_weight_that_grows_takes_keys_and_gives_none_away() -> None:
    before = destinations(bound({"a": 1, "b": 1, "c": 1}))
    after = destinations(bound({"a": 1, "b": 3, "c": 1}))
    assert all(after[key] in (before[key], "b") for key in KEYS)


def test_places_are_the_same_after_a_restart_whatever_the_order_of_binding() -> None:
    """The placement depends on the definitions only: these values never change."""
    weights = {"a": 1, "b": 2, "c": 3}
    exchange = bound(weights)
    assert destinations(bound(dict(reversed(weights.items())))) == destinations(exchange)
    places = [routed(exchange, f"key {number}")[0] for number in range(16)]
    assert "".join(places) == "bcbccacabccbacca"


def test_the_weights_of_several_bindings_of_a_destination_add_up() -> None:
    exchange = bound({"b": 2})
    a = destination("a")
    bind(exchange, a, "1")
    second = bind(exchange, a, "3")
    assert destinations(exchange) == destinations(bound({"a": 4, "b": 2}))
    assert exchange.unbind(second)
    assert destinations(exchange) == destinations(bound({"a": 1, "b": 2}))
    assert exchange.unbind_deleted(a)
    assert set(destinations(exchange).values()) == {"b"}


def test_the_last_destination_gone_is_no_route() -> None:
    exchange = bound({"a": 1})
    exchange.unbind(exchange.bindings[0])
    assert routed(exchange, "key") == []


@pytest.mark.parametrize("key", ["1", "01", "1000", "1000000"])
def test_a_binding_key_is_a_weight(key: str) -> None:
    exchange = made(ConsistentHashExchange)
    bind(exchange, destination("a"), key)
    assert routed(exchange, "key") == ["a"]


@pytest.mark.parametrize(
    "key", ["", "0", "-1", "+1", "1.5", " 1", "one", "1_0", "٣", "1000001", "9" * 255]
)
def test_any_other_binding_key_is_refused_with_what_is_expected(key: str) -> None:
    exchange = made(ConsistentHashExchange)
    with pytest.raises(PreconditionFailedError, match="a weight from 1 to 1000000"):
        bind(exchange, destination("a"), key)
    assert exchange.bindings == []
    assert routed(exchange, "key") == []


@pytest.mark.parametrize("name", ["message_id", "correlation_id", "timestamp"])
def test_a_property_can_be_what_is_hashed(name: str) -> None:
    plain = bound({"a": 1, "b": 1, "c": 1})
    exchange = bound({"a": 1, "b": 1, "c": 1}, hash_property=name)
    for number in range(100):
        properties = BasicProperties()
        setattr(properties, name, number if name == "timestamp" else str(number))
        assert routed(exchange, "not this", properties) == routed(plain, str(number))


def test_a_header_can_be_what_is_hashed() -> None:
    plain = bound({"a": 1, "b": 1, "c": 1})
    exchange = bound({"a": 1, "b": 1, "c": 1}, hash_header="of")
    for number in range(100):
        properties = BasicProperties(headers={"of": str(number), "other": "x"})
        assert routed(exchange, "not this", properties) == routed(plain, str(number))


def test_it_reads_properties_only_where_it_hashes_one() -> None:
    """The route of a key can then be remembered."""
    assert not made(ConsistentHashExchange).reads_properties
    assert made(ConsistentHashExchange, hash_header="of").reads_properties
    assert made(ConsistentHashExchange, hash_property="timestamp").reads_properties


@pytest.mark.parametrize("arguments", [{"hash_header": "of"}, {"hash_property": "message_id"}])
def test_what_is_missing_is_hashed_as_if_it_were_empty(arguments: dict[str, str]) -> None:
    exchange = bound({f"queue {number}": 1 for number in range(50)}, **arguments)
    empty = BasicProperties(headers={"of": ""}, message_id="")
    for missing in (NO_PROPERTIES, BasicProperties(headers={}), BasicProperties(headers={"x": 1})):
        assert routed(exchange, "k", missing) == routed(exchange, "j", empty)


@given(value=field_values())
def test_a_header_of_any_type_has_one_destination(value: FieldValue) -> None:
    exchange = bound({"a": 1, "b": 1}, hash_header="of")
    properties = BasicProperties(headers={"of": value})
    assert len(routed(exchange, "", properties)) == 1
    assert routed(exchange, "", properties) == routed(exchange, "", properties)


@pytest.mark.parametrize(
    "arguments",
    [
        {"hash_header": "of", "hash_property": "message_id"},
        {"hash_property": "user_id"},
        {"hash_property": ""},
        {"hash_property": 1},
        {"hash_header": 1},
        {"hash_header": ["of"]},
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(PreconditionFailedError, match="hash-"):
        made(ConsistentHashExchange, **arguments)
