"""The topic exchange: the words' rules, against a plain matcher, and how much work it may take."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.exchanges.topic import TopicExchange
from tests.unit.broker.exchanges.made import bind, destination, made, routed

words = st.sampled_from(["a", "b", "", "*", "#"])
keys = st.lists(words, max_size=7).map(".".join)


def matches(pattern: str, key: str) -> bool:
    exchange = made(TopicExchange)
    bind(exchange, destination("there"), pattern)
    return routed(exchange, key) == ["there"]


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("*.stock.#", ["usd.stock", "eur.stock.db"], ["stock.nasdaq"]),
        (
            "param.#",
            ["param", "param.test", "param.value", "param.test.child"],
            ["param1.test"],
        ),
        (
            "param.*.*",
            ["param.test.test", "param.test.value", "param.test.child"],
            ["param", "param.test", "parm.child"],
        ),
        (
            "param.*.value",
            ["param.value.value", "param.test.value"],
            ["param.value", "param.value.child"],
        ),
        ("STOCK.USD.*", ["STOCK.USD.IBM"], ["STOCK.USD", "STOCK.USD.IBM.N", "stock.usd.IBM"]),
    ],
)
def test_the_models_examples(pattern: str, matching: list[str], others: list[str]) -> None:
    """C08, C09, C10, C11, C12."""
    assert [key for key in matching + others if matches(pattern, key)] == matching


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("*", ["a", "abc", "*", "#"], ["", "a.b", ".", "a."]),
        ("#", ["", "a", "a.b", ".", "..."], []),
        ("a.#.b", ["a.b", "a.x.b", "a..b", "a.b.b"], ["a", "b", "ab", "a.x"]),
        ("a*", ["a*"], ["ab", "a"]),
        ("a#", ["a#"], ["ab", "a"]),
    ],
)
def test_a_wildcard_stands_for_whole_words(
    pattern: str, matching: list[str], others: list[str]
) -> None:
    """C06, C07: words, not characters."""
    assert [key for key in matching + others if matches(pattern, key)] == matching


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("", [""], [".", "a"]),
        ("*.*.*", ["a..b", "..", ".a."], ["a.b", "."]),
        ("a..b", ["a..b"], ["a.b", "a.x.b"]),
        (".", ["."], ["", "a", ".."]),
        (".*", [".", ".a"], ["", "a", "a."]),
    ],
)
def test_empty_words_count(pattern: str, matching: list[str], others: list[str]) -> None:
    """C06: "a..b" has three words; the empty key has none."""
    assert [key for key in matching + others if matches(pattern, key)] == matching


@given(patterns=st.lists(keys, max_size=6, unique=True), key=keys)
def test_it_matches_what_a_plain_matcher_does(patterns: list[str], key: str) -> None:
    exchange = made(TopicExchange)
    for pattern in patterns:
        bind(exchange, destination(pattern), pattern)
    assert routed(exchange, key) == sorted(one for one in patterns if plainly_matches(one, key))


@given(
    changes=st.lists(st.tuples(st.booleans(), keys, st.integers(0, 2)), max_size=30),
    tried=st.lists(keys, max_size=5),
)
def test_bindings_come_and_go_and_leave_nothing_behind(
    changes: list[tuple[bool, str, int]], tried: list[str]
) -> None:
    exchange = made(TopicExchange)
    destinations = [destination(str(number)) for number in range(3)]
    bound: dict[tuple[str, int], Any] = {}
    for is_bind, pattern, number in changes:
        if is_bind and (pattern, number) not in bound:
            bound[pattern, number] = bind(exchange, destinations[number], pattern)
        elif not is_bind and (binding := bound.pop((pattern, number), None)):
            assert exchange.unbind(binding)
    for key in tried:
        expected = {str(number) for pattern, number in bound if plainly_matches(pattern, key)}
        assert routed(exchange, key) == sorted(expected)
    assert bit_count(exchange) <= 2 * sum(len(pattern.split(".")) + 1 for pattern, _ in bound)
    for binding in bound.values():
        assert exchange.unbind(binding)
    assert is_empty(exchange)


def test_a_destination_with_two_bindings_keeps_the_one_that_is_left() -> None:
    exchange = made(TopicExchange)
    to = destination("there")
    bind(exchange, to, "a.*", {"of": 1})
    second = bind(exchange, to, "a.*", {"of": 2})
    assert exchange.unbind(second)
    assert routed(exchange, "a.b") == ["there"]


@pytest.mark.parametrize(
    "patterns",
    [
        ["#.#.#.a"],
        [".".join(["#"] * 128)],
        [".".join(["#", "*"] * 64)],
        [".".join(["#", "a"] * 64)],
        [".".join(["#"] * length + ["b"]) for length in range(1, 100)],
        [".".join(Random(seed).choices("ab*#", k=8)) for seed in range(500)],
    ],
    ids=["four", "any", "any-one", "any-word", "staircase", "thicket"],
)
@pytest.mark.parametrize("key", [".".join("a" * 128), "." * 254], ids=["words", "empty"])
def test_work_is_bounded_by_words_times_bits(patterns: list[str], key: str) -> None:
    """The work does not grow exponentially, whatever the wildcards."""
    exchange = made(TopicExchange)
    for number, pattern in enumerate(patterns):
        bind(exchange, destination(str(number)), pattern)
    assert routed(exchange, key) == sorted(
        str(number) for number, pattern in enumerate(patterns) if plainly_matches(pattern, key)
    )
    assert bit_count(exchange) <= sum(len(pattern.split(".")) + 1 for pattern in patterns)


def test_many_patterns_come_and_go() -> None:
    """There are more patterns than one block of bits holds, and half are removed again."""
    exchange = made(TopicExchange)
    patterns = sorted({".".join(Random(n).choices("ab*#", k=20)) for n in range(2000)})
    bound = {one: bind(exchange, destination(one), one) for one in patterns}
    before = bit_count(exchange)
    for pattern in patterns[::2]:
        assert exchange.unbind(bound[pattern])
    for pattern in patterns[: len(patterns) // 2 : 3]:
        exchange.unbind(bound[pattern])
    left = [binding.routing_key for binding in exchange.bindings]
    for key in ("a.b.a.a.b.b.a.b.a.a.a.b.b.a.b.a.a.a.b.a", "b.b.b", ".".join("a" * 40)):
        assert routed(exchange, key) == [one for one in left if plainly_matches(one, key)]
    assert bit_count(exchange) < before
    for binding in exchange.bindings:
        exchange.unbind(binding)
    assert is_empty(exchange)


def test_bindings_that_match_alike_share_their_bits() -> None:
    exchange = made(TopicExchange)
    for pattern in ("a.#.*.#.*.b", "a.*.*.#.b", "a.*.#.#.*.b"):
        bind(exchange, destination(pattern), pattern)
    assert len(routed(exchange, "a.x.y.z.b")) == 3
    assert bit_count(exchange) == 4


def test_a_binding_key_may_have_128_words() -> None:
    exchange = made(TopicExchange)
    bind(exchange, destination("there"), ".".join("#" * 128))
    with pytest.raises(PreconditionFailedError, match="it has 129 words, and may have 128"):
        bind(exchange, destination("there"), ".".join("a" * 129))
    assert len(exchange.bindings) == 1


def test_a_routing_key_may_have_as_many_words_as_fit() -> None:
    """255 bytes on the wire; a name from elsewhere may be longer."""
    exchange = made(TopicExchange)
    bind(exchange, destination("there"), "#.b.*.#")
    assert routed(exchange, "." * 255) == []
    assert routed(exchange, "." * 2000 + "b" + "." * 2000) == ["there"]


def plainly_matches(pattern: str, key: str) -> bool:
    """The rule as a table of which words' ends match which parts' ends."""
    key_words = key.split(".") if key else []
    row = [True] + [False] * len(key_words)
    for part in pattern.split(".") if pattern else []:
        following = [row[0] and part == "#"]
        for number, word in enumerate(key_words, 1):
            if part == "#":
                following.append(following[-1] or row[number])
            else:
                following.append(row[number - 1] and part in ("*", word))
        row = following
    return row[-1]


def bit_count(exchange: TopicExchange) -> int:
    """States that a key is matched against, over all beginnings."""
    blocks = [block for patterns in exchange._patterns.values() for block in patterns._blocks]
    return sum(block._bit_count for block in blocks)


def is_empty(exchange: TopicExchange) -> bool:
    return not exchange._exact and not exchange._patterns
