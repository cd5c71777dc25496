"""The random exchange: one of all, each as likely, however many bindings."""

from collections import Counter

import pytest

from amqpstore_server.broker.exchanges.random_ import RandomExchange
from tests.unit.broker.exchanges.made import bind, destination, made, routed


def test_nothing_bound_is_no_route() -> None:
    assert routed(made(RandomExchange), "key") == []


def test_each_message_goes_to_one_destination_all_as_likely() -> None:
    """Two bindings to one destination do not count twice."""
    exchange = made(RandomExchange)
    a, b, c = (destination(name) for name in "abc")
    for to, key in ((a, ""), (a, "again"), (a, "and again"), (b, ""), (c, "")):
        bind(exchange, to, key)
    routes = [routed(exchange, "key") for _ in range(6000)]
    assert {len(route) for route in routes} == {1}
    counts = Counter(route[0] for route in routes)
    for name in "abc":
        assert counts[name] == pytest.approx(2000, rel=0.1)


def test_a_destination_stays_until_its_last_binding_goes() -> None:
    exchange = made(RandomExchange)
    a = destination("a")
    first, second = bind(exchange, a, "1"), bind(exchange, a, "2")
    assert exchange.unbind(first)
    assert routed(exchange) == ["a"]
    assert exchange.unbind(second)
    assert routed(exchange) == []


def test_it_is_not_repeatable() -> None:
    """A cached route would send all that follows the same way."""
    assert not RandomExchange.is_repeatable
