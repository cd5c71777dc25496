"""Settings: each argument and policy key, each wrong value of it, and which of them holds."""

from dataclasses import asdict
from typing import Any

import pytest

from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.rules.settings import (
    CHECKS,
    POLICY_KEYS,
    Settings,
    check_arguments,
    settings_of,
)

NUMBERS = {
    "message-ttl": (0, 1 << 52),
    "expires": (1, 1 << 52),
    "max-length": (0, (1 << 63) - 1),
    "max-length-bytes": (0, (1 << 63) - 1),
    "delivery-limit": (-1, (1 << 63) - 1),
    "max-priority": (0, 255),
    "history-length": (0, (1 << 63) - 1),
    "history-ttl": (0, 1 << 52),
    "consumer-timeout": (0, 1 << 52),
    "purge-undo-seconds": (0, 366 * 24 * 3600),
}
"""The minimum and the maximum of each setting that is a number."""

ZERO_DIFFERS = ("expires", "consumer-timeout")
"""Settings for which 0 is refused, or means no limit."""

WORDS = {
    "overflow": ("drop-head", "reject-publish", "reject-publish-dlx"),
    "queue-mode": ("default", "lazy"),
    "dead-letter-strategy": ("at-most-once", "at-least-once"),
}
TEXTS = ("dead-letter-exchange", "dead-letter-routing-key")
FLAGS = ("single-active-consumer",)

NO_NUMBER: list[Any] = [True, False, "5", 5.0, None, [5], {"n": 5}, b"5"]
NO_TEXT: list[Any] = [1, True, None, ["a"], b"a", {}]


def refused(name: str, value: Any) -> str:
    """Return why an argument is refused; fail if it is accepted."""
    with pytest.raises(PreconditionFailedError) as error:
        check_arguments("queue 'q' in vhost '/'", {name: value})
    assert str(error.value).startswith(f"invalid arg '{name}' for queue 'q' in vhost '/': ")
    return str(error.value)


def accepted(name: str, value: Any) -> Settings:
    arguments = {"x-dead-letter-exchange": "dlx", name: value}
    check_arguments("queue 'q'", arguments)
    return settings_of(arguments)


def test_every_argument_and_policy_key_is_among_those_of_this_test() -> None:
    keys = {*NUMBERS, *WORDS, *TEXTS, *FLAGS}
    assert {f"x-{key}" for key in keys} | {"x-queue-type"} == set(CHECKS)
    assert keys | {"alternate-exchange"} == set(POLICY_KEYS)
    assert {key.replace("-", "_") for key in keys} == set(asdict(Settings()))


@pytest.mark.parametrize("key", NUMBERS)
def test_a_number_is_an_integer_within_its_limits(key: str) -> None:
    least, most = NUMBERS[key]
    field = key.replace("-", "_")
    for value in (least, least + 1, most):
        limit = None if value == -1 else value
        assert getattr(accepted(f"x-{key}", value), field) == limit
    for value in (least - 1, most + 1, -(1 << 63), 1 << 70):
        assert f"is not from {least} to {most}" in refused(f"x-{key}", value)
    for value in NO_NUMBER:
        assert "is not an integer" in refused(f"x-{key}", value)


@pytest.mark.parametrize("key", WORDS)
def test_a_word_is_one_of_few(key: str) -> None:
    for word in WORDS[key]:
        assert getattr(accepted(f"x-{key}", word), key.replace("-", "_")) == word
    for value in ("", WORDS[key][0].upper(), "other", *NO_TEXT):
        assert "is not one of" in refused(f"x-{key}", value)


@pytest.mark.parametrize("key", TEXTS)
def test_a_name_is_a_string(key: str) -> None:
    for text in ("", "a", "ö.#", "x" * 255):
        assert getattr(accepted(f"x-{key}", text), key.replace("-", "_")) == text
    for value in NO_TEXT:
        assert "is not a string" in refused(f"x-{key}", value)


@pytest.mark.parametrize("key", TEXTS)
def test_a_name_has_no_more_bytes_than_the_wire_has_for_it(key: str) -> None:
    for text in ("x" * 256, "ö" * 128):
        with pytest.raises(PreconditionFailedError, match="255 bytes"):
            check_arguments("queue 'q'", {"x-dead-letter-exchange": "dlx", f"x-{key}": text})


@pytest.mark.parametrize("key", FLAGS)
def test_a_flag_is_a_boolean(key: str) -> None:
    for value in (True, False):
        assert getattr(accepted(f"x-{key}", value), key.replace("-", "_")) is value
    no_flags: list[Any] = [1, 0, "true", None, []]
    for wrong in no_flags:
        assert "is not a boolean" in refused(f"x-{key}", wrong)


def test_a_queue_type_is_one_that_is_known() -> None:
    for value in ("classic", "quorum"):
        accepted("x-queue-type", value)
    for wrong in ("stream", "", 1, None):
        refused("x-queue-type", wrong)


def test_a_quorum_queue_has_the_delivery_limit_that_rabbitmq_gives_it() -> None:
    assert settings_of({"x-queue-type": "quorum"}).delivery_limit == 20
    assert settings_of({"x-queue-type": "quorum", "x-delivery-limit": 50}).delivery_limit == 50
    assert settings_of({"x-queue-type": "quorum"}, {"delivery-limit": 3}).delivery_limit == 3
    assert settings_of({"x-queue-type": "classic"}).delivery_limit is None


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_delivery_limit_of_minus_one_is_none(kind: str) -> None:
    """RabbitMQ 4 has the same way of removing the limit of quorum queues."""
    unlimited = {"x-queue-type": kind, "x-delivery-limit": -1}
    assert settings_of(unlimited).delivery_limit is None
    assert settings_of({"x-queue-type": kind}, {"delivery-limit": -1}).delivery_limit is None
    assert settings_of(unlimited, {"delivery-limit": 3}).delivery_limit == 3
    assert settings_of(unlimited, {"delivery-limit": 0}).delivery_limit == 0


def test_a_dead_letter_routing_key_needs_its_exchange() -> None:
    with pytest.raises(PreconditionFailedError, match="it needs x-dead-letter-exchange beside it"):
        check_arguments("queue 'q'", {"x-dead-letter-routing-key": "k"})
    check_arguments("queue 'q'", {"x-dead-letter-routing-key": "k", "x-dead-letter-exchange": ""})


def test_arguments_that_nobody_knows_are_let_pass() -> None:
    arguments = {"x-queue-master-locator": "min-masters", "own": {"a": [1]}}
    check_arguments("queue 'q'", arguments)
    assert settings_of(arguments) == Settings()


def test_without_anything_nothing_is_limited() -> None:
    settings = settings_of({})
    assert settings == Settings()
    assert settings.is_plain
    assert not settings.is_limited
    assert not settings.rejects


@pytest.mark.parametrize(
    ("argument", "policy", "operator", "holds"),
    [
        (5, None, None, 5),
        (None, 6, None, 6),
        (None, None, 7, 7),
        (5, 6, None, 5),
        (6, 5, None, 5),
        (6, 5, 4, 4),
        (4, 5, 6, 4),
        (5, 4, 6, 4),
        (None, 5, 4, 4),
        (None, 4, 5, 4),
        (5, None, 0, 0),
    ],
)
@pytest.mark.parametrize("key", [key for key in NUMBERS if key not in ZERO_DIFFERS])
def test_of_numbers_the_smallest_holds(
    key: str, argument: int | None, policy: int | None, operator: int | None, holds: int
) -> None:
    found = settings_of(
        {} if argument is None else {f"x-{key}": argument},
        {} if policy is None else {key: policy},
        {} if operator is None else {key: operator},
    )
    assert getattr(found, key.replace("-", "_")) == holds


@pytest.mark.parametrize(
    ("argument", "policy", "operator", "holds"),
    [
        ("a", None, None, "a"),
        (None, "p", None, "p"),
        (None, None, "o", "o"),
        ("a", "p", None, "a"),
        ("a", "p", "o", "a"),
        (None, "p", "o", "o"),
        ("a", None, "o", "a"),
        ("", "p", "o", ""),
    ],
)
def test_of_all_else_the_argument_holds_then_the_operator_policy(
    argument: str | None, policy: str | None, operator: str | None, holds: str
) -> None:
    key = "dead-letter-exchange"
    found = settings_of(
        {} if argument is None else {f"x-{key}": argument},
        {} if policy is None else {key: policy},
        {} if operator is None else {key: operator},
    )
    assert found.dead_letter_exchange == holds


def test_a_false_flag_is_a_value_like_any() -> None:
    key = "single-active-consumer"
    assert not settings_of({f"x-{key}": False}, {key: True}).single_active_consumer
    assert not settings_of({}, {key: True}, {key: False}).single_active_consumer
    assert settings_of({}, {key: True}).single_active_consumer


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("max-length", "5"),
        ("max-length", -1),
        ("expires", 0),
        ("overflow", "other"),
        ("dead-letter-exchange", 5),
        ("single-active-consumer", 1),
        ("queue-mode", None),
    ],
)
def test_a_wrong_value_in_a_policy_is_as_if_it_was_not_there(key: str, wrong: Any) -> None:
    assert settings_of({}, {key: wrong}, {key: wrong}) == Settings()


def test_what_needs_more_than_to_be_appended() -> None:
    for limited in ({"x-max-length": 0}, {"x-max-length-bytes": 10}):
        assert settings_of(limited).is_limited
        assert not settings_of(limited).is_plain
    assert not settings_of({"x-max-priority": 1}).is_plain
    assert not settings_of({"x-message-ttl": 0}).is_plain
    assert settings_of({"x-expires": 5, "x-delivery-limit": 1}).is_plain
    assert settings_of({"x-overflow": "reject-publish"}).rejects
    assert settings_of({"x-overflow": "reject-publish-dlx"}).rejects
    assert not settings_of({"x-overflow": "drop-head"}).rejects


@pytest.mark.parametrize(
    ("argument", "policy", "operator_policy", "expected"),
    [
        (None, None, None, None),
        (5, None, None, 5),
        (5, 3, None, 3),
        (0, 3, None, 3),
        (0, 0, 7, 7),
        (0, None, None, 0),
        (None, 0, None, 0),
        (None, None, 9, 9),
        (5, 0, None, 5),
    ],
)
def test_a_consumer_timeout_of_0_is_none_and_any_other_is_shorter(
    argument: int | None, policy: int | None, operator_policy: int | None, expected: int | None
) -> None:
    def given(key: str, value: int | None) -> dict[str, int]:
        return {} if value is None else {key: value}

    settings = settings_of(
        given("x-consumer-timeout", argument),
        given("consumer-timeout", policy),
        given("consumer-timeout", operator_policy),
    )
    assert settings.consumer_timeout == expected
