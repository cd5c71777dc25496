"""Patterns of operators: found anywhere in a name, in linear time, and refused with a reason."""

import logging

import pytest

from amqpstore_server.broker.rights.permissions import Access
from amqpstore_server.broker.rules.patterns import (
    LACKING,
    Pattern,
    PatternError,
    literal,
    pattern_of,
    prefix_of,
)
from amqpstore_server.broker.rules.policy import Policy


@pytest.mark.parametrize(
    ("expression", "found", "others"),
    [
        (".*", ["", "a", "a\nb", "é"], []),
        ("^$", [""], ["a", "\n"]),
        ("b", ["b", "abc"], ["a", ""]),
        ("^a.c$", ["abc", "aéc", "a\0c"], ["ac", "abbc", "abc\n"]),
        ("^[[:alpha:]]+$", ["abc"], ["a1", ""]),
        (r"^\d{3}\b", ["123", "123 a"], ["12", "1234"]),
        ("(?i)^eur", ["EUR.x"], ["usd"]),
        # RabbitMQ's own: all queues but the broker's.
        (r"^(?!amq\.).*", ["", "a", "amq"], ["amq.gen-1"]),
        (r"(?i)^(?!amq\.|tmp)[a-z]+$", ["Orders"], ["AMQ.x", "Tmp1", "tmp", "1"]),
        (r"^(?!a)(?!b$)", ["b1", "c", ""], ["a", "b"]),
        (r"^(?!\(x\))", ["x"], ["(x)"]),
    ],
)
def test_what_a_pattern_finds(expression: str, found: list[str], others: list[str]) -> None:
    pattern = Pattern(expression)
    assert [name for name in found + others if pattern.matches(name)] == found


@pytest.mark.parametrize("expression", ["(a+)+$", "(a|aa)+$", "(.*a){12}$", "^(([a-z])+.)+[A-Z]$"])
def test_a_name_takes_time_in_proportion_to_its_length(expression: str) -> None:
    """An engine that backtracks would not be done within a day."""
    name = "a" * 254 + "!"
    assert not Pattern(expression).matches(name)
    row = dict.fromkeys(("configure", "write", "read"), expression)
    assert not Access("ann", "/", row).may("write", name)
    assert not Policy("p", expression).applies(name, frozenset({"all"}))


@pytest.mark.parametrize(
    "expression",
    [
        "(",
        "*",
        "^(?=x)",
        "(?<=x)y",
        r"(a)\1",
        "(?>a)",
        "a++",
        "a{1001}",
        "(" * 5000,
        "\ud800",
        r"\K",
    ],
)
def test_what_is_not_supported_is_refused_with_what_is(expression: str) -> None:
    with pytest.raises(PatternError, match=LACKING) as caught:
        Pattern(expression)
    assert len(str(caught.value)) < 600


def test_names_in_a_pattern_are_literal() -> None:
    name = "a.b*c(d)[e]{f}|g^$\\h é"
    assert Pattern(f"^{literal(name)}$").matches(name)


def test_a_stored_pattern_that_cannot_be_read_grants_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR):
        access = Access("ann", "/", {"configure": "(?!x)", "write": ".*", "read": ".*"})
    assert not access.may("configure", "q")
    assert access.may("write", "q")
    (record,) = caplog.records
    assert record.__dict__["of"] == "user 'ann' in vhost '/'"
    assert pattern_of("(", "policy 'p'") is None


@pytest.mark.parametrize(
    ("expression", "prefix"),
    [
        ("^orders", "orders"),
        (r"^a\.b-c$", "a.b-c"),
        ("^a.b", "a"),
        ("^ab*", "a"),
        ("^ab?c", "a"),
        ("^ab{0}", "a"),
        ("^ab+", "ab"),
        ("^a[bc]", "a"),
        (r"^a\d", "a"),
        (r"^a\.*", "a"),
        ("^(a)", ""),
        ("^a|b", ""),
        ("^(?i)a", ""),
        ("(?i)^a", ""),
        ("a", ""),
        ("", ""),
    ],
)
def test_the_text_that_a_matching_name_begins_with(expression: str, prefix: str) -> None:
    assert prefix_of(expression) == prefix
